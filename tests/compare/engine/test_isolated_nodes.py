"""Nodes on reference inputs: what each of them is given, and which of them introduces an error."""

import math

import pytest
import torch

from filch.compare.engine._allowances import Allowances
from filch.compare.engine._isolated_nodes import IsolatedInputs, compare_isolated_nodes
from filch.compare.engine._judged_value import JudgedValue
from filch.compare.engine._random import RandomValues
from filch.compare.engine._run_rows import RunRows
from filch.compare.float64._verdict import RoundingVerdict
from filch.compare.judging._alone import tolerance_verdict
from filch.compare.metrics._metrics import compare_tensors
from filch.export.evaluation._unpredictable import Unpredictable
from support.models.hand_made import HeldReferences, chain, float64_values, judge_of, run_of

X = torch.arange(1.0, 5.0)
GRAPH = chain("Relu", "Neg", "Abs")


def value_of(name, actual=X, status="same", **fields):
    return JudgedValue.of(name, actual, status, **fields)


def inputs_of(*values, expected, **made):
    return IsolatedInputs(run_of(GRAPH, {"x": X}, **made), {value.value: value for value in values}, expected)


def isolated(observed, expected, *, statuses=None, float64=None, unjudged=()):
    """Return the verdicts on the nodes of the graph, by value; `observed` are their results on the references."""
    known = [value_of(name, status=(statuses or {}).get(name, "same")) for name in "abc"]
    sources = HeldReferences(expected)
    inputs = inputs_of(*known, expected=sources)
    judge = judge_of(float64_values(float64 or {}), inputs.run, replaced=inputs.replaced)
    allowances = Allowances(lambda node: (node,), str, lambda _: None)
    values = [(name, tensor, None) for name, tensor in observed.items()]
    found = compare_isolated_nodes({value.value: value for value in known}, values, inputs, judge, allowances, unjudged)
    return {name: found.get(name) for name in "abc"}, sources


def rows_with(values, isolated):
    """Return the rows of values, by their names, with the verdicts on their nodes in isolation."""
    run = run_of(GRAPH, {"x": X})
    rows = RunRows(run, None, RandomValues(run, Unpredictable(), lambda node: (node,)))
    return {row.value: row for row in rows.rows({value.value: value for value in values}, [], isolated)}


def test_a_node_is_given_the_reference_and_only_for_values_that_were_judged():
    """Values without a reference or with another shape are not replaced; equal values come from the cache."""
    expected = HeldReferences({"a": X, "b": X[:2], "c": X})
    inputs = inputs_of(value_of("a"), value_of("b"), value_of("c", status="not mapped"), expected=expected)
    assert torch.equal(inputs.get("a"), X)
    assert inputs.get("a") is inputs.get("a")
    assert inputs.get("b") is None
    assert inputs.get("c") is None
    assert inputs.replaced == {"a", "b"}


def test_a_reference_is_given_in_the_type_of_the_run():
    """The lowest float32 number is a mask: it becomes the lowest float16 number, not -inf."""
    lowest = torch.finfo(torch.float32).min
    inputs = inputs_of(
        value_of("a", X.half()), expected=HeldReferences({"a": torch.tensor([1.0, lowest, -math.inf, 4])})
    )
    given = inputs.get("a")
    assert given.dtype == torch.float16
    assert given.tolist() == [1.0, torch.finfo(torch.float16).min, -math.inf, 4.0]


def test_what_a_fused_node_computes_itself_is_not_known_to_it():
    """`c` computes `a` and `b` again; the value that it reads is known."""
    inputs = inputs_of(*map(value_of, "abc"), expected=HeldReferences(dict.fromkeys("abc", X)))
    inputs.set_node(GRAPH.producer["c"], GRAPH.nodes)
    assert inputs.get_exported("a") is None
    assert inputs.get_exported("b") is not None
    inputs.set_node(GRAPH.producer["b"], [GRAPH.producer["b"]])
    assert inputs.get_exported("a") is not None


def test_only_the_node_that_is_wrong_on_its_reference_inputs_introduces_an_error():
    """The verdict is by the tolerance, as there are no float64 values."""
    verdicts, _ = isolated({"a": X, "b": X * 1.5, "c": X * (1 + 1e-7)}, dict.fromkeys("abc", X))
    assert {name: one.verdict for name, one in verdicts.items()} == {"a": "same", "b": "wrong", "c": "rounding"}
    assert verdicts["b"].note == verdicts["c"].note != ""


def test_float64_judges_a_value_that_has_no_reference():
    """Its float64 value is computed from the specification; without one there is no verdict."""
    verdicts, _ = isolated({"a": X, "b": X * 1.01, "c": X}, {}, float64={"a": X, "b": X})
    assert verdicts["a"].verdict == "same"
    assert verdicts["b"].verdict == "wrong"
    assert verdicts["c"] is None


def test_random_numbers_have_no_verdict():
    """They have no reference."""
    verdicts, _ = isolated({"a": X, "b": X * 9}, dict.fromkeys("abc", X), unjudged={"b"})
    assert verdicts["b"] is None
    assert verdicts["a"] is not None


def test_a_wrong_shape_is_the_fault_of_the_first_node_that_has_one():
    """The shapes of the values computed from it follow from that shape."""
    verdicts, _ = isolated({}, {}, statuses=dict.fromkeys("bc", "shape or dtype differs"))
    assert verdicts["b"].verdict == "wrong"
    assert verdicts["a"] is verdicts["c"] is None


def test_a_reference_is_released_after_the_last_node_that_reads_it():
    """Each is released once; one that no node reads is released when it is judged."""
    _, sources = isolated(dict.fromkeys("abc", X), dict.fromkeys("abc", X))
    assert sources.released == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("actual", "spread", "verdict"),
    [
        (X, None, "same"),
        (X * (1 + 1e-7), None, "rounding"),
        (X * 1.1, None, "wrong"),
        (X * 1.1, 0.3, "unstable"),
        (X * 1.1, 0.15, "wrong"),
        (X[:2], None, "wrong"),
        (X / 0, math.inf, "wrong"),
    ],
)
def test_the_tolerance_is_a_verdict_where_float64_is_unknown(actual, spread, verdict):
    """Up to twice the largest distance between runs is unstable; non-finite values are wrong."""
    distances = None if spread is None else torch.full((4,), spread)
    assert tolerance_verdict(compare_tensors(actual, X), distances).verdict == verdict


RIGHT, DOUBTFUL = RoundingVerdict("rounding", 1.5), RoundingVerdict("suspicious", 2.2)


@pytest.mark.parametrize(
    ("ratio", "isolated", "expected"),
    [
        (9.0, {"a": RIGHT, "b": RIGHT}, "same"),
        (17.0, {"a": RIGHT, "b": RIGHT}, "different"),
        (math.inf, {"a": RIGHT, "b": RIGHT}, "different"),
        (9.0, {"a": DOUBTFUL, "b": RIGHT}, "different"),
        (9.0, {"b": RIGHT}, "different"),
        (9.0, {"a": RIGHT, "b": RIGHT, "c": DOUBTFUL}, "different"),
    ],
)
def test_rounding_may_add_up_if_each_node_is_right_by_itself(ratio, isolated, expected):
    """`b` differs, `a` is computed before it; `c` is computed from `b`."""
    wrong, sound = RoundingVerdict("wrong", ratio), RoundingVerdict("rounding", 1.0)
    values = [value_of(name, float64=sound) for name in "ac"]
    values.insert(1, value_of("b", status="different", float64=wrong))

    found = rows_with(values, isolated)

    assert found["b"].status == expected
    assert found["b"].float64.verdict == ("suspicious" if expected == "same" else "wrong")
    assert [(found[name].status, found[name].float64) for name in "ac"] == [("same", sound)] * 2


def test_other_integers_are_explained_as_errors_that_add_up_are():
    """They have no ratio."""
    same = RoundingVerdict("same")
    values = [value_of("a", X.long(), status="different", float64=RoundingVerdict("wrong", math.inf))]
    found = rows_with([*values, *(value_of(name, float64=same) for name in "bc")], {"a": RIGHT})["a"]
    assert found.status == "same"
    assert found.float64.verdict == "suspicious"


def test_a_value_without_a_float64_value_is_not_explained_by_rounding_that_adds_up():
    """The tolerance has judged it; nor is one that differs from run to run."""
    for float64 in (None, RoundingVerdict("unstable", 9.0)):
        values = [value_of("a", status="different", float64=float64), *map(value_of, "bc")]
        found = rows_with(values, {"a": RIGHT})["a"]
        assert (found.status, found.float64, found.isolated) == ("different", float64, RIGHT)
