"""Serving a file with the package `netron`: in the background, and over when it is said."""

import logging
import socket
import sys
import urllib.request
from types import SimpleNamespace

import pytest
from pictures import fused_graph

from filch.export import ViewError
from filch.export.views import save, serve


@pytest.fixture
def path(tmp_path):
    """A file that Netron opens."""
    return save(fused_graph(), "netron", tmp_path / "g.netron")[0]


@pytest.fixture
def fake(monkeypatch):
    """Stands for the package; it takes a moment to stop."""
    calls, going = [], []

    def start(file, address=None, browse=True):
        calls.append(("start", file, address, browse))
        going.extend([1, 1, 1])
        return address[0], address[1] or 8123

    module = SimpleNamespace(start=start, stop=lambda address: calls.append(("stop", address)), calls=calls)
    module.status = lambda address: bool(going and going.pop())
    monkeypatch.setitem(sys.modules, "netron", module)
    return module


def test_a_file_is_served_until_the_block_ends(path, fake):
    """On this machine alone, on a port that is free; no browser opens unasked."""
    with serve(path) as served:
        assert served.url == "http://localhost:8123"
        assert fake.calls == [("start", str(path), ("localhost", None), False)]
    assert fake.calls[1:] == [("stop", ("localhost", 8123))]
    assert fake.status(None) is False


def test_what_is_served_can_be_waited_for(path, fake, monkeypatch):
    """Until somebody stops it; Ctrl-C does so cleanly."""
    served = serve(path, port=9000, browse=True)
    served.wait()
    assert fake.calls == [("start", str(path), ("localhost", 9000), True)]

    def interrupted(seconds):
        raise KeyboardInterrupt

    again = serve(path, port=9000)
    with monkeypatch.context() as patched:
        patched.setattr("time.sleep", interrupted)
        fake.stop = lambda address: patched.undo()
        again.wait()
    assert fake.status(None) is False


def test_without_the_package_one_sentence_says_how_to_get_it(path, monkeypatch):
    """It is no dependency."""
    monkeypatch.setitem(sys.modules, "netron", None)

    with pytest.raises(ViewError, match=r"serving '.*g\.netron' needs the package netron: pip install netron"):
        serve(path)


def test_a_file_that_is_not_there_is_not_served(tmp_path):
    """Netron itself would be asked for it by a browser, later."""
    with pytest.raises(ViewError, match=r"there is no file '.*none\.onnx' to serve"):
        serve(tmp_path / "none.onnx")


def test_what_netron_refuses_is_one_sentence(path, fake):
    """A port that is taken, for one."""

    def refuse(file, address=None, browse=True):
        raise OSError(98, "Address already in use")

    fake.start = refuse

    with pytest.raises(
        ViewError, match=r"netron can't serve '.*g\.netron': OSError: \[Errno 98\] Address already in use"
    ):
        serve(path, port=1)


def test_the_package_itself_serves_the_page_and_the_file(path):
    """Over HTTP; the logging of the program around it stays as it was, and the port is free again."""
    pytest.importorskip("netron", reason="the package netron is not installed")
    handlers = list(logging.getLogger().handlers)

    with serve(path) as served:
        with urllib.request.urlopen(served.url) as answer:  # noqa: S310  its own address
            page = answer.read()
        with urllib.request.urlopen(f"{served.url}/data/g.netron") as answer:  # noqa: S310  as above
            assert answer.read() == path.read_bytes()

    assert b"g.netron" in page
    assert logging.getLogger().handlers == handlers
    port = int(served.url.rpartition(":")[2])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("localhost", port))
