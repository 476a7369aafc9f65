"""Captures that are killed, drafts of which `recover` makes a dump, and several processes that use one path."""

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx.parser
import pytest
import torch
from torch import nn

from filch.steal import DumpError, NotADumpError, recover, restore, steal_forward
from filch.steal.dump._dump import _open
from support.processes import kills as kills_script
from support.processes.forked import run_python
from support.thorough import slow

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


KILLS = 100


@pytest.fixture(scope="module")
def kills(tmp_path_factory):
    base = tmp_path_factory.mktemp("kills")
    script = Path(kills_script.__file__)
    done = run_python(script, base, KILLS, 0)
    assert done.returncode == 0, done.stderr
    return [(base, json.loads(line)) for line in done.stdout.splitlines()]


def _left_of(folder):
    """Return the dump or the recovered dump, and which of the two it is."""
    path = folder / "dump.onnx"
    if path.exists():
        return restore(path), "finished"
    try:
        return recover(path), "recovered"
    except DumpError as error:
        assert "nothing to recover" in str(error)  # noqa: PT017  one of two valid outcomes
        return {}, "nothing"


@slow
def test_all_complete_records_survive_a_kill(kills):
    """Killed during the run, inside the writer's system calls, and between the steps of publishing the dump."""
    outcomes = set()
    for base, kill in kills:
        dump, outcome = _left_of(base / kill["folder"])
        outcomes.add((kill["place"], outcome))

        assert len(dump) >= kill["reported"], kill
        assert list(dump) == [("m", index // 2, "IO"[index % 2]) for index in range(len(dump))]
        for key, found in dump.items():
            tensor = found[0][0] if key.kind == "I" else found
            assert torch.equal(tensor, kills_script.value(key.iteration)), (kill, key)

    assert len(kills) == KILLS
    assert {("run", "recovered"), ("write", "recovered"), ("publish", "recovered"), ("publish", "finished")} <= outcomes


@slow
def test_nothing_but_the_dump_is_left_after_a_recovery(kills):
    """No draft files, and no unused data file."""
    for base, kill in kills:
        dump, outcome = _left_of(base / kill["folder"])
        if outcome == "recovered":
            names = sorted(path.name for path in (base / kill["folder"]).iterdir())
            assert names in (["dump.onnx"], ["dump.onnx", "dump.onnx.data"])
            assert len(dump) == len(restore(base / kill["folder"] / "dump.onnx"))


WRITERS = """
import os, sys, torch
import filch.steal.dump._format as form
from filch.steal import steal_forward
form.INLINE_LIMIT = int(sys.argv[2])
other = os.fork()
module = torch.nn.Identity()
for turn in range(40):
    with steal_forward(("m", module), dump_file=sys.argv[1]):
        for index in range(8):
            module(torch.full((1000 + index,), 1.0 if other else 2.0))
if not other:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def _whole(path):
    """Return the value of all tensors in the dump, each of which has its own length."""
    dump = restore(path)
    found = [dump["m", index, "O"] for index in range(8)]
    assert [len(tensor) for tensor in found] == [1000 + index for index in range(8)]
    numbers = {number for tensor in found for number in tensor.tolist()}
    assert len(numbers) == 1
    return numbers.pop()


@pytest.mark.parametrize("limit", [0, 2**30], ids=["external", "inline"])
def test_two_processes_writing_one_path_leave_one_complete_dump(tmp_path, limit):
    """The last one to finish wins, and a reader finds one of the two dumps at any time."""
    path = tmp_path / "dump.onnx"
    seen = []
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(run_python, "-c", WRITERS, path, limit)
        while not writing.done():
            if path.exists():
                seen.append(_whole(path))
            else:
                time.sleep(0.001)

    assert writing.result().returncode == 0, writing.result().stderr
    assert _whole(path) in (1, 2)
    assert {1.0, 2.0} >= set(seen)
    assert len(seen) > 10
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []
    assert len(os.listdir(tmp_path)) == (1 if limit else 2)


@pytest.mark.parametrize("failing", [True, False], ids=["while its data is missing", "with its data in place"])
def test_a_dump_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch, failing):
    """Two later dumps: the second has the first one's data file and index, but for the order of its names."""
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    modules = nn.ModuleDict({"a": nn.Identity(), "b": nn.Identity()})
    path = tmp_path / "dump.onnx"

    def write(names):
        with steal_forward(modules, submodules=True, dump_file=path):
            for name in names:
                modules[name](torch.full((3,), float(ord(name))))

    def replaced(file, contents):
        monkeypatch.setattr("filch.steal.dump._dump._open", _open)
        write("ab")  # its data file has another name, and the first one's is removed
        if not failing:
            write("ba")
            return _open(file, contents)
        try:
            return _open(file, contents)
        finally:
            write("ab")

    write("ab")
    monkeypatch.setattr("filch.steal.dump._dump._open", replaced)

    dump = restore(path)

    assert {name: dump[name, 0, "O"][0].item() for name in modules} == {"a": ord("a"), "b": ord("b")}


def test_a_dump_that_is_replaced_all_the_time_is_an_error(tmp_path, monkeypatch):
    """After a number of attempts."""
    path = tmp_path / "dump.onnx"
    versions = itertools.count()

    def replaced(_):
        with steal_forward((f"m{next(versions)}", nn.Identity()), dump_file=path):
            pass
        return next(versions)

    replaced(path)
    monkeypatch.setattr("filch.steal.dump._dump._version_of", replaced)
    with pytest.raises(DumpError, match=r"dump.onnx' was replaced by other dumps 10 times while it was read"):
        restore(path)


def test_a_file_that_is_only_touched_meanwhile_is_read(tmp_path, monkeypatch):
    """As by a tool that synchronizes folders; what is wrong with a file is said as of any other one."""
    with steal_forward(("m", nn.Identity()), dump_file=tmp_path / "dump.onnx"):
        pass
    model, bad = tmp_path / "model.onnx", tmp_path / "bad.onnx"
    onnx.save(onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 17]> g () => () { }'), model)
    bad.write_bytes(b"text")
    versions = itertools.count()
    monkeypatch.setattr("filch.steal.dump._dump._version_of", lambda _: next(versions))

    assert restore(tmp_path / "dump.onnx").modules.keys() == {"m"}
    with pytest.raises(NotADumpError):
        restore(model)
    with pytest.raises(DumpError, match="is not an ONNX file"):
        restore(bad)


def test_a_running_capture_is_not_recovered(tmp_path):
    """Neither in its process nor in another; reading the missing dump says that the capture still runs."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module(torch.ones(3))
        with pytest.raises(DumpError, match="still runs; recover it only after it has ended"):
            recover(tmp_path / "dump.onnx")
        with pytest.raises(DumpError, match=r"there is no file '.*dump.onnx': a capture to it still runs"):
            restore(tmp_path / "dump.onnx")

    assert restore(tmp_path / "dump.onnx")["m", 0, "O"].tolist() == [1, 1, 1]
    with pytest.raises(
        DumpError, match=r"there is nothing to recover of '.*dump.onnx': no capture to it was interrupted"
    ):
        recover(tmp_path / "dump.onnx")


CUT_SHORT = """
import os, sys, torch
from filch.steal import steal_forward
module = torch.nn.Identity()
with steal_forward(("m", module), dump_file=sys.argv[1]) as capture:
    for index in range(3):
        module(torch.full((4,), float(index)))
    capture.flush()
    os._exit(1)
"""


def test_reading_the_dump_of_an_interrupted_capture_says_how_to_recover_it(tmp_path):
    """A dump that existed before is kept, so recovery needs another name."""
    path = tmp_path / "dump.onnx"
    run_python("-c", CUT_SHORT, path)

    with pytest.raises(DumpError, match=r"there is no file '.*': a capture to it was interrupted: `filch recover .*`"):
        restore(path)
    assert recover(path)["m", 2, "O"].tolist() == [2] * 4

    run_python("-c", CUT_SHORT, path)
    with pytest.raises(DumpError, match="exists already; name another file"):
        recover(path)
    with pytest.raises(DumpError, match=r"can't recover '.*dump.onnx' to another folder: '.*other.onnx'"):
        recover(path, tmp_path.parent / "other.onnx")
    assert len(recover(path, tmp_path / "other.onnx")) == 6
    assert len(restore(path)) == 6
    assert sorted(os.listdir(tmp_path)) == ["dump.onnx", "other.onnx"]


def test_a_forked_process_does_not_record(tmp_path):
    """It has the hooks but not the writer thread; its calls are not recorded, and it ends."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx", buffer=2**14) as capture:
        module(torch.ones(2))
        child = multiprocessing.get_context("fork").Process(target=_run, args=(module,))
        child.start()
        child.join(20)
        module(torch.full((2,), 2.0))

    assert child.exitcode == 0
    assert restore(tmp_path / "dump.onnx")["m", 1, "O"].tolist() == [2, 2]
    assert len(capture) == 4


def _run(module):
    for _ in range(100):
        module(torch.ones(1000))
