"""Several processes that use one path find a complete dump there, or none."""

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from filch.steal import DumpError, recover, restore, steal_forward
from support.processes.forked import run_python

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
