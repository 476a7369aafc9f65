"""What a dump contains, whatever the values are and however the run ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.steal import Skipped, restore, steal_forward
from support.models.small import module_of
from support.thorough import slow

pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning")


class Opaque:
    """An object that can't be stored."""


ODD = {
    "string": lambda: "eager",
    "set": lambda: {1, 2},
    "dictionary with numbers as keys": lambda: {0: torch.zeros(1), 1: torch.ones(1)},
    "integer of more than 64 bits": lambda: 2**70,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(2, device="meta"),
    **{name: lambda name=name: torch.tensor([1, 2, 3]).to(getattr(torch, name))
       for name in ("uint16", "uint32", "uint64")},
    "object": Opaque,
}  # fmt: skip


MAY_BE_SKIPPED = {"set", "sparse", "sparse rows", "meta", "object"}


@pytest.mark.parametrize("name", ODD)
def test_unusual_values_do_not_affect_the_dump_or_the_users_exception(tmp_path, differ, comparable, name):
    """The block ends with the user's exception, and the dump contains all records before it."""
    # Returns its only argument, or all arguments.
    model = module_of(lambda self, *args, **kwargs: args[0] if len(args) == 1 and not kwargs else (args, kwargs))
    module, value, path, error = model, ODD[name](), tmp_path / "dump.onnx", RuntimeError("the user's own")

    with pytest.raises(RuntimeError) as caught, steal_forward(("m", module), dump_file=path):  # noqa: PT012
        module(torch.ones(1))
        module(torch.ones(1), mode=value)
        raise error

    assert caught.value is error
    assert error.__context__ is None
    dump = restore(path)
    assert list(dump) == [("m", step, kind) for step in range(2) for kind in "IO"]
    assert dump["m", 0, "O"].item() == 1
    (beside,), kwargs = dump["m", 1, "I"]
    assert beside.item() == 1
    if name in MAY_BE_SKIPPED and isinstance(kwargs["mode"], Skipped):
        assert kwargs["mode"].reason
    else:
        assert differ(comparable(kwargs["mode"]), comparable(value)) is None


def _resident():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc to ask for the memory in use")
def test_restoring_a_dump_reads_no_tensor(tmp_path):
    """128 MiB stay on disk; accessing a record reads only its tensors."""
    module, path = nn.Identity(), tmp_path / "dump.onnx"
    with steal_forward(("m", module), dump_file=path):
        for value in range(8):
            module(torch.full((2**22,), float(value)))
    before = _resident()

    dump = restore(path)
    opened = _resident() - before
    total = dump["m", 3, "O"].sum().item()
    read = _resident() - before
    path.with_name("dump.onnx.data").unlink(missing_ok=True)

    assert total == 3 * 2**22
    assert opened < 16 * 2**20
    assert read < 64 * 2**20


WITHOUT_RUNTIME = """
import sys
from filch.steal import restore
assert restore(sys.argv[1])["m", 0, "O"].tolist() == [1.5, -2.0]
assert not {"onnxruntime", "onnx.reference"} & set(sys.modules)
"""


@slow
def test_restoring_bfloat16_needs_no_runtime(tmp_path):
    """Neither ONNX Runtime nor the reference evaluator is imported."""
    module, path, value = nn.Identity(), tmp_path / "dump.onnx", torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    with steal_forward(("m", module), dump_file=path):
        module(value)

    subprocess.run([sys.executable, "-c", WITHOUT_RUNTIME, str(path)], check=True)

    found = restore(path)["m", 0, "O"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, value)
