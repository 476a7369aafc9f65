"""Files for users are written whole or not at all, and scratch folders are removed."""

import errno
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from filch.steal import DumpError, FilchError, add_properties, restore, steal_forward, writing
from filch.steal.files import _scratch
from filch.steal.files._outputs import new_files, refuse_foreign, write_output, write_problem
from filch.steal.files._scratch import Scratch


@pytest.fixture
def full_disk():
    """Limit each file that this process writes to 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("former", [None, "the former one"])
def test_a_file_that_can_not_be_written_whole_stays_as_it_was(tmp_path, full_disk, former):
    """Nothing else is left behind."""
    file = tmp_path / "report.json"
    if former:
        file.write_text(former)

    with pytest.raises(OSError, match="File too large"):
        write_output(file, "x" * 10_000)

    assert [path.read_text() for path in tmp_path.iterdir()] == ([former] if former else [])


def test_a_file_is_replaced_with_its_permissions(tmp_path):
    """A link in the folder stays a link, and a device is written to."""
    (tmp_path / "report.json").write_text("former")
    (tmp_path / "report.json").chmod(0o640)
    (tmp_path / "link.json").symlink_to("report.json")

    write_output(tmp_path / "link.json", "new")
    write_output(os.devnull, "new")

    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "report.json").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_a_new_file_has_the_permissions_that_the_user_wants(tmp_path):
    """Those of the umask, as if it had been opened."""
    write_output(tmp_path / "report.json", "new")
    (tmp_path / "other").touch()

    assert (tmp_path / "report.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_an_error_for_want_of_room_names_the_disk(tmp_path):
    """With what is free on it; any other reason stays alone."""
    room = r"No space left on device: [\d,]+ bytes are free on the disk of '/.*'"
    place = tmp_path / "new" / "report.json"

    with pytest.raises(FilchError, match=rf"^can't write '{re.escape(str(place))}': {room}$"), writing(place):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DumpError, match=r"can't write '.*report\.json': Permission denied$"), writing(place, DumpError):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    assert re.fullmatch(room, write_problem(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None))


def test_properties_that_do_not_fit_leave_a_dump_as_it_was(tmp_path, full_disk):
    """A part of them would make it unreadable."""
    with steal_forward(torch.nn.Identity(), dump_file=tmp_path / "dump.onnx"):
        pass
    before = (tmp_path / "dump.onnx").read_bytes()

    with pytest.raises(DumpError, match=r"can't write '.*dump\.onnx': File too large"):
        add_properties(tmp_path / "dump.onnx", {"filch.long": "x" * 10_000})

    assert (tmp_path / "dump.onnx").read_bytes() == before
    assert not restore(tmp_path / "dump.onnx").properties


@pytest.mark.parametrize("there", [["README.md"], ["model.onnx"], ["README.md", "model.onnx"]])
def test_a_folder_with_files_of_others_is_refused(tmp_path, there):
    """One that Filch has written before is written again."""
    names, mark = ["README.md", "model.onnx"], ("README.md", "Filch wrote this")
    (tmp_path / "notes.txt").write_text("of the user")
    refuse_foreign(tmp_path, names, mark)
    refuse_foreign(tmp_path / "new", names, mark)

    for name in there:
        (tmp_path / name).write_text("of the user")
    with pytest.raises(OSError, match=rf"it has a file '{there[0]}' that Filch did not write: name another folder"):
        refuse_foreign(tmp_path, names, mark)

    (tmp_path / "README.md").write_text("Filch wrote this")
    refuse_foreign(tmp_path, names, mark)


def test_files_are_moved_to_their_folder_together(tmp_path):
    """The one that names the others last; files of others stay."""
    (tmp_path / "notes.txt").write_text("of the user")
    (tmp_path / "a").write_text("former")

    with new_files(tmp_path, last="a") as folder:
        (folder / "a").write_text("new")
        (folder / "b").write_text("new")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a": "new",
        "b": "new",
        "notes.txt": "of the user",
    }


def test_of_files_that_do_not_fit_none_is_left(tmp_path, full_disk):
    """Nor the folder for them; a folder that was there stays, with its former files."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").write_text("former")

    def write(folder):
        with writing(folder), new_files(folder) as new:
            write_output(new / "a", "new")
            write_output(new / "b", "x" * 10_000)

    for folder in (tmp_path / "there", tmp_path / "new" / "deep"):
        with pytest.raises(FilchError, match=r"can't write '.*': File too large"):
            write(folder)

    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert [path.read_text() for path in (tmp_path / "there").iterdir()] == ["former"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    """`-o /dev/null` would replace the device."""
    os.mkfifo(tmp_path / "b")

    def write():
        with new_files(tmp_path) as new:
            (new / "a").touch()
            (new / "b").touch()

    with pytest.raises(OSError, match="'b' exists and is not a file"):
        write()

    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").is_fifo()


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
