"""Values of a run against float64 and the references: which are wrong, which node introduces an error, and the rows."""

import dataclasses
import math
from functools import partial

import pytest
import torch

from filch.compare.engine._allowances import Allowances
from filch.compare.engine._isolated_nodes import IsolatedInputs, compare_isolated_nodes
from filch.compare.engine._random import RandomValues
from filch.compare.engine._value_comparator import RunRows, ValueComparator, largest_effect
from filch.compare.float64._values import RecordedValues
from filch.compare.float64._verdict import Flips, Float64Value, RoundingVerdict
from filch.compare.judging._judge import tolerance_verdict
from filch.compare.judging._open_choices import with_near_ties
from filch.compare.metrics._limits import Limits
from filch.compare.metrics._metrics import compare_tensors
from filch.compare.provenance._provenance import NodeProvenance
from filch.compare.results._rows import JudgedValue
from filch.export import Node
from filch.export.evaluation._unpredictable import Unpredictable
from support.models.hand_made import HeldReferences, chain, float64_values, graph_of, judge_of, run_of

X = torch.linspace(1.0, 2.0, 16)
HALF = 2.0**-10  # relative: rounding of float16, and 8,000 times that of float32


def checker(*operators, truth=None, lower_precision=False, replaced=()):
    graph = chain(*operators)
    run = run_of(graph, {"x": X})
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


@pytest.mark.parametrize(
    ("lower_precision", "replaced", "verdict"), [(True, (), "rounding"), (False, (), "wrong"), (True, {"b"}, "wrong")]
)
def test_the_coarsest_type_before_a_value_says_how_it_is_rounded_in_lower_precision(lower_precision, replaced, verdict):
    """float16 in the first node also applies to the third, unless `b` was given, or lower precision is not allowed."""
    one = checker("Relu", "Neg", "Abs", lower_precision=lower_precision, replaced=replaced)
    record(one, torch.float16, torch.float32, torch.float32)
    assert judged(one, "c", X * (1 + HALF)).verdict == verdict


@pytest.mark.parametrize(
    ("operators", "computes", "verdict"),
    [
        (["MatMul"], None, "rounding"),
        (["Relu"], None, "wrong"),
        (["MatMul", "Add"], None, "rounding"),  # eager PyTorch computes both of a linear layer in one operation
        (["Gemm"], lambda _: chain("Add").nodes, "rounding"),  # of constants: the exported graph has no node for it
    ],
)
def test_a_backend_that_rounds_the_inputs_of_products_may_be_off_by_that_in_products(operators, computes, verdict):
    """TF32 does so, also where the run or the exported graph do not show the product; others round to their dtype."""
    run = run_of(chain(*operators), {"x": X}, tf32={"matmul"})
    known = float64_values({"x": X, **dict.fromkeys(run.graph.producer, X)})
    one = judge_of(known, run, **({} if computes is None else {"computes": computes}))
    node = run.graph.nodes[-1]
    one.facts.record(node, node.outputs[0], torch.float32, None)
    assert one.verdict(node.outputs[0], node, X, X * (1 + HALF)).verdict == verdict


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


NUMBERS = torch.arange(1.0, 5.0)
GRAPH = chain("Relu", "Neg", "Abs")


def value_of(name, actual=NUMBERS, status="same", **fields):
    return JudgedValue.of(name, actual, status, **fields)


def inputs_of(*values, expected, **made):
    return IsolatedInputs(run_of(GRAPH, {"x": NUMBERS}, **made), {value.value: value for value in values}, expected)


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
    run = run_of(GRAPH, {"x": NUMBERS})
    rows = RunRows(run, None, RandomValues(run, Unpredictable(), lambda node: (node,)))
    return {row.value: row for row in rows.rows({value.value: value for value in values}, [], isolated)}


def test_a_node_is_given_the_reference_and_only_for_values_that_were_judged():
    """Values without a reference or with another shape are not replaced; equal values come from the cache."""
    expected = HeldReferences({"a": NUMBERS, "b": NUMBERS[:2], "c": NUMBERS})
    inputs = inputs_of(value_of("a"), value_of("b"), value_of("c", status="not mapped"), expected=expected)
    assert torch.equal(inputs.get("a"), NUMBERS)
    assert inputs.get("a") is inputs.get("a")
    assert inputs.get("b") is None
    assert inputs.get("c") is None
    assert inputs.replaced == {"a", "b"}


def test_a_reference_is_given_in_the_type_of_the_run():
    """The lowest float32 number is a mask: it becomes the lowest float16 number, not -inf."""
    lowest = torch.finfo(torch.float32).min
    inputs = inputs_of(
        value_of("a", NUMBERS.half()), expected=HeldReferences({"a": torch.tensor([1.0, lowest, -math.inf, 4])})
    )
    given = inputs.get("a")
    assert given.dtype == torch.float16
    assert given.tolist() == [1.0, torch.finfo(torch.float16).min, -math.inf, 4.0]


def test_what_a_fused_node_computes_itself_is_not_known_to_it():
    """`c` computes `a` and `b` again; the value that it reads is known."""
    inputs = inputs_of(*map(value_of, "abc"), expected=HeldReferences(dict.fromkeys("abc", NUMBERS)))
    inputs.set_node(GRAPH.producer["c"], GRAPH.nodes)
    assert inputs.get_exported("a") is None
    assert inputs.get_exported("b") is not None
    inputs.set_node(GRAPH.producer["b"], [GRAPH.producer["b"]])
    assert inputs.get_exported("a") is not None


def test_only_the_node_that_is_wrong_on_its_reference_inputs_introduces_an_error():
    """The verdict is by the tolerance, as there are no float64 values."""
    verdicts, _ = isolated({"a": NUMBERS, "b": NUMBERS * 1.5, "c": NUMBERS * (1 + 1e-7)}, dict.fromkeys("abc", NUMBERS))
    assert {name: one.verdict for name, one in verdicts.items()} == {"a": "same", "b": "wrong", "c": "rounding"}
    assert verdicts["b"].note == verdicts["c"].note != ""


def test_float64_judges_a_value_that_has_no_reference():
    """Its float64 value is computed from the specification; without one there is no verdict."""
    verdicts, _ = isolated({"a": NUMBERS, "b": NUMBERS * 1.01, "c": NUMBERS}, {}, float64={"a": NUMBERS, "b": NUMBERS})
    assert verdicts["a"].verdict == "same"
    assert verdicts["b"].verdict == "wrong"
    assert verdicts["c"] is None


def test_random_numbers_have_no_verdict():
    """They have no reference."""
    verdicts, _ = isolated({"a": NUMBERS, "b": NUMBERS * 9}, dict.fromkeys("abc", NUMBERS), unjudged={"b"})
    assert verdicts["b"] is None
    assert verdicts["a"] is not None


def test_a_wrong_shape_is_the_fault_of_the_first_node_that_has_one():
    """The shapes of the values computed from it follow from that shape."""
    verdicts, _ = isolated({}, {}, statuses=dict.fromkeys("bc", "shape or dtype differs"))
    assert verdicts["b"].verdict == "wrong"
    assert verdicts["a"] is verdicts["c"] is None


def test_a_reference_is_released_after_the_last_node_that_reads_it():
    """Each is released once; one that no node reads is released when it is judged."""
    _, sources = isolated(dict.fromkeys("abc", NUMBERS), dict.fromkeys("abc", NUMBERS))
    assert sources.released == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("actual", "spread", "verdict"),
    [
        (NUMBERS, None, "same"),
        (NUMBERS * (1 + 1e-7), None, "rounding"),
        (NUMBERS * 1.1, None, "wrong"),
        (NUMBERS * 1.1, 0.3, "unstable"),
        (NUMBERS * 1.1, 0.15, "wrong"),
        (NUMBERS[:2], None, "wrong"),
        (NUMBERS / 0, math.inf, "wrong"),
    ],
)
def test_the_tolerance_is_a_verdict_where_float64_is_unknown(actual, spread, verdict):
    """Up to twice the largest distance between runs is unstable; non-finite values are wrong."""
    distances = None if spread is None else torch.full((4,), spread)
    assert tolerance_verdict(compare_tensors(actual, NUMBERS), distances).verdict == verdict


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


@pytest.mark.parametrize(
    ("actual", "float64", "status", "verdict"),
    [
        (NUMBERS.long(), RoundingVerdict("wrong", math.inf), "same", "suspicious"),  # integers have no ratio
        (NUMBERS, None, "different", None),  # the tolerance has judged it
        (NUMBERS, RoundingVerdict("unstable", 9.0), "different", "unstable"),
    ],
)
def test_other_integers_are_explained_as_errors_that_add_up_are(actual, float64, status, verdict):
    """But no value that float64 has not judged, nor one that differs from run to run."""
    values = [value_of("a", actual, status="different", float64=float64)]
    found = rows_with([*values, *(value_of(name, float64=RoundingVerdict("same")) for name in "bc")], {"a": RIGHT})["a"]
    assert (found.status, found.float64 and found.float64.verdict, found.isolated) == (status, verdict, RIGHT)


def comparator(run, references, provenance=None, on_value=None):
    return ValueComparator(run, references, provenance, Limits(run.graph, None), on_value)


def rows_by(one, observed):
    """Return the rows of what a comparator observes."""
    one.compare(observed)
    return one.rows({})


def rows_of(graph, observed, expected, outputs=None, **made):
    """Return the rows of a run by value, without outputs."""
    run = run_of(graph, {"x": NUMBERS}, outputs, **made)
    provenance = NodeProvenance(graph, run.compiled) if made.get("stage") == "compiled" else None
    found = rows_by(comparator(run, HeldReferences(expected), provenance), ((*item, None) for item in observed.items()))
    return {row.value: row for row in found if row.kind != "output"}


@pytest.mark.parametrize(
    ("observed", "expected", "status"),
    [
        (NUMBERS, NUMBERS, "same"),
        (NUMBERS * (1 + 1e-7), NUMBERS, "same"),
        (NUMBERS * 1.01, NUMBERS, "different"),
        (NUMBERS[:2], NUMBERS, "shape or dtype differs"),
        (NUMBERS.double(), NUMBERS, "shape or dtype differs"),
        (None, NUMBERS, "no value"),
        (NUMBERS, None, "not mapped"),
    ],
)
def test_a_value_has_the_status_of_its_difference_from_the_reference(observed, expected, status):
    """Its row also has the dtype and shape of the observed value."""
    given = {} if observed is None else {"a": observed}
    row = rows_of(chain("Relu"), given, {} if expected is None else {"a": expected})["a"]
    assert row.status == status
    assert row.shape == (None if observed is None else tuple(observed.shape))
    assert row.evidence == ("" if expected is None else "eager")


@pytest.mark.parametrize(("stage", "field"), [("exported", "origins"), ("compiled", "behind")])
def test_a_divergence_names_the_nodes_before_it_that_were_not_judged(stage, field):
    """The names reach back to the last judged value; `b` has no reference."""
    values = dict.fromkeys("abc", NUMBERS)
    rows = rows_of(chain("Relu", "Neg", "Abs"), values, {"a": NUMBERS, "c": NUMBERS * 2}, stage=stage)
    assert rows["c"].diverged
    assert {*getattr(rows["c"], field)} - {"c"} == {"b"}


def test_nodes_that_share_a_name_have_their_own_indices():
    """An ONNX file may give several nodes one name, and `onnx.reference` runs it."""
    graph = chain("Relu", "Neg", "Abs")
    graph = dataclasses.replace(graph, nodes=tuple(dataclasses.replace(node, name="same") for node in graph.nodes))
    rows = rows_of(graph, dict.fromkeys("abc", NUMBERS), dict.fromkeys("abc", NUMBERS))
    assert {name: (row.index, row.op) for name, row in rows.items()} == {
        "a": (0, "Relu"),
        "b": (1, "Neg"),
        "c": (2, "Abs"),
    }


def test_a_sequence_is_the_same_if_all_its_elements_are():
    """It is not judged if one of them is wrong."""
    nodes = [
        Node("s", "SplitToSequence", ("x",), ("s",)),
        Node("a", "SequenceAt", ("s",), ("a",)),
        Node("b", "SequenceAt", ("s",), ("b",)),
    ]
    graph, observed = graph_of(nodes, outputs=("a", "b")), {"a": NUMBERS, "b": -NUMBERS}
    assert rows_of(graph, observed, observed | {"s": NUMBERS})["s"].status == "same"
    assert rows_of(graph, observed, {"a": NUMBERS, "b": NUMBERS, "s": NUMBERS})["s"].status == "no value"


def test_a_reference_is_looked_up_by_its_exported_name_and_released_after_its_last_use():
    """Two compiled values have one exported name; that of an output is used once more, for the plain run."""
    graph = chain("Relu", "Cast", "Neg")
    run = run_of(graph, {"x": NUMBERS}, {"c": NUMBERS}, value_aliases={"b": "a"})
    references, heard = HeldReferences({"a": NUMBERS, "c": NUMBERS}), []
    one = comparator(run, references, on_value=lambda name, *_: heard.append((name, [*references.released])))
    rows = rows_by(one, ((name, NUMBERS, None) for name in "abc"))
    assert references.asked == ["a", "a", "c", "c"]
    assert heard == [("a", []), ("a", []), ("c", ["a"])]
    assert [row.status for row in rows] == ["same"] * 4


def test_outputs_are_judged_by_the_undisturbed_run():
    """The observed run is right and the plain run is not; their distance is the observer effect."""
    run = run_of(chain("Relu"), {"x": NUMBERS}, {"a": NUMBERS + 1})
    one = comparator(run, HeldReferences({"a": NUMBERS}))
    observed, output = rows_by(one, [("a", NUMBERS, None)])
    assert (observed.kind, observed.status) == ("node", "same")
    assert (output.kind, output.status) == ("output", "different")
    assert one.observer_effect.absolute == 1.0


def test_equal_bits_have_no_observer_effect_and_an_output_that_was_not_observed_has_one():
    """-0 differs from 0, and NaN equals NaN."""
    odd = torch.tensor([float("nan"), -0.0])

    def effect(observed):
        one = comparator(run_of(chain("Relu"), {"x": NUMBERS}, {"a": odd}), HeldReferences({}))
        one.compare(observed)
        return one.observer_effect

    assert effect([("a", odd.clone(), None)]) is None
    assert effect([("a", odd.abs(), None)]) is not None
    assert effect([]).problem


def test_the_largest_effect_is_one_that_cannot_be_measured():
    """Otherwise it is the one with the largest error."""
    small, large = (compare_tensors(NUMBERS + by, NUMBERS) for by in (0.1, 1.0))
    odd = compare_tensors(NUMBERS[:2], NUMBERS)
    assert largest_effect([small, None, large]) is large
    assert largest_effect([large, odd, small]) is odd
    assert largest_effect([None]) is None


def test_a_compiled_value_whose_error_begins_there_names_the_removed_node_before_it():
    """`a` and `c` were removed: a fault of `a` shows in `b`, and `d` inherits that error."""
    exported = chain("Identity", "Neg", "Identity", "Abs")
    compiled = graph_of([Node("b", "Neg", ("x",), ("b",)), Node("d", "Abs", ("b",), ("d",))], outputs=("d",))
    run = run_of(compiled, {"x": NUMBERS}, stage="compiled")
    provenance = NodeProvenance(exported, run.compiled)
    one = comparator(run, HeldReferences({"b": -NUMBERS, "d": NUMBERS}), provenance)
    found = rows_by(one, [("b", NUMBERS, None), ("d", -NUMBERS, None)])
    rows = {row.value: row.origins for row in found if row.kind != "output"}
    assert rows == {"b": ("a", "b"), "d": ("d",)}


def test_a_value_of_another_rank_has_no_near_ties():
    """It is compared as it is: a compiled graph may have it in another layout."""
    numbers = torch.arange(4.0, dtype=torch.float64).reshape(1, 1, 4)
    exact = Float64Value(numbers, numbers, 2.0**-24)
    for tensor, shape in ((torch.zeros(4), torch.Size([1, 1, 2])), (torch.zeros(1, 1, 4), torch.Size([1, 2]))):
        assert with_near_ties(exact, tensor, None, shape, lambda _: numbers) == (exact, None)
