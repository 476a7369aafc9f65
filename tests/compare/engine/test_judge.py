"""Values of a run against float64: what is judged, by the rounding of which type, and what a verdict makes of a row."""

import math
from functools import partial

import pytest
import torch

from filch.compare.engine._value_comparator import ValueComparator
from filch.compare.float64._values import RecordedValues
from filch.compare.float64._verdict import Flips, RoundingVerdict
from filch.compare.metrics._limits import Limits
from support.models.hand_made import HeldReferences, chain, float64_values, judge_of, run_of

X = torch.linspace(1.0, 2.0, 16)
HALF = 2.0**-10  # relative: rounding of float16, and 8,000 times that of float32


def checker(*operators, truth=None, lower_precision=False, replaced=(), made=None):
    graph = chain(*operators)
    run = run_of(graph, {"x": X}, **made or {})
    known = float64_values({"x": X, **dict.fromkeys(graph.producer, X)} if truth is None else truth)
    return judge_of(known, run, lower_precision=lower_precision, replaced=replaced)


def judged(one, name, tensor, reference=X):
    return one.verdict(name, chain("Relu", "Neg", "Abs").producer[name], reference, tensor)


def record(one, *dtypes):
    for node, dtype in zip(chain("Relu", "Neg", "Abs").nodes, dtypes, strict=False):
        one.facts.record(node, node.outputs[0], dtype, None)


def test_equal_bits_are_the_same_whatever_float64_says():
    """The value equals the model's, so it can't be wrong."""
    assert judged(checker("Relu", truth={"a": X * 7}), "a", X.clone()).verdict == "same"
    assert judged(checker("Relu"), "a", X * 1.01).verdict == "wrong"


@pytest.mark.parametrize(
    ("truth", "actual"), [({}, X + 1), ({"a": X.int()}, X + 1), ({"a": X[:2]}, X + 1), ({"a": X}, X[:2])]
)
def test_there_is_no_verdict_without_float64_values_of_the_same_kind_and_shape(truth, actual):
    """The float64 value is unknown, an integer for a floating-point value, or has another shape."""
    assert judged(checker("Relu", truth=truth), "a", actual) is None


def test_without_a_reference_the_rounded_float64_value_is_one():
    """A value with the same bits is `same`."""
    one = checker("Relu")
    assert judged(one, "a", X.clone(), reference=None).verdict == "same"
    assert judged(one, "a", X * 1.01, reference=None).verdict == "wrong"


def test_the_coarsest_type_before_a_value_says_how_it_is_rounded_in_lower_precision():
    """float16 in the first node also applies to the third, unless lower precision is not allowed."""
    for lower_precision, verdict in ((True, "rounding"), (False, "wrong")):
        one = checker("Relu", "Neg", "Abs", lower_precision=lower_precision)
        record(one, torch.float16, torch.float32, torch.float32)
        assert judged(one, "c", X * (1 + HALF)).verdict == verdict


def test_what_is_before_a_value_that_was_given_explains_nothing():
    """A node that gets the reference of `b` as input does not inherit the rounding of `a`."""
    for replaced, verdict in (((), "rounding"), ({"b"}, "wrong")):
        one = checker("Relu", "Neg", "Abs", lower_precision=True, replaced=replaced)
        record(one, torch.float16, torch.float32, torch.float32)
        assert judged(one, "c", X * (1 + HALF)).verdict == verdict


@pytest.mark.parametrize(("operator", "verdict"), [("MatMul", "rounding"), ("Relu", "wrong")])
def test_a_backend_that_rounds_the_inputs_of_products_may_be_off_by_that_in_products(operator, verdict):
    """TF32 does so; any other operation has the rounding of its dtype."""
    one = checker(operator, made={"tf32": {"matmul"}})
    node = chain(operator).nodes[0]
    one.facts.record(node, "a", torch.float32, None)
    assert one.verdict("a", node, X, X * (1 + HALF)).verdict == verdict


def test_a_product_that_the_run_does_not_show_is_rounded_too():
    """Eager PyTorch computes the product and the sum of a linear layer in one operation; the graph has both."""
    one = checker("MatMul", "Add", made={"tf32": {"matmul"}})
    node = chain("MatMul", "Add").producer["b"]
    one.facts.record(node, "b", torch.float32, None)
    assert one.verdict("b", node, X, X * (1 + HALF)).verdict == "rounding"


def test_a_compiled_product_of_constants_is_rounded_too():
    """The exported graph has no node for it, because it computes it once."""
    node = chain("Gemm").nodes[0]
    graph = chain("Gemm")
    run = run_of(graph, {"x": X}, tf32={"matmul"})
    one = judge_of(float64_values({"x": X, "a": X}), run, computes=lambda _: chain("Add").nodes)
    one.facts.record(node, "a", torch.float32, None)
    assert one.verdict("a", node, X, X * (1 + HALF)).verdict == "rounding"


SAME, WRONG = RoundingVerdict("same"), RoundingVerdict("wrong", math.inf, math.inf)


@pytest.mark.parametrize(
    ("actual", "verdict", "status", "kept"),
    [
        (X * 1.01, SAME, "same", SAME),
        (X, WRONG, "different", WRONG),
        (X[:2], SAME, "shape or dtype differs", None),
        (X * 1.01, None, "different", None),
        (X, None, "same", None),
    ],
)
def test_a_verdict_decides_the_status_of_a_value_but_not_of_one_with_another_shape(actual, verdict, status, kept):
    """It can make a value same or different, whatever the tolerance; without a verdict, the tolerance decides."""
    run, judge = run_of(chain("Relu"), {"x": X}), checker("Relu")
    judge.verdict = lambda *_, **__: verdict
    one = ValueComparator(run, HeldReferences({"a": X}), None, Limits(run.graph, None), judge=judge)
    one.compare([("a", actual, None)])
    assert (one.values["a"].status, one.values["a"].float64) == (status, kept)


INDICES = torch.arange(16)


def judged_after_another_decision(expected, otherwise, **options):
    """Return a function that judges a value of `b`, in a run that has decided otherwise for `a`.

    As the model and float64 decide, `b` is `expected`.
    """
    graph = chain("Relu", "Neg")

    def values(b):
        known = float64_values({"a": INDICES, "b": b})
        return {name: known.get(name) for name in "ab"}

    one = judge_of(
        RecordedValues(values(expected), compute=lambda _decisions: RecordedValues(values(otherwise))),
        run_of(graph, {"x": X}),
        recompute=lambda _known, **_: float64_values({"a": INDICES + 1}),
        **options,
    )
    a, b = graph.nodes
    one.facts.record(a, "a", torch.int64, None)
    verdict = one.verdict("a", a, INDICES, INDICES + 1, inputs={"x": X}.get)
    assert verdict.verdict == "decision"
    assert verdict.flips == Flips(16, 16)
    one.facts.record(b, "b", torch.float32, None)
    return lambda tensor, **options: one.verdict("b", b, expected, tensor, **options).verdict


def test_what_a_run_computes_from_another_decision_is_judged_by_what_float64_computes_from_it():
    """The model's value would be wrong, unless it has the same bits."""
    verdict = judged_after_another_decision(X, 3 * X)
    assert verdict(3 * X) == "same"
    assert verdict(3.0001 * X) == "wrong"
    assert verdict(1.00001 * X) == "wrong"
    assert verdict(X.clone()) == "same"


def test_a_mask_in_lower_precision_is_one_after_another_decision():
    """It is the lowest number of float16 in place of that of float32."""
    mask, lower = (torch.full((16,), torch.finfo(dtype).min, dtype=dtype) for dtype in (torch.float32, torch.float16))
    verdict = judged_after_another_decision(torch.where(INDICES > 7, X, mask), mask, lower_precision=True)
    assert verdict(lower) in ("same", "rounding")
    assert verdict(torch.where(INDICES > 7, lower, X.half())) == "wrong"


def test_the_output_of_another_run_after_a_near_tie_is_only_suspicious():
    """That run may have decided like the model, or like the observed one, or otherwise."""
    verdict = judged_after_another_decision(X, 3 * X)
    assert verdict(1.0000001 * X, observed=False) == "rounding"
    assert verdict(3 * X, observed=False) == "same"
    assert verdict(2 * X, observed=False) == "suspicious"


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_an_output_that_is_not_finite_is_wrong_after_a_near_tie_too(number):
    """No other decision explains it."""
    verdict = judged_after_another_decision(X, 3 * X)
    assert verdict(torch.where(INDICES == 3, number, 2 * X), observed=False) == "wrong"


def test_indices_of_equal_numbers_are_right_in_another_run_too():
    """The output has other ones than the observed run, in which all numbers are equal."""
    graph = chain("ArgMax")
    one = judge_of(float64_values({"a": INDICES[:1]}), run_of(graph, {"x": X}))
    for numbers, verdict in ((torch.ones(16), "decision"), (X, "wrong")):
        judge = partial(one.verdict, "a", graph.nodes[0], INDICES[:1], INDICES[5:6], inputs={"x": numbers}.get)
        assert judge(observed=False).verdict == judge().verdict == verdict


@pytest.mark.parametrize("inputs", [{}, {"x": X}], ids=["unknown", "of another integer"])
def test_another_decision_than_that_for_its_inputs_is_wrong(inputs):
    """Also if the inputs are not known."""
    graph = chain("Relu")
    known = float64_values({"a": INDICES})
    run = run_of(graph, {"x": X})
    one = judge_of(known, run, recompute=lambda _known, **_: known)
    assert one.verdict("a", graph.nodes[0], INDICES, INDICES + 1, inputs=inputs.get).verdict == "wrong"
