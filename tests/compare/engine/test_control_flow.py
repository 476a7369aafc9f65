"""Graphs with graphs inside: the nodes that run are judged one by one, and a fault inside of one is named."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import AttributeProto, numpy_helper, parser
from onnx_ir import serde
from torch import nn
from torch._higher_order_ops import while_loop

from faults.nodes.compiled import WrongOnnxRuntime
from filch.compare import compare, compare_files, compare_programs
from filch.export import Program
from filch.export.backends import get_backend
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, module_of, recorded

HEAD = '<ir_version: 10, opset_import: ["": 18, "own": 1]>'
FACTOR = 0.5  # stands once in each graph, inside
Tensor = torch.Tensor


def loop(h):
    state, seen = h, []
    for _ in range(3):
        state = torch.tanh(state * FACTOR + h)
        seen.append(state)
    return torch.stack(seen)


LOOP = """
    last, inner = Loop(three, yes, h) <body = step (int64 i, bool on, float[4,3] state)
        => (bool still, float[4,3] next, float[4,3] seen) <float factor = {0.5}> {
            still = Identity(on)
            scaled = Mul(state, factor)
            shifted = Add(scaled, h)
            next = Tanh(shifted)
            seen = Identity(next)
        }>
"""


SCAN = """
    none = Constant <value_floats = [0.0, 0.0, 0.0]> ()
    last, inner = Scan <num_scan_inputs = 1, body = step (float[3] state, float[3] row)
        => (float[3] next, float[3] seen) <float factor = {0.5}> {
            scaled = Mul(row, factor)
            next = Add(state, scaled)
            seen = Identity(next)
        }> (none, h)
"""


IF = """
    total = ReduceSum <keepdims = 0> (h)
    positive = Greater(total, zero)
    inner = If(positive) <
        then_branch = yes_branch () => (float[4,3] a) <float factor = {0.5}> { a = Mul(h, factor) },
        else_branch = no_branch () => (float[4,3] b) { b = Cos(h) }
    >
"""


def function(h):
    return torch.sigmoid(h * FACTOR) * h


FUNCTION = "inner = own.Gate(h)"
GATE = """
<domain: "own", opset_import: ["": 18]>
Gate (h) => (gated) {
    factor = Constant <value = float {0.5}> ()
    scaled = Mul(h, factor)
    open = Sigmoid(scaled)
    gated = Mul(open, h)
}
"""
KINDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "Loop": (loop, LOOP),
    "Scan": (lambda h: torch.cumsum(h * FACTOR, 0), SCAN),
    "If": (lambda h: h * FACTOR if h.sum() > 0 else torch.cos(h), IF),
    "Gate": (function, FUNCTION),
}


def part_module(part):
    """A function as a module, so that its result is captured."""
    return module_of(lambda self, x: self._part(x), _part=part)


@cache
def subject(kind):
    """Return a model of three parts, the second one of this kind, and its ONNX graph."""
    function, text = KINDS[kind]
    model = nn.Sequential(part_module(lambda x: x * 2), part_module(function), part_module(torch.exp))
    capture = capture_of(model, torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), submodules=True)
    rank = "3,4,3" if kind == "Loop" else "4,3"
    held = "<float two = {2.0}, float zero = {0.0}, int64 three = {3}, bool yes = {1}>"
    graph = f"parts (float[4,3] x) => (float[{rank}] y) {held} {{ h = Mul(x, two)\n{text}\ny = Exp(inner) }}"
    made = parser.parse_model(HEAD + graph + (GATE if kind == "Gate" else ""))
    onnx.checker.check_model(made)
    return capture, made


def factors(graph):
    """Yield the places of the factor in a graph and its subgraphs; ONNX Runtime may store it as an attribute."""
    yield from (held for held in getattr(graph, "initializer", ()) if numpy_helper.to_array(held).tolist() == FACTOR)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == attribute.FLOAT and attribute.f == FACTOR:
                yield attribute
            elif attribute.type == attribute.TENSOR and numpy_helper.to_array(attribute.t).tolist() == FACTOR:
                yield attribute.t
            elif attribute.type == attribute.GRAPH:
                yield from factors(attribute.g)


def spoilt(model):
    """Return the same model with the inner factor a tenth too large."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    (factor,) = [held for graph in (found.graph, *found.functions) for held in factors(graph)]
    if isinstance(factor, AttributeProto):
        factor.f *= 1.1
    else:
        factor.CopyFrom(numpy_helper.from_array(np.array(FACTOR * 1.1, np.float32), factor.name))
    return found


@pytest.mark.parametrize("level", ["basic", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_inside_is_judged_by_what_comes_out_of_it(kind, level):
    """Instrumentation changes no output, and the buffer size changes no result."""
    capture, model = subject(kind)
    backend = get_backend("onnxruntime-cpu", level=level)

    tiny, huge = (compare(capture, ir.from_proto(model), backend=backend, buffer=buffer) for buffer in (1, 2**40))

    assert tiny.close and tiny.undisturbed
    assert [replace(row, seconds=None) for row in tiny.rows] == list(huge.rows)
    assert {"h", "inner", "y"} <= {row.value for row in tiny.rows if row.stage == "exported" and row.judged}
    assert {row.value for row in tiny.rows if row.stage == "compiled" and row.judged} >= {"h", "inner", "y"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_inside_is_named(kind):
    """The fault is in the program, or only in the graph that ONNX Runtime compiles."""
    capture, model = subject(kind)
    sound = get_backend("onnxruntime-cpu")
    made = sound.compile(Program(ir.from_proto(model)), optimize=True)  # its files go with it
    wrong = WrongOnnxRuntime(**vars(sound), wrong=spoilt(onnx.load(made.handle.path)).SerializeToString())

    exported = compare(capture, ir.from_proto(spoilt(model)))
    compiled = compare(capture, ir.from_proto(model), backend=wrong)

    # Whose numbers a file has without metadata is known by them alone: with wrong ones, the nodes are judged together.
    assert any(name.startswith(f"{kind}_") for name in exported.first_divergence.origins)
    assert compiled.first_divergence.stage == "compiled" and compiled.first_divergence.value == "inner"
    assert {row.value for row in compiled.diverged} == {"inner", "y"}


class Chunks(nn.Module):
    """A gate of two halves, which are a list between two nodes."""

    def forward(self, x):
        gate, values = x.chunk(2, -1)
        return torch.sigmoid(gate) * values


def test_a_list_is_judged_by_what_is_taken_out_of_it():
    """It is judged only if all of its tensors are."""
    model, x = Chunks(), torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    capture, program = recorded(model, x)

    clean = compare(capture, program)
    wrong = compare(capture, program, backend=WrongBackend({"getitem_1": lambda tensor: tensor + 1}))

    assert clean.close and all(row.judged for row in clean.rows)
    assert wrong.first_divergence.value == "getitem_1"
    assert all(row.status == "no value" for row in wrong.rows if row.op == "SplitToSequence")


TABLE = [1.0, 2.0, 4.0, 8.0]  # what loops multiply by, one in each iteration
BRANCH = """
    y = If(flag) <
        then_branch = yes () => (float[4,3] t) <float[4] table = {1.0, 2.0, 4.0, 8.0}> {
            [scale] row = Gather <axis = 0> (table, three)
            [mul] m = Mul(x, row)
            [tanh] t = Tanh(m)
        },
        else_branch = no () => (float[4,3] e) { e = Neg(x) }
    >
"""
TABLE_LOOP = """
    [loop] y = Loop(count, , x) <body = step (int64 i, bool on, float[4,3] s) => (bool go, float[4,3] n)
        <float[4] table = {1.0, 2.0, 4.0, 8.0}> {
            [scale] row = Gather <axis = 0> (table, i)
            [mul] m = Mul(s, row)
            [tanh] n = Tanh(m)
            go = Identity(on)
        }>
"""
TABLE_SCAN = """
    [first] start = Constant <value_floats = [0.1, 0.2, 0.3]> ()
    [scan] end, y = Scan <num_scan_inputs = 2, body = step
        (float[3] s, float[3] r, float k) => (float[3] n, float[3] o) {
        [mul] m = Mul(r, k)
        [add] n = Add(s, m)
        [tanh] o = Tanh(n)
    }> (start, x, table)
"""
IF_IN_LOOP = """
    [loop] y = Loop(count, , x) <body = step (int64 i, bool on, float[4,3] s) => (bool go, float[4,3] n) {
        late = Equal(i, three)
        [pick] n = If(late) <
            then_branch = yes () => (float[4,3] t) <float[4] table = {1.0, 2.0, 4.0, 8.0}> {
                [scale] row = Gather <axis = 0> (table, i)
                [mul] t = Mul(s, row)
            },
            else_branch = no () => (float[4,3] e) { e = Sin(s) }
        >
        go = Identity(on)
    }>
"""
CALL = "[call] y = own.Pick(x, flag)"
PICK = """
<domain: "own", opset_import: ["": 18]>
Pick (v, flag) => (r) {
    [pick] r = If(flag) <
        then_branch = t () => (p) <float[4] table = {1.0, 2.0, 4.0, 8.0}, int64 last = {3}> {
            [scale] row = Gather <axis = 0> (table, last)
            [mul] p = Mul(v, row)
        },
        else_branch = e () => (q) { q = Neg(v) }
    >
}
"""
# Each graph, the name of the node that the last number of the table makes wrong, and the number of nodes that run.
TABLE_KINDS = {
    "If": (BRANCH, "If_0/then_branch/scale", 3),
    "Loop": (TABLE_LOOP, "loop/body[3]/scale", 16),
    "Scan": (
        TABLE_SCAN,
        "scan/body[3]/k",
        26,
    ),  # inputs of an iteration are nodes, and so is what puts results together
    "an If in a Loop": (IF_IN_LOOP, "loop/body[3]/pick/then_branch/scale", 13),
    "a function with an If": (CALL, "call/pick/then_branch/scale", 2),
}


def model_of(kind, last=TABLE[-1]):
    """Return a model of this kind whose table ends with a number."""
    text = TABLE_KINDS[kind][0]
    held = "<float[4] table = {1.0, 2.0, 4.0, 8.0}, int64 three = {3}>" if kind == "Scan" else "<int64 three = {3}>"
    graph = f"main (float[4,3] x, bool flag, int64 count) => (float[4,3] y) {held} {{{text}}}"
    model = parser.parse_model(HEAD + graph + (PICK if "own." in text else ""))
    onnx.checker.check_model(model)
    (table,) = [tensor for graph in (model.graph, *model.functions) for tensor in tables(graph)]
    table.CopyFrom(numpy_helper.from_array(np.array([*TABLE[:-1], last], np.float32), table.name))
    return model


def tables(graph):
    """Return the tables in a graph and in the graphs of its nodes."""
    found = [tensor for tensor in getattr(graph, "initializer", ()) if tensor.name == "table"]
    inner = (item.g for node in graph.node for item in node.attribute if item.HasField("g"))
    return [*found, *(tensor for graph in inner for tensor in tables(graph))]


def inputs_of(*, flag=True, count=4):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) / 4
    return {"x": x, "flag": torch.tensor(flag), "count": torch.tensor(count)}


def exported_nodes(report):
    return [row.node for row in report.rows if row.stage == "exported" and row.kind != "output"]


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_the_nodes_that_run_count_and_are_judged(kind):
    model = model_of(kind)

    report = compare_programs(model, model, inputs=inputs_of())

    assert report.close and report.undisturbed
    assert f"judged {TABLE_KINDS[kind][2]} of {TABLE_KINDS[kind][2]} exported values" in report.headline
    assert TABLE_KINDS[kind][1] in exported_nodes(report)


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_a_fault_inside_is_named_where_it_is_first_wrong(kind):
    """With the name of the node, of the nodes around it, and the iteration."""
    report = compare_programs(model_of(kind), model_of(kind, last=8.01), inputs=inputs_of())

    assert report.outcome == "different"
    assert report.first_divergence is not None
    assert report.first_divergence.node == TABLE_KINDS[kind][1]
    assert f"Divergence starts at `{TABLE_KINDS[kind][1]}`" in str(report.explanation)


def test_a_branch_that_does_not_run_is_not_judged():
    """A fault in it is none in this run."""
    report = compare_programs(model_of("If"), model_of("If", last=8.01), inputs=inputs_of(flag=False))

    assert report.close
    assert exported_nodes(report) == ["If_0/else_branch/Neg_0"]


@pytest.mark.parametrize("value", ["y/body[2]/m", "y/body[0]/n"])
def test_a_kernel_that_is_wrong_inside_is_named(value):
    """Also where a file is compared with itself."""
    model = model_of("Loop")

    report = compare_programs(model, model, inputs=inputs_of(), backend=WrongBackend({value: lambda item: item * 1.01}))

    assert report.first_divergence is not None
    assert report.first_divergence.value == value


def test_calls_that_take_other_branches_are_judged_as_a_whole():
    """The report says so."""
    model = model_of("If")

    report = compare_programs(model, model, inputs=[inputs_of(flag=True), inputs_of(flag=False)])

    assert report.close
    assert exported_nodes(report) == ["If_0", "If_0"]
    assert "If_0 (If) was judged as a whole: it runs otherwise in another call" in report.notes


def test_what_a_compiled_node_computes_is_known():
    """Its row names the nodes in it, and theirs the node that they became part of."""
    model = model_of("If")

    report = compare_programs(model, model, inputs=inputs_of())

    (compiled,) = [row for row in report.rows if row.stage == "compiled" and row.kind != "output"]
    assert (compiled.op, compiled.operators) == ("If", ("Mul", "Tanh"))
    assert {(item.node.rpartition("/")[2], item.kind) for item in report.outcomes} >= {
        ("mul", "fused"),
        ("tanh", "fused"),
    }


def test_the_cause_of_a_fault_inside_is_written(tmp_path):
    """The repro has the node alone."""
    paths = [str(tmp_path / name) for name in ("a.onnx", "b.onnx")]
    inputs = str(tmp_path / "inputs.npz")
    for path, last in zip(paths, (8.0, 8.01), strict=True):
        onnx.save(model_of("If", last), path)
    np.savez(inputs, **{name: item.numpy() for name, item in inputs_of().items()})

    report = compare_files(*paths, inputs=inputs, blame=str(tmp_path / "blame"))

    assert report.repro == str(tmp_path / "blame")
    assert [node.op_type for node in onnx.load(tmp_path / "blame" / "model.onnx").graph.node] == ["Gather"]


class Branches(nn.Module):
    """A branch of three operations."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        y = torch.cond(x.sum() > -1e9, lambda v: torch.tanh(self.linear(v)) * 2.0, lambda v: v - 1.0, (x,))
        return self.norm(y)


class Repeats(nn.Module):
    """A loop that decides when it ends."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        def step(i, v):
            return i + 1, torch.tanh(self.linear(v))

        count = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, _: i < 3, step, (count, x))[1] * 2.0


@pytest.mark.parametrize(("make", "node"), [(Branches, "then_branch/node_linear"), (Repeats, "body[0]/node_linear")])
def test_bodies_of_exported_models_are_judged_by_eager_pytorch_and_float64(make, node):
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(3, 8)
    capture, program = recorded(model, x)
    changed = serde.serialize_model(program.model)
    (bias,) = [tensor for tensor in changed.graph.initializer if tensor.name == "linear.bias"]
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(1e-4), bias.name))

    clean = compare(capture, program)
    wrong = compare(capture, replace(program, model=serde.deserialize_model(changed)))

    assert clean.close
    assert all(row.judged and row.float64 is not None for row in clean.rows if row.stage == "exported")
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.node.endswith(f"/{node}")
    assert wrong.changed_weights == ("linear.bias",)


INLINED = """<ir_version: 10, opset_import: ["": 18]>
agraph (float[4,3] h) => (float[4,3] y) <bool yes = {1}> {
    inner = If(yes) <
        then_branch = yes_branch () => (float[4,3] c) {
            a = Cos(h)
            b = Add(a, h)
            c = Tanh(b)
        },
        else_branch = no_branch () => (float[4,3] d) { d = Sin(h) }
    >
    y = Mul(inner, inner)
}"""


def test_a_branch_that_the_runtime_inlines_is_judged():
    """ONNX Runtime puts a branch in place of an `If` with a constant condition, and renames its values."""
    model = parser.parse_model(INLINED)

    report = compare_programs(model, model)
    rows = [row for row in report.rows if row.stage == "compiled" and row.kind == "node"]

    assert len(rows) == 4
    assert not [str(row) for row in rows if not row.judged]
