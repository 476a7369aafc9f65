"""Serves a written file to a browser with the `netron` package."""

import importlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .._errors import ViewError, reason


@dataclass(frozen=True)
class Served:
    """A file that is served until `stop`, or the end of a `with` block.

    Attributes:
        url: where a browser finds it, on this machine alone.
    """

    url: str
    _netron: Any
    _address: tuple[str, int]

    def wait(self) -> None:
        """Wait until it is stopped, by Ctrl-C for one."""
        try:
            while self._netron.status(self._address):
                time.sleep(0.1)
        except KeyboardInterrupt:
            self.stop()

    def stop(self) -> None:
        """Stop serving, if that was not done; when it returns, the port is free again."""
        self._netron.stop(self._address)
        while self._netron.status(self._address):
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(path: str | os.PathLike[str], *, port: int | None = None, browse: bool = False) -> Served:
    """Serve a file that Netron can open, in the background.

    Args:
        path: of a file `.onnx`, `.netron` or `.dot`, for three.
        port: of this machine; None is a free one.
        browse: open it in the browser, too.

    Raises:
        ViewError: there is no such file, the package is not installed, or it can't serve.
    """
    where = Path(path)
    if not where.is_file():
        raise ViewError(f"there is no file {str(where)!r} to serve")
    try:
        netron = importlib.import_module("netron")
    except ImportError as error:
        raise ViewError(f"serving {str(where)!r} needs the package netron: pip install netron") from error
    try:
        with _logging_untouched():
            host, chosen = netron.start(str(where), address=("localhost", port), browse=browse)
    except Exception as error:  # whatever its server raises
        raise ViewError(f"netron can't serve {str(where)!r}: {reason(error)}") from error
    return Served(f"http://{host}:{chosen}", netron, (host, chosen))


@contextmanager
def _logging_untouched() -> Iterator[None]:
    """Netron sets logging up where nobody has; a handler that does nothing is enough to keep it from that."""
    nothing = logging.NullHandler()
    logging.getLogger().addHandler(nothing)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(nothing)
