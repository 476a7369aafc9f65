"""`recover` makes a dump of the draft files that a killed capture left."""

import json
import os
import shutil
import signal

import onnx
import pytest
import torch

from filch.steal import DumpError, recover, restore
from support.processes.forked import run_python

KILLED = """
import os, signal, sys, torch
from filch.steal import steal_forward

class Counting(torch.nn.Module):
    count = 0
    def forward(self, x):
        if self.count == 50:
            print(capture.flush(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return x * 2

module = Counting()
with steal_forward(("m", module), dump_file=sys.argv[1]) as capture:
    for step in range(100):
        module(torch.full((64, 64), float(step)))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return the folder of a capture that was killed in its 51st call, and the number of records flushed before."""
    folder = tmp_path_factory.mktemp("killed")
    done = run_python("-c", KILLED, folder / "k.onnx")
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folder, int(done.stdout)


@pytest.mark.parametrize("to", [None, "elsewhere.onnx"])
def test_all_complete_records_of_a_killed_run_are_recovered(tmp_path, killed, to):
    """Under the path of the dump, or under another name."""
    folder, flushed = killed
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "k.onnx"

    recover(path, to=to and path.with_name(to))

    dump = restore(path.with_name(to) if to else path)
    expected = [("m", step, kind) for step in range(50) for kind in "IO"] + [("m", 50, "I")]
    assert flushed == 101
    assert list(dump) == expected
    for step in range(50):
        assert torch.equal(dump["m", step, "I"][0][0], torch.full((64, 64), float(step)))
        assert torch.equal(dump["m", step, "O"], torch.full((64, 64), 2.0 * step))
    onnx.checker.check_model(dump.source, full_check=True)


@pytest.fixture
def drafts(tmp_path, killed):
    """Return a copy of the killed capture's files: the path of the dump, the data and the journal."""
    shutil.copytree(killed[0], tmp_path / "copy")
    path = tmp_path / "copy" / "k.onnx"
    (data,), (journal,) = path.parent.glob(".k.onnx.*.data"), path.parent.glob(".k.onnx.*.journal")
    return path, data, journal


def test_recovery_does_not_write_through_links(tmp_path, drafts):
    """Whoever created the drafts knows the name of the temporary model file."""
    path, _, journal = drafts
    other = tmp_path / "other"
    other.write_text("mine")
    journal.with_suffix(".model").symlink_to(other)
    assert len(recover(path)) == 101
    assert other.read_text() == "mine"
    assert not path.is_symlink()


@pytest.mark.parametrize("kind", ["hard link", "FIFO"])
def test_recovery_refuses_data_that_is_another_file(tmp_path, drafts, kind):
    """It would be truncated to the size of the dump."""
    path, data, _ = drafts
    data.unlink()
    other = tmp_path / "other"
    other.write_bytes(bytes(5_000_000))
    if kind == "FIFO":
        os.mkfifo(data)
    else:
        os.link(other, data)
    with pytest.raises(DumpError, match=r"can't recover .*: .* is (a hard link|a FIFO, not a regular file)"):
        recover(path)
    assert other.stat().st_size == 5_000_000


def test_recovery_accepts_data_that_is_already_linked(drafts):
    """The process may be killed right after the data file got its final name."""
    path, data, _ = drafts
    os.link(data, path.with_name("k.onnx.data"))
    assert len(recover(path)) == 101


def test_recovery_refuses_tensors_that_overlap(drafts):
    """Each would be written separately."""
    path, _, journal = drafts
    header, *rest = journal.read_text().splitlines(keepends=True)
    lines = [json.loads(line) for line in rest]
    entry = next(entry for line in lines for entry in line[0] if entry[6])
    entry[6] = 0  # where the first tensor's bytes are
    journal.write_text(header + "".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(DumpError, match="overlap those of another tensor"):
        recover(path)


def test_recovery_does_not_read_a_journal_that_is_too_large(tmp_path):
    """A sparse file takes no room on the disk; neither its size nor its first line is read beyond the limits."""
    for size, message in (
        (20 * 2**30, "has 21,474,836,480 bytes, and at most 2,147,483,648 are read"),
        (2**29, "has a line of more than 16,777,216 bytes"),
    ):
        for kind in ("journal", "data"):
            (tmp_path / f".s.onnx.00000000.{kind}").write_bytes(b"")
        os.truncate(tmp_path / ".s.onnx.00000000.journal", size)
        with pytest.raises(DumpError, match=f"the journal .* is damaged: it {message}"):
            recover(tmp_path / "s.onnx")
