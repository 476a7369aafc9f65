"""Scratch folders are removed at the end, or by the next process after a kill."""

import os
import stat
import subprocess
import sys
import tempfile

import pytest

from filch.steal import Scratch
from filch.steal.files import _scratch


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return an empty folder in which temporary folders are created."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _scratch.remove_leftovers.cache_clear()
    return tmp_path


def _leave_one(place):
    """Return the folder of a process that was killed."""
    code = "import os, runpy, sys; print(runpy.run_path(sys.argv[1])['Scratch']().path.parent, flush=True); os.abort()"
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", code, _scratch.__file__], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def test_a_scratch_folder_is_private_and_is_removed(place):
    """With all its contents."""
    with Scratch() as folder:
        (folder / "weights").write_bytes(b"secret")
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700

    assert not list(place.iterdir())


def test_the_folder_of_a_killed_process_is_removed_by_the_next(place):
    """Folders in use, folders of other programs and targets of links are kept."""
    (place / "precious").mkdir()
    (place / "filch-link").symlink_to("precious")
    (place / "filch-other").mkdir()
    used = Scratch()
    left = _leave_one(place)
    assert os.path.exists(left)  # noqa: PTH110  a str

    _scratch.remove_leftovers.cache_clear()
    with Scratch():
        assert not os.path.exists(left)  # noqa: PTH110
        assert used.path.is_dir()
        assert {"precious", "filch-link", "filch-other"} <= set(os.listdir(place))
    used.remove()
