"""Scratch folders are removed at the end, or by the next process after a kill."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from filch.steal.files import _scratch
from filch.steal.files._scratch import Scratch


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


def test_a_folder_that_filch_did_not_make_is_kept(place):
    """Whatever is in it: no lock, an empty one, another's, or that of a folder that was copied or renamed."""
    for name in ("filch-nightly", "filch-data", "filch-link"):
        (place / name).mkdir()
        (place / name / "results.txt").write_text("the only copy")
    (place / "filch-nightly" / "lock").touch()
    left = Path(_leave_one(place))
    (place / "filch-data" / "lock").write_bytes((left / "lock").read_bytes())
    shutil.copytree(left, place / "filch-copy")
    (place / "filch-link" / "lock").symlink_to(left / "lock")
    left.rename(place / "filch-kept")

    _scratch.remove_leftovers.cache_clear()
    with Scratch():
        pass

    assert {file.name for file in place.iterdir()} == {
        "filch-copy",
        "filch-data",
        "filch-kept",
        "filch-link",
        "filch-nightly",
    }
    assert (place / "filch-nightly" / "results.txt").read_text() == "the only copy"
