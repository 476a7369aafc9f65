"""Values are compared as they come: however little may be held at a time, the report is the same."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compare, tiny_llm
from filch.export import Original, export
from filch.export.backends import Observes, Stage, get_backend
from filch.steal import steal_forward
from support.models.small import onnx_model
from support.thorough import slow

TINY, HUGE = 1, 2**40  # bytes: each node alone, and all at once


def capture_of(model, *calls, submodules=True):
    """Return a capture of some calls of a model."""
    with torch.no_grad(), steal_forward(model, submodules=submodules) as capture:
        for call in calls:
            model(*call)
    return capture


@pytest.fixture(scope="module")
def program():
    model, (ids,), shapes = tiny_llm(dynamic_shapes=True)
    return export(model, (ids,), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def capture():
    """Return a capture of three calls with different shapes."""
    model, (ids,), _ = tiny_llm(dynamic_shapes=True)
    return capture_of(model, (ids,), (ids[:1, :7],), (ids[:, :3],))


def assert_equal_reports(one, other):
    """Check that rows, module rows and observer effects are equal."""
    for ours, theirs in zip(one.rows, other.rows, strict=True):
        assert replace(ours, seconds=None) == replace(theirs, seconds=None)
    assert one.modules == other.modules
    assert (one.observer_effect, one.notes, one.failed) == (other.observer_effect, other.notes, other.failed)


@slow
def test_the_report_of_a_tiny_buffer_is_that_of_a_huge_one(capture, program):
    """All rows are equal, for both graphs, several calls and several shapes."""
    tiny, huge = (compare(capture, program, buffer=buffer) for buffer in (TINY, HUGE))

    assert_equal_reports(tiny, huge)
    assert tiny.close and tiny.undisturbed
    assert {(row.call, row.stage) for row in tiny.rows} == {
        (call, stage) for call in range(3) for stage in ("exported", "compiled")
    }
    assert {"module", "eager", "derived"} <= {row.evidence for row in tiny.rows}


def test_a_foreign_file_gives_the_same_report(tmp_path):
    """Module tensors can be matched only once all values are known."""
    model, (ids,) = tiny_llm()
    capture = capture_of(model, (ids,))
    made = torch.onnx.export(model, (ids,), dynamo=True, optimize=False, verbose=False)
    made.save(tmp_path / "foreign.onnx")

    tiny, huge = (compare(capture, tmp_path / "foreign.onnx", buffer=buffer) for buffer in (TINY, HUGE))

    assert_equal_reports(tiny, huge)
    assert tiny.close and any(row.resolution == "inferred" for row in tiny.modules)


class Branch(nn.Module):
    """The computation of the branches of `branching`."""

    def forward(self, x):
        h = x * 2
        return (torch.sin(h) if x.sum() > 0 else torch.cos(h)) + h


def branching():
    """Return the same as an ONNX graph whose branches read a value of the outer graph."""
    model = onnx_model("""(float[2, 3] x) => (float[2, 3] y) <float two = {2}, float zero = {0}> {
        h = Mul(x, two) total = ReduceSum<keepdims = 0>(x) positive = Greater(total, zero)
        chosen = If(positive) <
            then_branch = a () => (float[2, 3] t) { t = Sin(h) }, else_branch = b () => (float[2, 3] e) { e = Cos(h) }
        >
        y = Add(chosen, h)
    }""")
    onnx.checker.check_model(model)
    return ir.from_proto(model)


def test_a_graph_with_branches_gives_the_same_report():
    """A branch reads a value that another part computed."""
    x = torch.ones(2, 3)
    capture = capture_of(Branch(), (x,), (-x,))

    tiny, huge = (compare(capture, branching(), buffer=buffer) for buffer in (TINY, HUGE))

    assert_equal_reports(tiny, huge)
    assert tiny.close
    assert all(row.dtype for row in tiny.rows)


class Scale:
    """Weighs tensors for as long as somebody holds them.

    Attributes:
        most: the most bytes that were held at once.
    """

    def __init__(self):
        self.most = 0
        self._held: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def weighing(self, shown):
        """Return the same, with its values measured."""
        for name, value in shown:
            self._held.add(value)
            self.most = max(self.most, sum(one.nbytes for one in self._held))
            yield name, value
            del value


@dataclass
class Watched:
    """ONNX Runtime, with what it shows weighed.

    Attributes:
        faults: by value name, what is added to the value.
        scale: where it is weighed.
    """

    faults: Mapping[str, float] = field(default_factory=dict)
    scale: Scale = field(default_factory=Scale)
    name: str = "watched"
    stages: tuple[Stage, ...] = ("exported", "compiled")

    def compile(self, program, *, optimize):
        return get_backend("onnxruntime-cpu").compile(program, optimize=optimize)

    def run(self, compiled, inputs, watch=()):
        return get_backend("onnxruntime-cpu").run(compiled, inputs, watch)

    def observe(self, compiled, inputs, *, buffer):
        engine = get_backend("onnxruntime-cpu")
        assert isinstance(engine, Observes)
        shown = engine.observe(compiled, inputs, buffer=buffer)
        return self.scale.weighing(
            (name, value + self.faults[name] if name in self.faults else value) for name, value in shown
        )


@cache
def deep(layers):
    """Return a capture and a program with this many layers, each of which computes 64 KiB."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(layers))).eval()
    x = torch.randn(256, 64)
    return capture_of(model, (x,), submodules=False), export(model, (x,))


class Translated(nn.Module):
    """Layers whose operations are translated into several nodes each, by decompositions and by functions."""

    def __init__(self, layers):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))

    def forward(self, x):
        for linear in self.linears:
            h = torch.nn.functional.hardswish(linear(x))
            x = torch.nn.functional.leaky_relu(h) * torch.rsqrt(h.pow(2) + 1) + torch.floor_divide(h, 2.0)
        return x


@cache
def translated(layers):
    """Return the like of `deep`, where most eager values are only needed as inputs of decompositions."""
    model, x = Translated(layers).eval(), torch.randn(256, 64)
    return capture_of(model, (x,), submodules=False), export(model, (x,))


def weigh_computed(patch, scale):
    """Measure the values that eager PyTorch computes for the references."""
    walk = Original.walk
    patch.setattr(Original, "walk", lambda *args, **kwargs: scale.weighing(walk(*args, **kwargs)))


@slow
@pytest.mark.parametrize("made", [deep, translated])
@pytest.mark.parametrize("stages", [("exported",), ("exported", "compiled")])
def test_what_is_held_does_not_grow_with_the_layers(stages, made, monkeypatch):
    """A few values of 64 KiB are live at a time, both of the backend and of eager PyTorch."""
    most = []
    for layers in (3, 12):
        watched, computed = Watched(), Scale()
        with monkeypatch.context() as patch:
            weigh_computed(patch, computed)
            report = compare(*made(layers), backend=watched, stages=stages, buffer=TINY)
        assert report.close and len(report.rows) > 2 * layers
        most.append((watched.scale.most, computed.most))

    assert most[0] == most[1]
    assert max(most[0]) < 5 * 2**16


def test_with_a_large_buffer_references_are_held_for_the_second_graph(monkeypatch):
    """This shows that the test above can fail."""
    computed = Scale()
    with monkeypatch.context() as patch:
        weigh_computed(patch, computed)
        compare(*deep(12), backend=Watched(), buffer=HUGE)

    assert computed.most > 12 * 2**16


@slow
def test_a_fault_is_found_whatever_the_buffer(capture, program):
    """It is found at the same node, in both graphs."""
    value = program.module_calls["decoder.norm_1", 0].outputs[0].value

    tiny, huge = (compare(capture, program, backend=Watched({value: 0.1}), buffer=each) for each in (TINY, HUGE))

    assert tiny.first_divergence is not None and tiny.first_divergence.value == value
    assert not tiny.close and tiny.undisturbed  # what is shown is wrong, not what runs
    assert [row.value for row in tiny.diverged] == [row.value for row in huge.diverged]


def test_large_weights_are_not_held_by_two_sessions(capture, program):
    """The plain session is released before values are observed, and created again on demand."""
    backend = get_backend("onnxruntime-cpu")
    made = backend.compile(program, optimize=True)
    inputs = dict.fromkeys(program.graph.inputs, capture["", 0, "I"][0][0])
    before = backend.run(made, inputs)

    held = [made.handle.running is not None for _ in backend.observe(made, inputs, buffer=TINY)]
    again = backend.run(made, inputs)

    assert not any(held)
    assert made.handle.running is not None
    assert all(torch.equal(before[name], again[name]) for name in before)
