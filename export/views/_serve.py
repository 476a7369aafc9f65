"""Serve a file to a browser on this machine, in the viewer of the package `netron`."""

import importlib
import re
import shutil
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from os import PathLike
from pathlib import Path
from threading import Thread
from typing import BinaryIO, Self
from urllib.parse import quote, unquote, urlsplit

from filch.steal.text._markup import for_html

from .._errors import ViewError

_LOCAL = "127.0.0.1"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    # The viewer asks for consent to telemetry and to a location lookup; the policy blocks both.
    "Set-Cookie": "consent=0; SameSite=Strict; Path=/",
    "X-Content-Type-Options": "nosniff",
}
_VERSION = re.compile(r'<meta name="version" content="([^"]*)">')


@dataclass(frozen=True)
class Served:
    """A file that is served until `stop`, or the end of a `with` block.

    Attributes:
        url: the address, which only this machine can reach.
    """

    url: str
    _server: ThreadingHTTPServer
    _thread: Thread

    def wait(self) -> None:
        """Wait until it is stopped, for example by Ctrl-C."""
        try:
            while self._thread.is_alive():
                self._thread.join(0.1)
        except KeyboardInterrupt:
            self.stop()

    def stop(self) -> None:
        """Stop serving and free the port; may be called more than once."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(path: str | PathLike[str], *, port: int | None = None, browse: bool = False) -> Served:
    """Serve a file that Netron can open, in the background.

    Only this file and the viewer are served, to GET and HEAD requests whose host is this machine: pages of other sites
    can't read it by DNS rebinding. The page loads nothing from elsewhere.

    Args:
        path: the path of the file, for example `.onnx`, `.netron` or `.dot`.
        port: the port; None is a free one.
        browse: whether to open it in the browser.

    Raises:
        ViewError: there is no such file, the package is not installed, or the port is taken.
    """
    file = Path(path)
    if not file.is_file():
        raise ViewError(f"there is no file {str(file)!r} to serve")
    try:
        viewer = Path(importlib.import_module("netron").__file__ or "").parent
    except ImportError as error:
        raise ViewError(f"serving {str(file)!r} needs the package netron: pip install netron") from error
    try:
        server = _Server((_LOCAL, port or 0), _Handler)
    except (OSError, OverflowError) as error:
        raise ViewError(f"can't serve {str(file)!r} on port {port}: {error}") from error
    server.show(file.resolve(), viewer)
    thread = Thread(target=server.serve_forever, args=(0.05,), name="filch-serve", daemon=True)
    thread.start()
    url = f"http://{_LOCAL}:{server.server_port}"
    if browse:
        webbrowser.open(url)
    return Served(url, server, thread)


class _Server(ThreadingHTTPServer):
    """Serves one file and the files of the viewer.

    Attributes:
        hosts: the allowed values of the header `Host`.
        content: the served files, or the bytes of the page, by the path in the URL.
    """

    daemon_threads = True
    block_on_close = False  # `stop` does not wait for slow clients
    hosts: frozenset[str] = frozenset()
    content: Mapping[str, Path | bytes] = {}

    def show(self, file: Path, viewer: Path) -> None:
        """Set the served files."""
        port = f":{self.server_port}" if self.server_port != HTTP_PORT else ""
        self.hosts = frozenset(f"{name}{port}" for name in ("localhost", _LOCAL, "[::1]"))
        viewer_files = {f"/{item.name}": item for item in viewer.iterdir() if item.suffix in _TYPES and item.is_file()}
        page = _page((viewer / "index.html").read_text("utf-8"), file.name)
        self.content = {**viewer_files, "/": page, "/index.html": page, f"/data/{file.name}": file}


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD requests."""

    timeout = 30  # seconds to wait for a client
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  it serves no other

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  whatever the arguments
        """Write nothing to the terminal."""

    def do_GET(self) -> None:
        """Send a file, or only its headers for a HEAD request."""
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        path = unquote(urlsplit(self.path).path)
        content = self.server.content.get(path)  # None is opened as "" below, which fails: not found
        try:
            body: BinaryIO = BytesIO(content) if isinstance(content, bytes) else open(content or "", "rb")  # noqa: PTH123, SIM115  closed below
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with body:
            self.send_response(HTTPStatus.OK)
            # The served file is sent as bytes, whatever its suffix; `/` is the viewer's page.
            kind = "application/octet-stream" if path.startswith("/data/") else _TYPES[Path(path).suffix or ".html"]
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(body.seek(0, 2)))
            self.end_headers()
            body.seek(0)
            if self.command == "GET":
                shutil.copyfileobj(body, self.wfile)

    do_HEAD = do_GET  # noqa: N815  the name that http.server looks for

    def end_headers(self) -> None:
        """Add the security headers to each answer, including errors."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()


def _page(page: str, name: str) -> bytes:
    """Return the viewer's page with elements that make it open a file; their names are those of Netron's own server."""
    settings = {"type": "Python", "file": f"/data/{quote(name)}", "name": name, "identifier": name}
    more = "".join(f'\n<meta name="{key}" content="{for_html(value)}">' for key, value in settings.items())
    return _VERSION.sub(lambda match: match[0] + more, page, count=1).encode("utf-8", "backslashreplace")
