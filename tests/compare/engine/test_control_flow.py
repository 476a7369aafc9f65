"""Graphs with graphs inside: loops, scans, branches and functions are judged, and a fault inside of one is named."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import AttributeProto, numpy_helper, parser
from torch import nn

from faults.nodes.compiled import WrongOnnxRuntime
from filch.compare import compare
from filch.export import Program, export
from filch.export.backends import get_backend
from support.faults.fakes import WrongBackend
from support.models.small import capture_of

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


def scan(h):
    return torch.cumsum(h * FACTOR, 0)


SCAN = """
    none = Constant <value_floats = [0.0, 0.0, 0.0]> ()
    last, inner = Scan <num_scan_inputs = 1, body = step (float[3] state, float[3] row)
        => (float[3] next, float[3] seen) <float factor = {0.5}> {
            scaled = Mul(row, factor)
            next = Add(state, scaled)
            seen = Identity(next)
        }> (none, h)
"""


def branch(h):
    return h * FACTOR if h.sum() > 0 else torch.cos(h)


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
    "Scan": (scan, SCAN),
    "If": (branch, IF),
    "Gate": (function, FUNCTION),
}


class Part(nn.Module):
    """A function as a module, so that its result is captured."""

    def __init__(self, part):
        super().__init__()
        self._part = part

    def forward(self, x):
        return self._part(x)


@cache
def subject(kind):
    """Return a model of three parts, the second one of this kind, and its ONNX graph."""
    function, text = KINDS[kind]
    model = nn.Sequential(Part(lambda x: x * 2), Part(function), Part(torch.exp))
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
    capture = capture_of(model, x)
    program = export(model, (x,))

    clean = compare(capture, program)
    wrong = compare(capture, program, backend=WrongBackend({"getitem_1": lambda tensor: tensor + 1}))

    assert clean.close and all(row.judged for row in clean.rows)
    assert wrong.first_divergence.value == "getitem_1"
    assert all(row.status == "no value" for row in wrong.rows if row.op == "SplitToSequence")
