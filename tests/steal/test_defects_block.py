"""A block keeps nothing alive, leaves nothing behind, and gets in nobody's way: D18 to D22 (see `test_defects.py`)."""

import functools
import gc
import threading
import time
import weakref

import pytest
import torch
from torch import nn

from filch.steal import DumpError, FilchError, is_stealing, restore, steal_forward


class Marker:
    """Lives as long as the node of the graph that holds it."""


class Step(torch.autograd.Function):
    """Doubles, and leaves a marker in the graph that autograd builds."""

    alive = weakref.WeakSet()  # noqa: RUF012  of all of them

    @staticmethod
    def forward(ctx, x):
        ctx.marker = Marker()
        Step.alive.add(ctx.marker)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Stepping(nn.Module):
    def forward(self, x):
        return Step.apply(x)


@pytest.mark.parametrize("options", [{}, {"gradients": True}], ids=["", "gradients"])
def test_d18_no_step_of_a_training_is_kept_alive_by_a_capture(steal, options):
    """What autograd built for a step is gone after it, while the block is still open."""
    model = nn.Sequential(nn.Linear(8, 8), Stepping(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    counts = []

    def train():
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).mean()
            counts.append(len(Step.alive))
            loss.backward()
            optimizer.step()
            del loss
        gc.collect()
        counts.append(len(Step.alive))

    steal(("m", model), train, submodules=True, **options)

    assert counts[0] == 1
    assert counts[-1] == 0


def test_d18_gradients_are_recorded_of_outputs_and_inputs(steal):
    """For each call its own, though one backward pass goes through both."""
    module, x = nn.Linear(3, 3, bias=False), torch.randn(2, 3, requires_grad=True)
    passed = []

    def run():
        first = module(x)
        second = module(first)
        passed.extend([first.detach(), second.detach()])
        second.pow(2).sum().backward()

    records = steal(("m", module), run, gradients=True)

    weight, last = module.weight.detach(), 2 * passed[1]
    torch.testing.assert_close(records["m", 1, "GO"], last)
    torch.testing.assert_close(records["m", 1, "GI"], ((last @ weight,), {}))
    torch.testing.assert_close(records["m", 0, "GO"], last @ weight)
    torch.testing.assert_close(records["m", 0, "GI"], ((x.grad,), {}))
    assert {key.kind for key in records} == {"I", "O", "GO", "GI"}


def test_d18_gradients_are_nested_as_the_values_are(steal):
    """Of keyword arguments and of a dictionary of outputs too."""

    class Nested(nn.Module):
        def forward(self, x, *, scale):
            return {"a": x * scale, "b": [x * 3]}

    module, x, scale = Nested(), torch.ones(2, requires_grad=True), torch.full((2,), 5.0, requires_grad=True)

    def run():
        found = module(x, scale=scale)
        (found["a"].sum() + 2 * found["b"][0].sum()).backward()

    records = steal(("m", module), run, gradients=True)

    (of_x,), of_keywords = records["m", 0, "GI"]
    assert of_x.tolist() == [11, 11]
    assert of_keywords["scale"].tolist() == [1, 1]
    assert records["m", 0, "GO"]["a"].tolist() == [1, 1]
    assert records["m", 0, "GO"]["b"][0].tolist() == [2, 2]


@pytest.mark.parametrize("wrong", ["not a module", 5, [("m", 5)], []])
def test_d19_a_refused_block_leaves_nothing_behind(wrong):
    """The next one begins as if there had been none."""
    module = nn.Identity()

    with pytest.raises(FilchError), steal_forward(wrong):
        pytest.fail("the block was entered")

    assert not is_stealing()
    with steal_forward(("m", module)) as capture:
        module(torch.ones(1))
    assert len(capture) == 2


def test_d19_a_forward_may_be_any_callable(steal):
    """One that is a `functools.partial` is stolen like others, below another module too."""

    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.forward = functools.partial(self.scaled, scale=2)

        def scaled(self, x, scale):
            return x * scale

    model = nn.Sequential(Partial())

    records = steal(("m", model), lambda: model(torch.ones(1)), submodules=True)

    assert records["m.0", 0, "O"].item() == 2
    assert not is_stealing()


def test_d20_blocks_nest():
    """On one model and on another, each block with its own records."""
    a, b = nn.Identity(), nn.Identity()

    with steal_forward(("a", a)) as outer, steal_forward([("a", a), ("b", b)]) as inner:
        b(a(torch.ones(1)))

    assert list(outer) == [("a", 0, "I"), ("a", 0, "O")]
    assert [key.name for key in inner if key.kind == "O"] == ["a", "b"]
    assert not is_stealing()


def test_d20_two_threads_steal_from_two_models_at_once(tmp_path):
    """Each has its own block, open while the other's is."""
    barrier, errors = threading.Barrier(2), []

    def run(index):
        module, path = nn.Identity(), tmp_path / f"{index}.onnx"
        try:
            with steal_forward(("m", module), dump_file=path):
                barrier.wait(timeout=20)
                module(torch.full((1,), float(index)))
                barrier.wait(timeout=20)
        except Exception as error:  # noqa: BLE001  looked at below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not errors
    for index in range(2):
        dump = restore(tmp_path / f"{index}.onnx")
        assert len(dump) == 2
        assert dump["m", 0, "O"].item() == index


SIZES = pytest.mark.parametrize("size", [2**10, 9 * 2**20], ids=["small", "36 MiB"])


@SIZES
@pytest.mark.parametrize("place", ["x.onnx.data", "sub/x.onnx.data"])
def test_d21_a_file_that_is_not_ours_is_left_alone(tmp_path, monkeypatch, size, place):
    """In the working directory and beside the dump, though it is called as our data would be."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / place).write_text("precious")
    module = nn.Identity()

    for value in range(2):
        with steal_forward(("m", module), dump_file="sub/x.onnx"):
            module(torch.full((size,), float(value)))
        assert restore("sub/x.onnx")["m", 0, "O"][-1] == value

    assert (tmp_path / place).read_text() == "precious"


@SIZES
def test_d21_dumping_again_does_not_grow(tmp_path, size):
    """The folder holds one dump, of the size that it had."""
    module, sizes = nn.Identity(), []

    for value in range(3):
        with steal_forward(("m", module), dump_file=tmp_path / "x.onnx"):
            module(torch.full((size,), float(value)))
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))

    assert max(sizes) - min(sizes) < 100
    assert restore(tmp_path / "x.onnx")["m", 0, "O"][-1] == 2


def test_d21_a_folder_that_is_missing_is_reported_before_the_run(tmp_path):
    """Nothing was computed for nothing."""
    with (
        pytest.raises(DumpError, match=r"nodir/x\.onnx"),
        steal_forward(nn.Identity(), dump_file=tmp_path / "nodir/x.onnx"),
    ):
        pytest.fail("the block was entered")


def test_d22_nothing_is_printed_unless_asked(steal, capfd):
    """Not a byte, with values left out too."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    steal(("m", model), lambda: model(torch.ones(1, 2)), submodules=True, storage_limit=4)

    assert capfd.readouterr() == ("", "")


@torch.no_grad()
def test_d22_stealing_costs_little_more_than_hooks_that_clone(steal):
    """At most five times as long as the plainest hooks on a model of small layers.

    The benchmarks measure it; this is to notice what is slower by an order of magnitude. The best of many runs counts,
    and the best of five trials.
    """
    model, x = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)]).eval(), torch.randn(1, 64)

    def best(runs=60):
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start)
        return min(times)

    def cloning():
        kept = []
        handles = [
            module.register_forward_hook(lambda _, args, output: kept.append((args[0].clone(), output.clone())))
            for module in model.modules()
        ]
        found = best()
        for handle in handles:
            handle.remove()
        return found

    def stealing():
        found = []
        steal(model, lambda: found.append(best()), submodules=True)
        return found[0]

    assert any(stealing() < 5 * cloning() for _ in range(5))
