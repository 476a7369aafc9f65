"""Copies and checksums of memory, which detect changes without a new version."""

import os

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from filch.steal import recover, restore, steal_forward
from filch.steal.dump import _format
from filch.steal.values import _sharing
from filch.steal.values._raw import checksum, copy
from support.models.small import module_of
from support.processes.forked import run_python
from support.thorough import slow

SIZES = [1, 1000, 2**14, 2**14 + 11, 2**20, 2**20 + 1, 5 * 2**20 + 4099]
WORD, PIECE = 8, 4096
MIB = 2**20


def _of(memory):
    return checksum(memory.data_ptr(), memory.nbytes)


def _random(size):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_copy_copies_exactly_the_given_bytes(size, offset):
    """From and to any address."""
    source, target = _random(size + 8), torch.zeros(size + 16, dtype=torch.uint8)

    copy(target.data_ptr() + 3, source.data_ptr() + offset, size)

    assert torch.equal(target[3 : 3 + size], source[offset : offset + size])
    assert not target[:3].any()
    assert not target[3 + size :].any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0, 1, 5])
def test_a_checksum_does_not_depend_on_the_address(size, offset):
    """Only on the bytes."""
    memory = _random(size + 8)
    moved = memory[offset : offset + size].clone()

    assert checksum(memory.data_ptr() + offset, size) == _of(moved)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", [0, 0.5, 1])
@pytest.mark.parametrize("bit", [1, 128])
def test_a_checksum_depends_on_each_bit(size, place, bit):
    """The highest bit of a word is the hardest case for a sum of products."""
    memory = _random(size)
    before = _of(memory)

    memory[int(place * (size - 1))] ^= bit

    assert _of(memory) != before


@pytest.mark.parametrize("size", [size for size in SIZES if size > 2 * PIECE])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.roll(WORD),
        lambda x: x.roll(PIECE),
        lambda x: torch.cat([x[PIECE : 2 * PIECE], x[:PIECE], x[2 * PIECE :]]),
        lambda x: x.flip(0),
        lambda x: x.index_add(0, torch.tensor([7, PIECE + 7]), torch.full((2,), 128, dtype=torch.uint8)),
    ],
    ids=["a word on", "a piece on", "two pieces", "backwards", "two signs"],
)
def test_a_checksum_depends_on_the_order_of_blocks(size, change):
    """Above 1 MiB it covers sums of 4 KiB blocks, their order, and the order of sampled words."""
    memory = _random(size)

    assert _of(change(memory)) != _of(memory)


@pytest.mark.parametrize("write", [lambda x: x.data.view(-1)[-1:].add_(1), lambda x: x.numpy().put(-1, 7.0)])
def test_a_large_tensor_changed_without_a_new_version_is_stored_again(write):
    """One of a million elements changes."""

    class Writes(nn.Module):
        def forward(self, x):
            write(x)
            return x

    module = Writes()
    with steal_forward(("m", module)) as capture:
        module(torch.zeros(2**20))

    assert not capture["m", 0, "I"][0][0].any()
    assert capture["m", 0, "O"][-1] > 0


class _Functions(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


class _Dispatches(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


@slow
@pytest.mark.parametrize("mode", [_Functions, _Dispatches])
@pytest.mark.parametrize(
    "options",
    [
        {"dump_file": "dump.onnx"}, {"gradients": True}, {"parameters": True}, {"statistics_only": True},
        {"operators": True}, {"watch": "nonfinite"},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_modes_see_only_operations_of_the_model(mode, options, tmp_path, monkeypatch):
    """Also with tensors of 4 MiB, which are copied and summed by torch's threads."""
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU())
    x = torch.randn(1024, 1024, requires_grad=True)

    def seen(*, steals):
        found = []
        with mode(found):
            if steals:
                with steal_forward(model, include="*", **options):
                    model(x).sum().backward()
            else:
                model(x).sum().backward()
        model.zero_grad()
        x.grad = None
        return [str(function) for function in found]

    assert seen(steals=True) == seen(steals=False)


def test_large_inference_tensors_are_recorded():
    """They have no version counter, so each occurrence is stored."""
    model = nn.Sequential(nn.ReLU(), nn.Identity())
    with torch.inference_mode(), steal_forward(model, include="*") as capture:
        given = model(torch.arange(MIB, dtype=torch.float32) - 9)

    assert torch.equal(capture["1", 0, "O"], given)
    assert capture.totals.shared == 0


def test_a_model_over_the_protobuf_limit_keeps_the_records_that_fit(tmp_path, monkeypatch):
    """Such as a million names of a thousand letters: the capture says so, and the first records can be read."""
    path, module = tmp_path / "dump.onnx", nn.ReLU()
    with monkeypatch.context() as patch:
        patch.setattr(_format, "MAX_MODEL_SIZE", 20_000)
        with steal_forward(("m", module), dump_file=path) as capture:
            for number in range(400):
                module(torch.full((3,), float(number)))

    assert "at most 20,000 can be read" in str(capture.error)
    kept = restore(path)
    assert 0 < len(kept) < 800
    assert kept["m", 0, "O"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "transformed",
    [torch.func.functionalize, torch.func.grad, lambda call: lambda x: torch.func.vjp(call, x)[0]],
    ids=["functionalize", "grad", "vjp"],
)
@pytest.mark.parametrize("file", [None, "dump.onnx"])
def test_large_tensors_inside_torch_func_are_copied_unchanged(transformed, file, tmp_path):
    """Torch would apply the transformation to our copies."""
    # Returns its input, and has a large constant outside of any transformation.
    model = module_of(lambda self, x: self.inner(self.constant).sum() * x.sum(), constant=torch.ones(2**19))
    model.inner = nn.Identity()
    with steal_forward(("inner", model.inner), dump_file=file and tmp_path / file, strict=True) as capture:
        transformed(model)(torch.randn(3))

    assert torch.equal(capture["inner", 0, "O"], torch.ones(2**19))
    assert torch.equal(capture["inner", 0, "I"][0][0], torch.ones(2**19))


FORKS = """
import os, signal, torch
from torch import nn
from filch.steal import steal_forward
module = nn.Identity()
with steal_forward(("m", module)):
    module(torch.empty(3 * 2**20).detach())
if os.fork() == 0:
    signal.alarm(20)
    torch.ones(3 * 2**20) + 1
    os._exit(0)
print(os.wait()[1])
"""


def test_a_forked_process_does_not_wait_for_torch_threads():
    """The threads exist only in the parent."""
    assert run_python("-c", FORKS).stdout.strip() == "0"


def test_a_storage_that_shrank_is_not_read_beyond_its_end(monkeypatch):
    """Its version is unchanged, but the stored tensor was longer."""
    base, module = torch.ones(2**22, dtype=torch.uint8), nn.Identity()
    rest = base[: 2**20]

    def checked(address, nbytes):
        assert nbytes <= base.untyped_storage().nbytes()
        return checksum(address, nbytes)

    monkeypatch.setattr(_sharing, "checksum", checked)
    with steal_forward(("m", module), strict=True) as capture:
        module(base)
        base.untyped_storage().resize_(2**20)
        module(rest)

    assert torch.equal(capture["m", 1, "O"], torch.ones(2**20, dtype=torch.uint8))


@pytest.mark.parametrize("size", [2**13, 2**16, 2**18])
def test_a_conjugate_without_a_new_version_is_stored_again(size):
    """All signs of the imaginary parts change, the hardest case for a sum of products."""

    class Conjugates(nn.Module):
        def forward(self, x):
            x.data.conj_physical_()
            return x

    module, x = Conjugates(), torch.randn(size, dtype=torch.complex128)
    wanted = x.conj().resolve_conj()
    with steal_forward(("m", module)) as capture:
        module(x)

    assert torch.equal(capture["m", 0, "O"], wanted)


def test_a_dump_path_that_is_not_unicode_is_refused_at_the_end(tmp_path):
    """The model contains the name of its data file."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.onnx")
    module = nn.Identity()
    with steal_forward(("m", module), dump_file=path) as capture:
        module(torch.ones(2**24))

    assert "can't encode" in str(capture.error) or "surrogates not allowed" in str(capture.error)
    assert list(recover(path, tmp_path / "other.onnx")) == [("m", 0, "I"), ("m", 0, "O")]
