"""Each tensor is stored once, whatever its name, and never replaced by another."""

import os
import threading
import time

import pytest
import torch
from torch import nn

from filch.steal import restore, steal_forward
from support.models.small import module_of


def apply(function):
    """Returns the result of a function of its input."""
    return module_of(lambda self, x: self.function(x), function=function)


@pytest.fixture(params=["memory", "dump"])
def run_captured(request, tmp_path):
    """Run modules in sequence; return the capture and the outputs."""

    def run(x, *functions):
        model = nn.Sequential(*map(apply, functions))
        file = tmp_path / "dump.onnx" if request.param == "dump" else None
        with steal_forward(model, include="*", dump_file=file) as capture:
            model(x)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < capture.totals.nbytes + 2**16
        return (restore(file) if file else capture), capture.totals

    return run


def test_an_output_that_is_the_next_input_is_stored_once(run_captured):
    """Both records refer to the same tensor."""
    found, totals = run_captured(torch.ones(1000), lambda x: x + 1, lambda x: x * 2)

    assert totals.nbytes == 3 * 4000
    assert found["0", 0, "O"].tolist() == found["1", 0, "I"][0][0].tolist() == [2] * 1000


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[100:300], lambda x: x.view(-1), lambda x: x.unsqueeze(0), lambda x: x.view(torch.int32),
        lambda x: (x, x[0:500], x[500:]), lambda x: x.expand(3, 1000),
    ],
    ids=["slice", "flat", "unsqueezed", "other dtype", "several", "expanded"],
)  # fmt: skip
def test_a_view_of_a_stored_tensor_takes_no_space(run_captured, view, differ):
    """It is restored with its own shape and dtype."""
    x = torch.randn(1000)

    found, totals = run_captured(x, view)

    assert totals.nbytes == 4000
    assert differ(found["0", 0, "O"], view(x)) is None


def test_an_unchanged_weight_is_stored_once(run_captured):
    """Over several calls."""
    weight = nn.Parameter(torch.ones(1000))

    found, totals = run_captured(torch.zeros(1), lambda _: weight, lambda _: weight)

    assert totals.nbytes == 4 + 4000
    assert isinstance(found["1", 0, "O"], nn.Parameter)


CHANGES = {
    "in place": lambda x: x.mul_(2),
    "data": lambda x: x.data.mul_(2),
    "numpy": lambda x: x.numpy().__imul__(2),
    "through a view": lambda x: x.detach()[-600:].mul_(2),
    "past the counter, 512 bytes": lambda x: x.data[300:428].fill_(7),
    "past the counter, one number": lambda x: x.data[3:4].fill_(7),
    "past the counter, another order": lambda x: x.data.copy_(x.flip(0)),
    "past the counter, the sign": lambda x: x.data.neg_(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_tensor_is_stored_again(run_captured, how, size, dtype):
    """Whether torch's version counter shows the change or not."""
    x = torch.arange(1, size + 1, dtype=dtype)
    before = x.clone()

    def changed(y):
        CHANGES[how](y)
        return y

    found, _ = run_captured(x, lambda y: y, changed)

    assert torch.equal(found["0", 0, "O"], before)
    assert torch.equal(found["1", 0, "I"][0][0], before)
    assert torch.equal(found["1", 0, "O"], x)
    assert not torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("size", [128, 4000])
def test_a_conjugate_view_is_stored_separately(run_captured, dtype, size):
    """It has the same memory and version as its base."""
    found, _ = run_captured(torch.randn(size, dtype=dtype), lambda z: z.conj(), lambda z: z.imag)

    first = found["0", 0, "I"][0][0]
    assert torch.equal(found["0", 0, "O"], first.conj())
    assert torch.equal(found["1", 0, "O"], -first.imag)


def test_a_tensor_in_reused_memory_is_stored(run_captured):
    """The memory of a freed tensor may be reused at the same address."""
    functions = [lambda x, index=index: torch.full((1000,), float(index)) for index in range(50)]

    found, _ = run_captured(torch.zeros(1), *functions)

    assert [found[str(index), 0, "O"][0].item() for index in range(50)] == list(range(50))


def test_inference_tensors_are_stored_each_time(run_captured):
    """They have no version counter that would show changes."""
    with torch.inference_mode():
        found, _ = run_captured(torch.ones(100), lambda x: x.mul_(2), lambda x: x.mul_(2))

    assert [found[name, 0, "O"][0].item() for name in "01"] == [2, 4]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_only_the_new_part_of_a_growing_tensor_is_stored(tmp_path, dim, differ):
    """Such as a cache that grows in each call; each call's tensor is restored, inside the block and after it."""
    shape = [2, 3, 4, 8]
    steps = [torch.randn([1 if index == dim else size for index, size in enumerate(shape)]) for _ in range(40)]
    caches = [torch.cat(steps[: index + 20], dim) for index in range(20)]
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        for cache in caches:
            module(cache)

    dump = restore(tmp_path / "dump.onnx")
    for index, cache in enumerate(caches):
        assert differ(dump["m", index, "O"], cache) is None
        assert differ(capture["m", index, "I"][0][0], cache) is None
    # The first two are stored whole: only then it is known that the tensor grows.
    assert capture.totals.nbytes == caches[1].nbytes + caches[0].nbytes + sum(step.nbytes for step in steps[21:39])
    assert dump.nbytes(("m", 19, "O")) == caches[19].nbytes


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.complex64])
def test_a_growing_tensor_with_changed_signs_is_stored_whole(kind, differ):
    """Signs of float64 are the hardest case for a checksum."""
    cache, caches = torch.randn(1, 4, 8, 32, dtype=kind), []
    for _ in range(6):
        caches.append(cache)
        cache = torch.cat([-cache.resolve_conj(), torch.randn(1, 4, 1, 32, dtype=kind)], 2)
    module = nn.Identity()

    with steal_forward(("m", module)) as capture:
        for each in caches:
            module(each)

    assert all(differ(capture["m", index, "O"], each) is None for index, each in enumerate(caches))


@pytest.mark.parametrize("fault", ["first", "last", "order", "shorter", "dtype"])
def test_a_growing_tensor_with_changes_is_stored_whole(fault, differ):
    """Changed is one element, the order, or the dtype of the previous part."""
    tokens = torch.randn(1, 2, 30, 16)
    caches = [tokens[:, :, : 10 + index].contiguous() for index in range(6)]
    caches[4] = {
        "first": lambda x: x.index_fill(2, torch.tensor([0]), 7.0),
        "last": lambda x: x.index_fill(2, torch.tensor([12]), 7.0),
        "order": lambda x: x.flip(0, 1),
        "shorter": lambda x: x[:, :, :5].contiguous(),
        "dtype": lambda x: x.double(),
    }[fault](caches[4])
    module = nn.Identity()

    with steal_forward(("m", module)) as capture:
        for cache in caches:
            module(cache)

    for index, cache in enumerate(caches):
        assert differ(capture["m", index, "O"], cache) is None


def test_the_model_waits_for_a_slow_disk(tmp_path, monkeypatch):
    """Memory is limited to the buffer, and the time is in `totals.waited`."""
    write = os.pwrite

    def slowly(file, view, place):
        time.sleep(0.03)  # 0.6 s in total, more than the model takes on a busy machine
        return write(file, view, place)

    monkeypatch.setattr(os, "pwrite", slowly)
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx", buffer=2 * 2**20) as capture:
        for index in range(20):
            module(torch.full((2**18,), float(index)))

    assert capture.totals.waited > 0.05
    assert [restore(tmp_path / "dump.onnx")["m", index, "O"][-1].item() for index in range(20)] == list(range(20))


def test_a_capture_on_disk_can_be_read_while_it_is_written(tmp_path):
    """Including the latest record."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        for index in range(5):
            module(torch.full((3,), float(index)))
            assert capture["m", index, "O"].tolist() == [index] * 3
            assert capture.flush() == len(capture) == 2 * (index + 1)

    assert not any(thread.name == "filch-writer" for thread in threading.enumerate())


def test_the_total_limit_counts_only_the_new_part_of_a_growing_tensor():
    """Tensors beyond the limit are skipped."""
    tokens = torch.randn(1, 2, 60, 16)
    module = nn.Identity()

    with steal_forward(("m", module), total_limit=tokens[:, :, :50].nbytes * 1.5) as capture:
        for length in range(20, 60):
            module(tokens[:, :, :length].contiguous())

    kept = [isinstance(capture["m", index, "O"], torch.Tensor) for index in range(40)]
    assert kept.index(False) == 2 + 75 - (20 + 21)  # the first two whole, then one token each
    assert not any(kept[kept.index(False) :])
