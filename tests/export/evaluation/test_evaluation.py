"""Exported programs that PyTorch evaluates: in float64, block by block, and on other devices."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from filch.compare.runs._evaluation import Float64Evaluator
from filch.export import export
from filch.export.backends import get_backend
from filch.export.evaluation import _blockwise
from filch.export.evaluation._devices import module_on, program_on
from filch.export.evaluation._eager import placeholder_values, walk_eager
from support.models.small import module_of

DOUBLE = torch.float64


class Casts(nn.Module):
    """Contains casts, typed constants, division of integers, and a branch with a cast."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("steps", torch.arange(8))

    def forward(self, x, mask):
        third = self.steps / 3
        y = self.linear(x.to(torch.float16).to(x.dtype) if x.dtype == torch.float16 else x) + third
        y = y.to(torch.float32) * torch.full((8,), 0.5, dtype=torch.float32)
        y = torch.where(mask, y, torch.zeros((), dtype=torch.float32))
        return torch.cond(mask.any(), self.one, self.other, (y,))

    @staticmethod
    def one(y):
        return y.float().exp().to(torch.float32)

    @staticmethod
    def other(y):
        return y.sin()


def test_every_floating_point_value_is_float64_and_no_integer_changes():
    """The result equals the formula computed in float64 with the float32 weights."""
    torch.manual_seed(0)
    model, x, mask = Casts().eval(), torch.randn(4, 8), torch.rand(4, 8) < 0.8
    program = export(model, (x, mask))
    original = program.original
    assert original is not None
    inputs = dict(zip(program.graph.inputs, (x, mask), strict=True))

    run = Float64Evaluator(program).of(inputs, original.names, keep=False)
    found = {name: run.get(name) for name in original.names}
    values = {name: item.value for name, item in found.items() if item is not None}

    assert values.keys() == {*original.names}

    assert {value.dtype for value in values.values()} <= {DOUBLE, torch.int64, torch.bool}
    linear = x.to(DOUBLE) @ model.linear.weight.to(DOUBLE).T + model.linear.bias.to(DOUBLE)
    y = torch.where(mask, (linear + torch.arange(8).to(DOUBLE) / 3) * 0.5, 0.0)
    last = values[program.graph.outputs[0]]
    torch.testing.assert_close(last, y.exp(), rtol=1e-14, atol=1e-14)
    assert torch.get_default_dtype() == torch.float32


def test_a_node_is_computed_from_given_values():
    """Nodes between it and the given values run, too; `read` can change the values that it reads."""
    program = export(nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid()), (torch.ones(2),))
    assert program.original is not None
    relu, tanh, sigmoid = program.original.names
    inputs, two = {program.graph.inputs[0]: torch.ones(2)}, torch.tensor([2.0, 2.0])
    values = Float64Evaluator(program).isolated(inputs, {relu: two}.get)

    alone, further = values.get(tanh), values.get(sigmoid)
    changed = program.original.float64.compute(
        tanh, inputs, {relu: two}, lambda name, value, _start: value * 3 if name == relu else value
    )

    assert alone is not None and further is not None
    assert alone.value.tolist() == two.to(DOUBLE).tanh().tolist()
    assert further.value.tolist() == two.to(DOUBLE).tanh().sigmoid().tolist()
    assert changed.tolist() == torch.tensor([6.0, 6.0], dtype=DOUBLE).tanh().tolist()


def test_one_node_of_the_graph_is_computed_in_float64():
    """The ONNX reference evaluator computes it."""
    program = export(nn.LayerNorm(4), (torch.ones(2, 4),))
    assert program.original is not None
    node = program.original.graph.nodes[-1]
    x = torch.randn(2, 4, dtype=DOUBLE)
    reads = {
        name: x if name not in program.original.graph.constants else program.original.constant(name)
        for name in node.reads
    }

    (result,) = program.original.evaluate(node.name, {name: value.to(DOUBLE) for name, value in reads.items()}).values()

    assert result.dtype == DOUBLE
    torch.testing.assert_close(result, nn.functional.layer_norm(x, (4,)), rtol=1e-12, atol=1e-12)


WORDS, WIDTH = 1030, 65  # neither a multiple of the rows of a block, nor of the numbers of noise


def own_model(dtype):
    """A table that is read at some places and multiplied by, as a language model does."""
    return module_of(
        lambda self, ids: self.head(torch.tanh(self.table(ids))).softmax(-1),
        table=nn.Embedding(WORDS, WIDTH, padding_idx=3, dtype=dtype),
        head=nn.Linear(WIDTH, WORDS, dtype=dtype),
    )


def subject(dtype):
    """Return the program and its input."""
    torch.manual_seed(0)
    ids = torch.tensor([[3, 0, WORDS - 1, 5], [5, 5, 512, 513]])
    return export(own_model(dtype).eval(), (ids,)), ids


def float64_values(program, ids):
    """Return the exact and the noisy float64 value of each node."""
    assert program.original is not None
    names = program.original.names
    values = Float64Evaluator(program).of({"ids": ids}, names, keep=True)
    found = {name: values.get(name) for name in names}
    return {name: (value.value, value.noisy) for name, value in found.items() if value is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_give_the_values_and_the_noise_of_the_whole_weight(dtype, monkeypatch):
    """Each number of a weight gets the same noise, so that only the order of the sums differs."""
    program, ids = subject(dtype)
    whole = float64_values(program, ids)
    monkeypatch.setattr(_blockwise, "_LARGE", 0)
    monkeypatch.setattr(_blockwise, "_BLOCK", 7 * WIDTH)

    blocks = float64_values(program, ids)

    assert blocks.keys() == whole.keys() >= {"embedding", "linear"}
    for name, (exact, noisy) in blocks.items():
        torch.testing.assert_close(exact, whole[name][0], rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(noisy, whole[name][1], rtol=1e-13, atol=1e-15)
    assert not torch.equal(*blocks["embedding"])


def test_a_large_weight_is_never_read_whole(monkeypatch):
    """Nothing of its size is converted to float64."""
    program, ids = subject(torch.float32)
    monkeypatch.setattr(_blockwise, "_LARGE", 0)
    monkeypatch.setattr(_blockwise, "_BLOCK", 7 * WIDTH)
    sizes: list[int] = []

    def read(_name, value, _start):
        sizes.append(value.numel() if value.is_floating_point() else 0)
        return value

    assert program.original is not None
    values = {}
    for name in program.original.names:
        values[name] = program.original.float64.compute(name, {"ids": ids}, values, read)

    assert max(sizes) <= max(7 * WIDTH, 8 * WORDS)  # a block, or the result


def test_an_empty_index_gives_an_empty_result(monkeypatch):
    """No row of the table is read."""
    monkeypatch.setattr(_blockwise, "_LARGE", 0)
    program = export(own_model(torch.float32).eval(), (torch.empty(1, 0, dtype=torch.int64),))

    exact, _ = float64_values(program, torch.empty(1, 0, dtype=torch.int64))["embedding"]

    assert (exact.shape, exact.dtype) == ((1, 0, WIDTH), torch.float64)


META, CPU = torch.device("meta"), torch.device("cpu")


class Positions(nn.Module):
    """Creates tensors, for which the export writes down the device of the model, and casts to a device."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.register_buffer("mask", torch.ones(3, 3).tril())
        self.table = torch.arange(12.0).reshape(3, 4)

    def forward(self, x):
        rows = torch.arange(x.shape[0], device=x.device)
        gone = torch.zeros(3, 4, device=x.device).to(x.device, torch.float32)
        return self.mask @ (self.embedding(rows) + x + gone) + torch.full((3, 4), 2.0) + self.table


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    model, x = Positions().eval(), torch.randn(3, 4)
    return x, export(model, (x,))


def test_everything_runs_on_the_device(case):
    """Weights, constants and created tensors; without the move, the devices are mixed."""
    x, program = case
    original = program.original.program
    name = next(iter(program.graph.inputs))

    moved = program_on(original, META)

    assert {value.device for _, value in walk_eager(moved, {name: x.to("meta")})} == {META}
    arguments = [item.to("meta") for item in placeholder_values(original, {name: x})]
    module_on(original.graph_module, META)(*arguments)
    with pytest.raises(RuntimeError, match="device"):
        original.graph_module(*arguments)


class Renamed(nn.Module):
    """Its input is called like a builtin, which a copied graph renames."""

    def forward(self, input):  # noqa: A002  as in torch's own modules
        return input + torch.ones(3, 4)


def test_names_are_kept():
    """Those of inputs and outputs are what a backend is given, and returns."""
    original = export(Renamed().eval(), (torch.randn(3, 4),)).original.program
    names = [node.name for node in original.graph.nodes]
    assert "input" in names or "input_1" in names
    assert [node.name for node in module_on(original.graph_module, META).graph.nodes] == names


def test_a_value_is_released_if_the_last_node_that_reads_it_does_not_run():
    """Nothing that is wanted needs the sum."""

    def forward(_, x):
        y = x.exp()
        z = y + 1
        return y.sum(), z * 2

    program = torch.export.export(module_of(forward), (torch.ones(4),))
    alive = {}

    def replaced(name, tensor):
        copied = tensor.clone()
        alive[name] = weakref.ref(copied)
        return copied

    walk = walk_eager(program, {"x": torch.ones(4)}, wanted={"exp", "mul"}, replace=replaced)
    assert [(name, [item() for item in alive.values()]) for name, _ in walk] == [("exp", []), ("mul", [None])]


def test_branches_are_moved():
    """They are graphs of their own."""
    # Creates tensors in the branches of a condition.
    model = module_of(
        lambda self, x: torch.cond(x.sum() > 0, lambda y: y + torch.ones(3, 4), lambda y: y - torch.ones(3, 4), (x,))
    )
    original = export(model.eval(), (torch.randn(3, 4),)).original.program
    moved = program_on(original, META)
    for program, device in ((original, CPU), (moved, META)):
        parts = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
        devices = [node.kwargs.get("device") for part in parts for node in part.graph.nodes]
        assert len(parts) == 3
        assert {*devices} - {None} == {device}


def test_a_branch_of_two_names_is_copied_before_it_is_moved():
    """The module that has it under both stays where it is."""
    branch = torch.fx.symbolic_trace(module_of(lambda self, x: x * self.scale, scale=torch.ones(2)))
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("first"), graph.get_attr("second")))
    module = torch.fx.GraphModule({"first": branch, "second": branch}, graph)

    moved = module_on(module, META)

    assert [part.scale.device for part in (moved.first, moved.second, branch)] == [META, META, CPU]


def test_the_program_itself_stays_where_it_is(case):
    """It is not changed, and one that is on the device already is not copied."""
    original = case[1].original.program
    program_on(original, META)

    assert program_on(original, CPU) is original
    tensors = [*original.state_dict.values(), *original.constants.values()]
    tensors += [node.meta["val"] for node in original.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert {tensor.device for tensor in tensors} == {CPU}


@pytest.mark.parametrize("name", ["eager", "inductor"])
def test_backends_compile_for_their_device(case, name, monkeypatch):
    """Not for the one that the export wrote down."""
    _, program = case
    backend = get_backend("eager", device="meta")
    if name == "eager":
        graph = backend.compile(program, optimize=False).handle.graph_module
    else:
        from filch.export.backends.inductor import _backend

        tasks = []

        def stop(task, options):
            tasks.append(task)
            raise InterruptedError

        monkeypatch.setattr(_backend, "KernelGraphs", stop)
        with pytest.raises(InterruptedError):
            _backend.InductorBackend(device="meta").compile(program, optimize=True)
        graph = tasks[0].module
    named = [node.kwargs["device"] for node in graph.graph.nodes if node.kwargs.get("device") is not None]
    assert named and {*named} == {META}
