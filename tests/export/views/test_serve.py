"""Serving a file in Netron's viewer: in the background, to this machine alone, and over when it is said."""

import http.client
import socket
import sys
import threading

import pytest

from filch.export import ViewError
from filch.export.views import serve
from support.views.pictures import fused_graph, save_with_note


@pytest.fixture
def path(tmp_path):
    """A file that Netron opens, among others."""
    (tmp_path / "secret.txt").write_text("secret")
    return save_with_note(fused_graph(), "netron", tmp_path / "<b>g.netron")[0]


@pytest.fixture
def served(path):
    """The file, served by the package itself."""
    pytest.importorskip("netron", reason="the package netron is not installed")
    with serve(path) as running:
        yield running


def asked(url, target="/", method="GET", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request(method, target, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_the_page_and_the_file_are_served_until_the_block_ends(path):
    """On a port that is free, which the address names; then it is free again."""
    pytest.importorskip("netron", reason="the package netron is not installed")
    with serve(path) as served:
        _, _, page = asked(served.url)
        assert asked(served.url, "/data/%3Cb%3Eg.netron")[2] == path.read_bytes()
        assert asked(served.url, "/view.js")[0] == 200
    assert b'content="/data/%3Cb%3Eg.netron"' in page and b"<b>g" not in page
    served.stop()  # again: nothing happens
    port = int(served.url.rpartition(":")[2])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("/", "evil.example"),
        ("/data/%3Cb%3Eg.netron", "evil.example:{port}"),
        ("/", "localhost:1"),
        ("/", "localhost"),
        ("/", ""),
    ],
)
def test_a_name_that_is_not_this_machines_gets_nothing(served, target, host):
    """A page elsewhere may let its own name lead here, and would read what is served (DNS rebinding)."""
    port = served.url.rpartition(":")[2]

    status, _, body = asked(served.url, target, Host=host.format(port=port))

    assert status == 421 and b"netron" not in body.lower()
    assert asked(served.url, Host=f"LOCALHOST:{port}")[0] == asked(served.url, Host=f"[::1]:{port}")[0] == 200


@pytest.mark.parametrize(
    "target",
    [
        *("/data/secret.txt", "/data/", "/data/../secret.txt", "/data/%2e%2e/secret.txt", "/data//etc/passwd"),
        *("/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/server.py", "/data/%3Cb%3Eg.netron/", "//x/data"),
    ],
)
def test_nothing_but_the_file_and_the_viewer_is_served(served, target):
    """Neither what stands beside the file, nor what a path leads to."""
    assert asked(served.url, target)[0] == 404


def test_only_reading_is_answered_and_the_page_may_load_nothing_else(served):
    """A policy that lets the viewer talk to this server alone; a body only where it is asked for."""
    status, headers, body = asked(served.url, method="HEAD")
    policy = headers["Content-Security-Policy"]

    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 1000
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "connect-src 'self';" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert {asked(served.url, method=method)[0] for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE")} == {501}


def test_what_is_served_can_be_waited_for(path, monkeypatch):
    """Until somebody stops it, a client that is slow or not; Ctrl-C does so cleanly."""
    pytest.importorskip("netron", reason="the package netron is not installed")
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    served = serve(path, browse=True)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"GET / HT")
        threading.Timer(0.1, served.stop).start()
        served.wait()
    assert opened == [served.url]

    def interrupted(self, timeout=None):
        monkeypatch.undo()
        raise KeyboardInterrupt

    again = serve(path)
    monkeypatch.setattr("threading.Thread.join", interrupted)
    again.wait()
    with pytest.raises(OSError, match="refused"):
        asked(again.url)


def test_without_the_package_one_sentence_says_how_to_get_it(path, monkeypatch):
    """It is no dependency."""
    monkeypatch.setitem(sys.modules, "netron", None)

    with pytest.raises(ViewError, match=r"serving '.*g\.netron' needs the package netron: pip install netron"):
        serve(path)


def test_a_file_that_is_not_there_is_not_served(tmp_path):
    """A browser would ask for it, later."""
    with pytest.raises(ViewError, match=r"there is no file '.*none\.onnx' to serve"):
        serve(tmp_path / "none.onnx")


def test_a_port_that_is_taken_is_one_sentence(path, served):
    """As is one that there is not."""
    for port in (int(served.url.rpartition(":")[2]), 70_000):
        with pytest.raises(ViewError, match=rf"can't serve '.*g\.netron' on port {port}: .*(in use|port must be)"):
            serve(path, port=port)
