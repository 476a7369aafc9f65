"""Everything but regular files inside the folder, and whatever costs too much, is refused."""

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from filch.steal.files._budget import LimitError
from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import open_companion, open_untrusted, parse_json, read_untrusted


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a file, beside a folder with a secret."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "weights").write_bytes(b"weights")
    (tmp_path / "out" / "secret").write_bytes(b"secret")
    return tmp_path / "in"


def _error_of_opening(make, *args, **options):
    with pytest.raises(OSError) as caught, make(*args, **options):  # noqa: PT011  the reason is what is tested
        pass
    assert "\n" not in caught.value.strerror
    return caught.value.strerror


def test_a_file_is_opened(folder):
    """Also through a link."""
    (folder / "link").symlink_to("weights")

    for name in ("weights", "link"):
        with open_untrusted(folder / name) as file:
            assert file.read() == b"weights"
        assert read_untrusted(folder / name, budget_of("report")) == b"weights"


def test_everything_but_regular_files_is_refused_without_waiting(folder):
    """FIFOs, sockets, devices, folders, missing files, and links to these."""
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(folder)  # a socket's path may have a hundred characters
        listening.bind("socket")
        os.chdir(here)
    for name, target in (("link", "fifo"), ("endless", "/dev/zero"), ("circle", "circle")):
        (folder / name).symlink_to(target)

    assert _error_of_opening(open_untrusted, folder / "fifo") == "it is a FIFO, not a regular file"
    assert _error_of_opening(open_untrusted, folder / "link") == "it is a FIFO, not a regular file"
    assert _error_of_opening(open_untrusted, folder / "socket") == "it is a socket, not a regular file"
    assert _error_of_opening(open_untrusted, folder / "endless") == "it is a device, not a regular file"
    assert _error_of_opening(open_untrusted, folder) == "Is a directory"
    assert _error_of_opening(open_untrusted, folder / "none") == "No such file or directory"
    assert _error_of_opening(open_untrusted, folder / "circle") == "Too many levels of symbolic links"
    assert _error_of_opening(open_untrusted, folder / "endless", follow=False) == "it is a link"
    assert "embedded null" in _error_of_opening(open_untrusted, "a\0b")


def test_a_file_larger_than_the_limit_is_not_read(folder):
    """Neither is a file with more contents than its size."""
    with (folder / "large").open("wb") as file:
        file.truncate(2**40)

    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, and at most 100 are read"):
        read_untrusted(folder / "large", budget_of("report", size=100))
    if Path("/proc/self/status").exists():
        with pytest.raises(OSError, match="it grows while it is read"):
            read_untrusted("/proc/self/status", budget_of("report"))


def test_a_companion_in_the_folder_is_opened(folder):
    """Also in a subfolder, and through a link inside the folder."""
    (folder / "sub").mkdir()
    (folder / "sub" / "more").write_bytes(b"more")
    (folder / "link").symlink_to("sub/more")

    for name, contents in (("weights", b"weights"), ("sub/more", b"more"), ("./link", b"more")):
        with open_companion(folder / "program.onnx", name) as file:
            assert file.read() == contents


@pytest.mark.parametrize(
    "name", ["../out/secret", "/etc/passwd", "", ".", "..", "sub/../../out/secret", "..\\out\\secret", "~", "a\0b"]
)
def test_a_companion_outside_of_the_folder_is_refused(folder, name):
    """An absolute path, a path with `..`, and an invalid name."""
    assert _error_of_opening(open_companion, folder / "program.onnx", name)


def test_a_companion_that_links_out_of_the_folder_is_refused(folder):
    """By a link, a folder that is a link, or a hard link."""
    (folder / "link").symlink_to("../out/secret")
    (folder / "sub").symlink_to("../out")
    os.link(folder.parent / "out" / "secret", folder / "hard")

    assert _error_of_opening(open_companion, folder / "x", "link") == "'link' is a link out of the folder"
    assert _error_of_opening(open_companion, folder / "x", "sub/secret") == "'sub/secret' is a link out of the folder"
    assert (
        _error_of_opening(open_companion, folder / "x", "hard")
        == "'hard' is a hard link: the file has another name elsewhere"
    )


def test_json_is_parsed():
    """From str and from UTF-8 bytes."""
    assert (
        parse_json('{"a": [1, 2.5, null, "é"]}')
        == parse_json('{"a": [1, 2.5, null, "é"]}'.encode())
        == {"a": [1, 2.5, None, "é"]}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "it is nested too deep"),
        ('{"a":' * 100_000, "it is nested too deep"),
        ("1" * 5000, "a number in it has too many digits"),
        ("NaN", "NaN is not JSON"),
        ("[1,", "Expecting value"),
        (b"\xff", "can't decode byte 0xff"),
        ("[" + "{}," * 2**20 + "{}]", "it would take about .* MB of memory, and the limit is 100 MB"),
    ],
    ids=["lists", "objects", "digits", "constant", "cut", "bytes", "large"],
)
def test_invalid_and_too_large_json_raises_a_value_error(text, message):
    """With the reason, and before memory is allocated."""
    with pytest.raises(ValueError, match=message):
        parse_json(text, memory=100 * 2**20)


def test_bytes_items_and_depth_are_counted():
    """Over several files, if they share a budget; what fits is not refused."""
    budget = budget_of("report", size=10, items=3, depth=2)
    budget.take_bytes(6)
    budget.take_items(3)
    budget.check_depth(2)
    with pytest.raises(LimitError, match="it has 11 bytes, and at most 10 are read"):
        budget.take_bytes(5)
    with pytest.raises(LimitError, match="it has more than 3 lines"):
        budget.take_items(what="lines")
    with pytest.raises(LimitError, match="it is nested more than 2 deep"):
        budget.check_depth(3)


def test_steps_are_counted_over_all_blocks():
    """The same work takes the same number; an error of the block is raised as it is."""
    budget = budget_of("report", steps=1000)
    for _ in range(2):
        with budget.watched("sorting"):
            sorted(range(100), key=lambda number: -number)
    with pytest.raises(KeyError), budget.watched("looking"):
        raise KeyError
    with pytest.raises(LimitError, match="takes more than 1,000 steps or 120 seconds"), budget.watched("sorting"):
        sorted(range(1000), key=lambda number: -number)
    assert sys.getprofile() is None


def test_a_block_that_catches_all_exceptions_is_left():
    """Libraries have an `except Exception` for what they expect."""

    def stubborn():
        while True:
            with contextlib.suppress(Exception):
                len(())

    with pytest.raises(LimitError), budget_of("report", steps=100).watched("waiting"):
        stubborn()


def test_seconds_are_the_last_bound():
    """Of code that takes few steps for much time."""

    def slow():
        while True:
            time.monotonic()

    with pytest.raises(LimitError, match=r"or 0\.01 seconds"), budget_of("report", seconds=0.01).watched("waiting"):
        slow()


def test_a_profiler_that_is_active_goes_on():
    """Python has one per thread; then nothing is counted."""
    calls = []
    sys.setprofile(lambda *event: calls.append(event[1]))
    try:
        with budget_of("report", steps=1).watched("sorting"):
            sorted(range(9), key=lambda number: -number)
    finally:
        sys.setprofile(None)
    assert len(calls) > 9
