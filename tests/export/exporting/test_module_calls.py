"""The calls of a model's modules in its program, and the names of the modules."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.compare import align, compare
from filch.export import Program, export, optimize
from filch.export.graph._nodes import split_call
from filch.steal import restore, steal_forward
from support.models.module_calls import measure
from support.models.small import module_of
from support.models.zoo import MODELS
from support.thorough import slow
from support.versions import is_pinned

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence.md"


@slow
@pytest.mark.parametrize("name", MODELS)
def test_every_module_call_of_an_architecture_is_resolved_and_none_is_wrong(name):
    """An output is exact, an alias or dead; after optimization, a removed one names the node it went into."""
    line = measure(name)

    rows = [row for row in line.report.modules if row.side == "output"]
    assert {row.resolution for row in line.report.modules} <= {"exact", "alias", "dead"}
    assert sum(row.resolution in ("exact", "alias") for row in rows) + sum(
        row.note == "nothing uses it" for row in rows
    ) == len(rows)
    assert all(row.difference is not None for row in rows if row.resolution != "dead")
    wrong = [f"{row}: {row.difference}" for row in line.report.modules if row.difference and not row.difference.close]
    assert not wrong
    assert line.worst <= 1e-5
    assert line.report.close and line.report.undisturbed
    assert line.optimized_report.close and line.optimized_report.undisturbed
    assert all(row.judged for row in line.report.rows if row.kind == "output")

    gone = [row for row in line.optimized_report.modules if row.resolution in ("constant", "fused")]
    assert {row.resolution for row in line.optimized_report.modules} <= {"exact", "alias", "constant", "fused", "dead"}
    nodes = {row.node for row in line.optimized_report.rows if row.stage == "exported"}
    assert all(set(re.split(", ", row.note.rpartition("for ")[2].removeprefix("into "))) <= nodes for row in gone)

    if is_pinned("torch", "transformers"):  # others call or dissolve other modules
        assert line.cells()[:5] + line.cells()[6:] in _table()


def _table():
    """The table in docs/evidence.md, without its column of errors."""
    rows = [line.strip("| ").split(" | ") for line in EVIDENCE.read_text().splitlines() if line.startswith("| ")]
    return [tuple(row[:5] + row[6:]) for row in rows if len(row) == 11]


def twice():
    """A module that is called twice in one forward, beside one that never runs."""

    def forward(self, x, *, scale=2.0, mask=None):
        y = self.linear(x)
        z = self.linear(y * scale)
        return {"y": y, "nothing": None, "pair": (z if mask is None else z * mask, z + 1)}

    return module_of(forward, linear=nn.Linear(4, 4), never=nn.Linear(4, 4))


def captured(model, *args, **kwargs):
    """A capture of one call of a model with all its submodules."""
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    return capture


def test_a_module_used_twice_has_two_calls_with_values_of_their_own():
    """The two calls have different values, and a module that did not run has no call."""
    model, x = twice().eval(), torch.randn(2, 4)

    program = export(model, (x,))

    assert set(program.module_calls) == {("", 0), ("linear", 0), ("linear", 1)}
    first, second = (program.module_calls["linear", index].outputs[0].value for index in (0, 1))
    assert first != second
    assert compare(captured(model, x), program).close


def test_keyword_arguments_dict_outputs_and_none_are_followed():
    """Inputs are identified by parameter, positional or not; outputs by their path in the structure."""
    model, x, mask = twice().eval(), torch.randn(2, 4), torch.ones(4)

    program = export(model, (), {"x": x, "mask": mask})

    assert set(program.inputs.values()) == {"x", "mask"}
    assert [port.path for port in program.module_calls["", 0].outputs] == ["['y']", "['pair'][0]", "['pair'][1]"]
    assert compare(captured(model, x, mask=mask), program).close


class Writer(nn.Module):
    """A module that writes to a dictionary argument."""

    def forward(self, x, store):
        store["kept"] = x + 1
        return x * 2


class Reader(nn.Module):
    """Reads what its submodule has written."""

    def __init__(self):
        super().__init__()
        self.writer = Writer()

    def forward(self, x):
        store = {"kept": x}
        return self.writer(x, store) + store["kept"]


def test_a_module_that_writes_to_its_arguments_is_exported_correctly():
    """torch.export would pass it a copy and lose the write, so its call is matched by value."""
    model, x = Reader().eval(), torch.randn(3)

    program = export(model, (x,))

    assert program.module_calls["writer", 0].outputs[0].note == "matched by value"
    assert compare(captured(model, x), program).close


def test_an_unused_output_is_dead():
    """The note has the reason."""
    # A module with an unused output.
    # Uses the first of two inputs.
    pick = module_of(lambda self, pair: pair[0] * 3)
    model = nn.Sequential(module_of(lambda self, x: (x + 1, self.linear(x)), linear=nn.Linear(3, 3)), pick).eval()

    program = export(model, (torch.randn(3),))

    (port,) = program.module_calls["0.linear", 0].outputs
    assert (port.value, port.resolution, port.note) == (None, "dead", "nothing uses it")


def test_folding_a_batch_norm_into_its_convolution_names_the_convolution():
    """The convolution's own result no longer exists; the port's note names the node that it was fused into."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    program: Program = optimize(export(model, (torch.randn(1, 3, 8, 8),)))

    (port,) = program.module_calls["0", 0].outputs

    (conv,) = [node for node in program.graph.nodes if node.op == "Conv"]
    assert (port.value, port.resolution, port.note) == (None, "fused", f"into {conv.name}")


def test_exporting_does_not_change_the_model():
    """It leaves no hooks and changes neither parameters nor their gradient flags."""
    model = twice().eval()
    before = {name: (parameter.clone(), parameter.requires_grad) for name, parameter in model.named_parameters()}

    export(model, (torch.randn(2, 4),))

    after = dict(model.named_parameters())
    assert all(
        torch.equal(tensor, after[name]) and after[name].requires_grad == flag
        for name, (tensor, flag) in before.items()
    )
    for module in model.modules():
        assert not module._forward_hooks  # noqa: SLF001  nothing public lists a module's hooks
        assert not module._forward_pre_hooks  # noqa: SLF001  likewise


class ViewWriter(nn.Module):
    """Returns a tensor that it fills row by row, or a view of a tensor that it then changes."""

    def __init__(self, *, fills):
        super().__init__()
        self.fills = fills

    def forward(self, x):
        if self.fills:
            y = torch.zeros_like(x)
            for index in range(3):
                y[index] = x[index] * 2
            return y
        y = x * 2
        seen = y.view(-1)
        y += 1
        return seen


@pytest.mark.parametrize("fills", [True, False])
def test_a_write_through_a_view_is_not_mistaken_for_the_value_before_it(*, fills):
    """torch.export's signature has the name of the operation that created the tensor, before the write."""
    model, x = nn.Sequential(ViewWriter(fills=fills), nn.ReLU()).eval(), torch.randn(3, 4)

    program = export(model, (x,))

    assert program.module_calls["0", 0].outputs[0].note == "matched by value"
    assert compare(captured(model, x), program).close


NAMES = ("a@b", "a@1", "a", "@", "a b", "a/b", "a:b#", "日本", "0", "class", 'a"b', "a'b", "[x]", "x" * 300)


class Named(nn.Module):
    """Calls a layer for each name, with a parameter and a buffer of that name, and the layer `a` twice."""

    def __init__(self):
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(4, 4))
            self.register_parameter(f"{name}+", nn.Parameter(torch.rand(4)))
            self.register_buffer(f"{name}*", torch.rand(4))

    def forward(self, **inputs):
        x = inputs["x"] + inputs["y"]
        for name in (*NAMES, "a"):
            x = self._modules[name](x) + self._parameters[f"{name}+"] * self._buffers[f"{name}*"]
        return x


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    return Named().eval(), {"x": torch.rand(2, 4), "y": torch.rand(2, 4)}


def test_values_are_judged_under_the_names_of_their_modules(subject, tmp_path):
    """Also those whose weights torch can't write as code, and those whose names look like a second call."""
    model, inputs = subject
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=tmp_path / "dump.onnx"):
        model(**inputs)

    report = compare(restore(tmp_path / "dump.onnx"), export(model, (), inputs))

    assert report.close and all(row.judged for row in report.rows), str(report)
    assert {*NAMES, ""} <= {row.module for row in report.rows}


def test_weights_and_values_are_aligned(subject):
    """As those of any other module."""
    model, inputs = subject

    assert align(model, model, kwargs=inputs).close


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("a", ("a", 0)), ("a@2", ("a", 2)), ("a@b", ("a@b", 0)), ("@", ("@", 0)), ("a@1@1", ("a@1", 1)),
        ("a@²", ("a@²", 0)),
    ],
)  # fmt: skip
def test_a_call_is_a_module_and_a_number(name, call):
    """What follows the last @, if it is a number."""
    assert split_call(name) == call
