"""The rows of one run: statuses, observer effect, references by exported name, and when these are released."""

import dataclasses

import pytest
import torch

from filch.compare.engine._value_comparator import ValueComparator, largest_effect
from filch.compare.metrics._limits import Limits
from filch.compare.metrics._metrics import compare_tensors
from filch.compare.provenance._provenance import NodeProvenance
from filch.export import Node
from support.models.hand_made import HeldReferences, chain, graph_of, run_of

X = torch.arange(1.0, 5.0)


def comparator(run, references, provenance=None, on_value=None):
    return ValueComparator(run, references, provenance, Limits(run.graph, None), on_value)


def rows_by(one, observed):
    """Return the rows of what a comparator observes."""
    one.compare(observed)
    return one.rows({})


def rows_of(graph, observed, expected, outputs=None, **made):
    """Return the rows of a run by value, without outputs."""
    run = run_of(graph, {"x": X}, outputs, **made)
    provenance = NodeProvenance(graph, run.compiled) if made.get("stage") == "compiled" else None
    found = rows_by(comparator(run, HeldReferences(expected), provenance), ((*item, None) for item in observed.items()))
    return {row.value: row for row in found if row.kind != "output"}


@pytest.mark.parametrize(
    ("observed", "expected", "status"),
    [
        (X, X, "same"),
        (X * (1 + 1e-7), X, "same"),
        (X * 1.01, X, "different"),
        (X[:2], X, "shape or dtype differs"),
        (X.double(), X, "shape or dtype differs"),
        (None, X, "no value"),
        (X, None, "not mapped"),
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
    values = dict.fromkeys("abc", X)
    rows = rows_of(chain("Relu", "Neg", "Abs"), values, {"a": X, "c": X * 2}, stage=stage)
    assert rows["c"].diverged
    assert {*getattr(rows["c"], field)} - {"c"} == {"b"}


def test_nodes_that_share_a_name_have_their_own_indices():
    """An ONNX file may give several nodes one name, and `onnx.reference` runs it."""
    graph = chain("Relu", "Neg", "Abs")
    graph = dataclasses.replace(graph, nodes=tuple(dataclasses.replace(node, name="same") for node in graph.nodes))
    rows = rows_of(graph, dict.fromkeys("abc", X), dict.fromkeys("abc", X))
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
    graph, observed = graph_of(nodes, outputs=("a", "b")), {"a": X, "b": -X}
    assert rows_of(graph, observed, observed | {"s": X})["s"].status == "same"
    assert rows_of(graph, observed, {"a": X, "b": X, "s": X})["s"].status == "no value"


def test_a_reference_is_looked_up_by_its_exported_name_and_released_after_its_last_use():
    """Two compiled values have one exported name; that of an output is used once more, for the plain run."""
    graph = chain("Relu", "Cast", "Neg")
    run = run_of(graph, {"x": X}, {"c": X}, value_aliases={"b": "a"})
    references, heard = HeldReferences({"a": X, "c": X}), []
    one = comparator(run, references, on_value=lambda name, *_: heard.append((name, [*references.released])))
    rows = rows_by(one, ((name, X, None) for name in "abc"))
    assert references.asked == ["a", "a", "c", "c"]
    assert heard == [("a", []), ("a", []), ("c", ["a"])]
    assert [row.status for row in rows] == ["same"] * 4


def test_outputs_are_judged_by_the_undisturbed_run():
    """The observed run is right and the plain run is not; their distance is the observer effect."""
    run = run_of(chain("Relu"), {"x": X}, {"a": X + 1})
    one = comparator(run, HeldReferences({"a": X}))
    observed, output = rows_by(one, [("a", X, None)])
    assert (observed.kind, observed.status) == ("node", "same")
    assert (output.kind, output.status) == ("output", "different")
    assert one.observer_effect.absolute == 1.0


def test_equal_bits_have_no_observer_effect_and_an_output_that_was_not_observed_has_one():
    """-0 differs from 0, and NaN equals NaN."""
    odd = torch.tensor([float("nan"), -0.0])

    def effect(observed):
        one = comparator(run_of(chain("Relu"), {"x": X}, {"a": odd}), HeldReferences({}))
        one.compare(observed)
        return one.observer_effect

    assert effect([("a", odd.clone(), None)]) is None
    assert effect([("a", odd.abs(), None)]) is not None
    assert effect([]).problem


def test_the_largest_effect_is_one_that_cannot_be_measured():
    """Otherwise it is the one with the largest error."""
    small, large = (compare_tensors(X + by, X) for by in (0.1, 1.0))
    odd = compare_tensors(X[:2], X)
    assert largest_effect([small, None, large]) is large
    assert largest_effect([large, odd, small]) is odd
    assert largest_effect([None]) is None


def test_a_compiled_value_whose_error_begins_there_names_the_removed_node_before_it():
    """`a` and `c` were removed: a fault of `a` shows in `b`, and `d` inherits that error."""
    exported = chain("Identity", "Neg", "Identity", "Abs")
    compiled = graph_of([Node("b", "Neg", ("x",), ("b",)), Node("d", "Abs", ("b",), ("d",))], outputs=("d",))
    run = run_of(compiled, {"x": X}, stage="compiled")
    provenance = NodeProvenance(exported, run.compiled)
    one = comparator(run, HeldReferences({"b": -X, "d": X}), provenance)
    found = rows_by(one, [("b", X, None), ("d", -X, None)])
    rows = {row.value: row.origins for row in found if row.kind != "output"}
    assert rows == {"b": ("a", "b"), "d": ("d",)}
