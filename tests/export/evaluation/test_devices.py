"""Programs that are moved to a device; the device here is `meta`, which refuses tensors of the CPU as a GPU does."""

import pytest
import torch
from torch import nn

from filch.export import export
from filch.export.backends import get_backend
from filch.export.evaluation._devices import module_on, program_on
from filch.export.evaluation._eager import placeholder_values, walk_eager
from support.models.small import module_of

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
