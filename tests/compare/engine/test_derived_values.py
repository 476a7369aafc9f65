"""Values that only a compiled graph has are judged by what their nodes have read."""

import onnx_ir as ir
import pytest
import torch

from filch.compare.engine._value_comparator import ValueComparator
from filch.compare.float64._values import RecordedValues
from filch.compare.judging._facts import RunFacts
from filch.compare.judging._judge import Judge
from filch.compare.judging._run import JudgedProgram, Run
from filch.compare.metrics._limits import Limits
from filch.compare.references._resolver import Reference, ReferenceResolver
from filch.export import Graph, Node, Value
from filch.export.backends import Compiled

X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
JOINED = torch.cat([X, Y], 1)
SIZES = ir.Value(name="sizes", const_value=ir.tensor([3, 4], name="sizes"))  # the exported graph has none
NODES = (
    Node("first", "Relu", ("x",), ("a",)),
    Node("second", "Relu", ("y",), ("b",)),
    Node("join", "Concat", ("a", "b"), ("joined",), {"axis": 1}),
    Node("scale", "Mul", ("joined", "factor"), ("scaled",)),
    Node("resize", "Reshape", ("joined", "sizes"), ("resized",)),
    Node("unknown", "com.microsoft::Unknown", ("scaled",), ("last",)),
)
GRAPH = Graph(
    "g",
    ("x", "y"),
    ("last",),
    ("factor", "sizes"),
    NODES,
    {name: Value(name, "float32", (2, 3)) for name in ("x", "y", "a", "b", "joined", "scaled", "resized", "last")},
    onnx=ir.Model(ir.Graph([], [], nodes=[], initializers=[SIZES]), ir_version=10),
)


def judged(changed=""):
    """Return what is known of each value of a run; one of them may be another than the right one."""
    values = {"a": X, "b": Y, "joined": JOINED, "scaled": JOINED * 3, "last": JOINED, "resized": JOINED.view(3, 4)}
    values = {name: tensor + (name == changed) for name, tensor in values.items()}
    references = ReferenceResolver({name: Reference(tensor, "eager") for name, tensor in {"a": X, "b": Y}.items()})
    run = Run(0, "compiled", Compiled(GRAPH, None), {"x": X, "y": Y}, {})
    constant = {"factor": torch.tensor(3.0)}.get
    judge = Judge(RunFacts(run, JudgedProgram(GRAPH), RecordedValues({})))
    comparator = ValueComparator(run, references, None, Limits(GRAPH, None), judge=judge, constant=constant)
    comparator.compare((name, tensor, None) for name, tensor in values.items())
    return comparator.values


def test_values_that_follow_from_right_ones_are_right():
    values = judged()
    assert [values[name].status for name in ("joined", "scaled", "resized")] == ["same", "same", "same"]
    assert values["joined"].evidence == "derived"
    assert not values["last"].judged


@pytest.mark.parametrize(
    ("changed", "unjudged"),
    [
        ("a", ["joined", "scaled", "resized"]),
        ("joined", ["joined", "scaled", "resized"]),
        ("scaled", ["scaled"]),
        ("resized", ["resized"]),
    ],
)
def test_others_are_not_judged(changed, unjudged):
    values = judged(changed)
    assert [name for name in ("joined", "scaled", "resized") if not values[name].judged] == unjudged
