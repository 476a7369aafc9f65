"""Decisions that rounding changes are named with their margins; faults in routers stay faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import onnx_ir as ir
import pytest
import torch
from torch import nn

from faults.decisions import FAULTS, Dispatch, deciding_node, faulty, flipped, flipped_in_compiler, subject
from filch.compare import compare, load_report
from filch.compare.float64._values import RecordedValues
from filch.compare.float64._verdict import Flips, Float64Value
from filch.compare.judging._run import Run
from filch.export import Graph, Node, Value
from filch.export.backends import Compiled
from support.models.hand_made import judge_of
from support.models.small import module_of, recorded
from support.thorough import slow

SAME_MARGIN = 1e-6  # relative


def decisions(report):
    """Return the rows with decisions that differ from the model's."""
    return [row for row in report.rows if row.decides]


def has_known_margin(one, row):
    """Return whether the margin is one that the model has in float64."""
    assert row.float64 is not None
    assert row.float64.flips is not None
    margin = row.float64.flips.margin
    assert margin is not None
    return float((one.margins - margin).abs().min()) <= SAME_MARGIN * margin


@pytest.fixture(scope="module")
def router():
    """Return a router whose scores are nearly equal in some rows."""
    return subject("top-k")


@pytest.fixture(scope="module")
def changed(router):
    """Return the report of its program, in which the scores are moved by a unit in the last place."""
    return flipped(router)


def test_a_decision_that_rounding_changes_is_named_with_its_margin(router, changed):
    """It is no fault: the comparison passes."""
    assert changed.close
    assert not changed.introduced
    rows = decisions(changed)
    assert [(row.stage, row.op) for row in rows] == [("exported", "TopK"), ("compiled", "TopK")]
    for row in rows:
        assert row.float64 is not None
        assert row.float64.verdict == "decision"
        assert 0 < row.float64.ratio < 1
        assert has_known_margin(router, row)
    assert "Rounding decides otherwise at `node_topk__1` (TopK" in str(changed.explanation)


def test_what_follows_from_a_decision_is_judged_by_the_same_decision(router, changed):
    """The difference is split: another expert changes the output by far more than rounding, which is right."""
    (output,) = (row for row in changed.rows if row.kind == "output" and row.stage == "compiled")
    assert output.float64 is not None
    assert output.difference is not None
    assert output.float64.verdict in ("same", "rounding")
    assert output.float64.follows == ("getitem_1",)
    assert output.float64.decided == pytest.approx(output.difference.absolute, rel=1e-4)
    assert output.float64.decided > 1e4 * output.float64.error
    before = next(row for row in changed.rows if row.value == "linear")
    assert before.float64 is not None
    assert before.float64.decided is None


def test_decisions_are_in_the_table_the_json_and_the_page(changed, tmp_path):
    """With the margin, and what follows from them."""
    lines = changed.table("nodes", width=200).splitlines()
    marks = {line.split()[-1] for line in lines if line.split()[-1:]}
    assert {"decision", "follows"} <= marks
    assert any("decision: rounding decides" in line for line in lines)
    changed.to_json(tmp_path / "report.json")
    read = load_report(tmp_path / "report.json")
    assert read.rows == changed.rows
    assert read.record()["explanation"]["decisions"][0]["float64"]["flips"]["count"] > 0
    findings = changed.graph.findings
    assert findings["getitem_1"][0].measures.keys() >= {"flips", "margin"}
    assert findings["tanh"][0].measures["decided"] > 0.01


def test_clean_runs_decide_as_the_model_does():
    """Without near-ties, nothing is said of decisions."""
    one = subject("top-k", ties=False)
    report = compare(one.capture, one.program, backend="onnxruntime-cpu")
    assert report.close
    assert not decisions(report)
    assert "decides" not in str(report.explanation)
    assert all(row.float64 is None or row.float64.decided is None for row in report.rows)


@pytest.mark.parametrize("name", ["max", "threshold", "bucket", "nearest code", "rounded", "floor"])
def test_decisions_of_torch_compile_are_named_with_their_margin(name):
    """The indices of `max` are one of two results, of which the graph has no value of its own."""
    one = subject(name, torch.bfloat16)
    report = flipped_in_compiler(one)
    assert report.close, str(report.explanation)
    (row,) = decisions(report)
    assert has_known_margin(one, row)
    assert report.rows[-1].float64 is not None
    assert report.rows[-1].float64.follows == (row.value,)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("the smallest scores", "argsort"),
        ("the next expert", "nearest code"),
        ("weights of the other expert", "top-k"),
        ("another expert in one row", "argmax"),
        ("scores in half precision", "top-k of a softmax"),
        ("another threshold", "threshold"),
        ("rounded to the nearest bucket", "bucket"),
        ("another way of rounding", "rounded"),
        ("another integer in one row", "floor"),
        ("the next integer", "sign"),
    ],
)
def test_a_fault_in_a_router_is_named_at_its_node(fault, name):
    """Near-ties in other rows do not hide it."""
    report, node = faulty(subject(name), FAULTS[fault])
    assert not report.close
    first = report.first_divergence
    assert first is not None
    assert first.node == node


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["rounded", "floor"])
def test_numbers_that_are_rounded_otherwise_are_decisions_although_they_are_floating_point(name, dtype):
    """The values after them differ from the model's, and are computed right from the other integers."""
    one = subject(name, dtype)
    report = flipped(one)
    assert report.close, str(report.explanation)
    rows = decisions(report)
    assert {row.op.lower() for row in rows} == {"round" if name == "rounded" else "floor"}
    assert all(has_known_margin(one, row) for row in rows)
    followers = [row for row in report.rows if row.follows and row.stage == "compiled"]
    assert followers[-1].kind == "output"


@slow
def test_other_numbers_of_rows_for_each_expert_follow_from_a_decision():
    """Each expert gets the rows that were routed to it: with another decision, all its values have other shapes."""
    one = subject("top-k", model=Dispatch)
    report = flipped(one, stages=["exported"])
    assert report.close, str(report.explanation)
    assert decisions(report)
    shapes = [row for row in report.rows if row.float64 is not None and row.float64.decided == math.inf]
    assert len(shapes) > 20
    assert {row.status for row in shapes} == {"same"}
    assert "change its shape" in str(shapes[0])


def router_module(*, is_sorted):
    """Sums two of eight rows of numbers; whether their order is left open does not change the sum.

    Args:
        is_sorted: whether it is the order of their scores.
    """

    def forward(self, x):
        """Return the sums."""
        scores = self.scores(x)
        chosen = scores.topk(2, -1, sorted=self.is_sorted).indices
        return (self.rows[chosen] * scores.gather(-1, chosen).softmax(-1).unsqueeze(-1)).sum(1).tanh()

    return module_of(forward, scores=nn.Linear(6, 8), is_sorted=is_sorted, rows=nn.Parameter(torch.randn(8, 6)))


def routed(*, is_sorted, becomes_sorted):
    """Return the report of the program of a router, with another order of its indices or without."""
    torch.manual_seed(0)
    model, x = router_module(is_sorted=is_sorted).eval(), torch.randn(16, 6)
    capture, program = recorded(model, x, submodules=True)
    deciding_node(program.model).attributes["sorted"] = ir.AttrInt64("sorted", int(becomes_sorted))
    return compare(capture, program, backend="onnxruntime-cpu", stages=["exported"])


def test_indices_in_another_order_are_right_if_the_model_leaves_it_open():
    """What is computed from them is judged in their order. Unsorted, ONNX Runtime 1.31 returns the smaller first."""
    report = routed(is_sorted=False, becomes_sorted=False)
    assert report.close, str(report.explanation)
    (row,) = decisions(report)
    assert row.float64 is not None
    assert row.float64.flips is not None
    assert row.float64.flips.is_order
    assert "Indices are in another order at" in str(report.explanation)
    assert any(row.float64 is not None and row.float64.decided for row in report.rows)
    wrong = routed(is_sorted=True, becomes_sorted=False)  # the program alone leaves it open
    assert not wrong.close
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.op == "TopK"
    assert not decisions(wrong)


X = torch.tensor([1.0, 2.0, 3.0, 4.0])
LIMIT = 3.0000001  # a near-tie of the third number


def values(above, chosen, numbers=X):
    """Return float64 values of the graph of `judged`, with the noise of float32."""
    found = {"scaled": numbers.double(), "above": above, "chosen": chosen.double()}
    noisy = {name: tensor * (1 + 3e-8) if tensor.is_floating_point() else tensor for name, tensor in found.items()}
    return RecordedValues(
        {name: Float64Value(tensor, noisy[name], 2.0**-24) for name, tensor in found.items()},
        compute=lambda decided: values(
            decided.get("above", above), torch.where(decided.get("above", above), 10 * X, X), numbers
        ),
    )


def checker(limit, *, fused, returned=("chosen",), decisions=MappingProxyType({})):
    """Return a checker of a graph that compares numbers with a limit, and chooses; in one node or in three."""
    scaled = Node("scaled", "mul", ("x",), ("scaled",))
    above = Node("above", "gt", ("scaled",), ("above",), {"arg1": limit})
    chosen = Node("chosen", "where", ("above", "scaled"), ("chosen",))
    dtypes = {"x": "float32", "scaled": "float32", "above": "bool", "chosen": "float32"}
    known = {name: Value(name, dtype, (4,)) for name, dtype in dtypes.items()}
    exported = Graph("g", ("x",), ("chosen",), (), (scaled, above, chosen), known)
    kernel = Node("kernel", "kernel", ("x",), returned)
    graph = Graph("g", ("x",), ("chosen",), (), (kernel,), known) if fused else exported
    computes: Mapping[str, tuple[Node, ...]] = {"kernel": (scaled, above, chosen)}
    run = Run(0, "compiled", Compiled(graph, None), {"x": X}, {})
    expected = values(limit < X, torch.where(limit < X, 10 * X, X))
    return judge_of(
        expected, run, exported, computes=lambda node: computes.get(node.name, (node,)), known_decisions=decisions
    )


def test_a_decision_inside_of_a_fused_node_is_found_by_what_it_leads_to():
    """The third number is chosen as if it were above the limit; any other choice is wrong."""
    one = checker(LIMIT, fused=True)
    (kernel,) = one.facts.run.graph.nodes
    expected = torch.tensor([1.0, 2.0, 3.0, 40.0])
    for numbers, verdict in (([1.0, 2.0, 30.0, 40.0], "decision"), ([1.0, 20.0, 3.0, 40.0], "wrong")):
        one = checker(LIMIT, fused=True)
        one.facts.record(kernel, "chosen", torch.float32, None)
        found = one.verdict("chosen", kernel, expected, torch.tensor(numbers))
        assert found is not None
        assert found.verdict == verdict
        if found.flips is not None:
            assert (found.flips.count, found.flips.elements) == (1, 4)
            assert found.flips.margin == pytest.approx(LIMIT - 3.0)
            assert (found.decided, found.follows) == (27.0, ("above",))


def test_a_value_follows_from_a_decision_that_its_fused_node_returns_as_well():
    """It does not read it: both are results of one kernel."""
    chosen = torch.tensor([1.0, 2.0, 30.0, 40.0])
    one = checker(LIMIT, fused=True, returned=("above", "chosen"), decisions={"above": chosen > 9})
    (kernel,) = one.facts.run.graph.nodes
    one.facts.record(kernel, "above", torch.bool, None)
    decision = one.verdict("above", kernel, LIMIT < X, chosen > 9)
    one.facts.record(kernel, "chosen", torch.float32, None)
    found = one.verdict("chosen", kernel, torch.tensor([1.0, 2.0, 3.0, 40.0]), chosen)
    assert decision is not None
    assert found is not None
    assert (decision.verdict, found.verdict, found.follows) == ("decision", "same", ("above",))


def test_another_decision_about_equal_numbers_is_a_fault():
    """Comparing does not round: the margin does not matter."""
    one = checker(LIMIT, fused=False)
    scaled, above, _ = one.facts.run.graph.nodes
    one.facts.record(scaled, "scaled", torch.float32, None)
    assert one.verdict("scaled", scaled, X, X.clone()) is not None
    one.facts.record(above, "above", torch.bool, None)
    found = one.verdict("above", above, LIMIT < X, torch.tensor([False, False, True, True]))
    assert found is not None
    assert found.verdict == "wrong"
    assert "comparing does not round" in found.note


def test_numbers_that_were_converted_to_be_compared_may_not_be_equal():
    """A runtime may keep a value of float16 in float32."""
    one = checker(LIMIT, fused=False)
    compiled = replace(one.facts.run.compiled, value_aliases={"scaled": "scaled"})
    one.facts.run = replace(one.facts.run, compiled=compiled)
    scaled, above, _ = one.facts.run.graph.nodes
    one.facts.record(scaled, "scaled", torch.float32, None)
    assert one.verdict("scaled", scaled, X, X.clone()) is not None
    one.facts.record(above, "above", torch.bool, None)
    found = one.verdict("above", above, LIMIT < X, torch.tensor([False, False, True, True]))
    assert found is not None
    assert found.verdict == "decision"


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize(("limit", "verdict"), [(LIMIT, "decision"), (3.00001, "wrong")])
def test_a_margin_of_more_than_rounding_is_a_fault(limit, verdict, observed):
    """Although nothing is known of what the node has read, as of an output of the run without instrumentation."""
    one = checker(limit, fused=False)
    scaled, above, _ = one.facts.run.graph.nodes
    one.facts.record(scaled, "scaled", torch.float32, None)
    assert one.verdict("scaled", scaled, X, X * (1 + 2**-23)) is not None
    one.facts.record(above, "above", torch.bool, None)
    if not observed:  # the observed run decides as the model does
        assert one.verdict("above", above, limit < X, limit < X) is not None
    found = one.verdict("above", above, limit < X, torch.tensor([False, False, True, True]), observed=observed)
    assert found is not None
    assert found.verdict == verdict
    if verdict == "decision":
        assert found.flips is not None
        assert found.flips == Flips(1, 4, pytest.approx(1e-7, rel=1e-3), found.flips.level)
