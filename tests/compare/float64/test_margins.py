"""How far the numbers that a decision compares are from the other decision."""

import math

import pytest
import torch

from filch.compare.float64._margins import Compared, Margins, deciding_node, flips_of, margins_of, nearest_alternative
from filch.compare.float64._verdict import Flips
from filch.export import Node

X = torch.tensor([[1.0, 4.0, 3.5], [2.0, 2.25, -math.inf]], dtype=torch.float64)
ROUNDED = [[0.5, 0.5, 0.0], [0.5, 0.25, math.inf]]
FLOORED = [[0.0, 0.0, 0.5], [0.0, 0.75, math.inf]]
CEILED = [[0.0, 0.0, 0.5], [0.0, 0.25, math.inf]]


def compared(value, level=0.01):
    """Return numbers with the same rounding level everywhere."""
    return Compared(value, torch.full_like(value, level))


def node(op, *inputs, **attributes):
    return Node("n", op, inputs, ("n",), attributes)


@pytest.mark.parametrize(
    ("op", "attributes", "expected", "actual", "margin"),
    [
        ("ArgMax", {"axis": -1}, [1, 1], [2, 0], [0.5, 0.25]),
        ("argmin", {"arg1": 1}, [0, 0], [2, 1], [2.5, 0.25]),
        ("argsort", {"arg1": -1}, [[0, 2, 1], [2, 0, 1]], [[0, 1, 2], [2, 1, 0]], [[0, 0.5, 0.5], [0, 0.25, 0.25]]),
        ("argmax", {}, 1, 2, 0.5),
        ("gt", {"arg1": 3.75}, [[False] * 3] * 2, [[True] * 3] * 2, (X - 3.75).abs().tolist()),
        ("Cast", {"to": 7}, [[1, 4, 3], [1, 2, 0]], [[0, 3, 4], [2, 1, 0]], [[0, 0, 0.5], [0, 0.25, math.inf]]),
        ("bool", {}, [[True] * 3] * 2, [[False] * 3] * 2, X.abs().tolist()),
        ("Round", {}, [[1.0, 4.0, 4.0], [2.0, 2.0, 0.0]], [[2.0, 4.0, 3.0], [1.0, 3.0, 0.0]], ROUNDED),
        ("Floor", {}, [[1.0, 4.0, 3.0], [2.0, 2.0, 0.0]], [[0.0, 3.0, 4.0], [1.0, 3.0, 0.0]], FLOORED),
        ("ceil", {}, [[1.0, 4.0, 4.0], [2.0, 3.0, 0.0]], [[2.0, 5.0, 3.0], [3.0, 2.0, 0.0]], CEILED),
        ("Sign", {}, [[1.0] * 3] * 2, [[-1.0] * 3] * 2, X.abs().tolist()),
    ],
)
def test_the_margin_is_the_distance_from_the_other_decision(op, attributes, expected, actual, margin):
    """The level is that of one number, or of both that are compared."""
    found = margins_of(node(op, "x", **attributes), {"x": compared(X)}, torch.tensor(actual), torch.tensor(expected))
    assert found is not None
    torch.testing.assert_close(found[0], torch.tensor(margin, dtype=torch.float64))
    assert set(found[1].flatten().tolist()) == ({0.02} if "arg" in op.lower() else {0.01})


def test_two_numbers_may_be_compared():
    """A number and a row of numbers; both may be moved by rounding."""
    node_of = node("LessOrEqual", "x", "y")
    operands = {"x": compared(X), "y": compared(torch.tensor(2.0, dtype=torch.float64))}
    found = margins_of(node_of, operands, X <= 2, X > 2)
    assert found is not None
    assert found[0].tolist() == (X - 2).abs().tolist()
    assert margins_of(node_of, {"x": compared(X)}, X <= 2, X > 2) is None


def test_the_margin_of_a_bucket_is_the_distance_from_its_boundary():
    """Of the farthest boundary between both buckets."""
    numbers, boundaries = torch.tensor([1.1, 2.9, 0.5]).double(), torch.tensor([1.0, 2.0, 3.0]).double()
    operands = {"x": compared(numbers), "b": compared(boundaries, 0.0)}
    expected, actual = torch.tensor([1, 2, 0]), torch.tensor([0, 3, 3])
    for names, op in ((("x", "b"), "bucketize"), (("b", "x"), "searchsorted")):
        found = margins_of(node(op, *names), operands, actual, expected)
        assert found is not None
        torch.testing.assert_close(found[0], torch.tensor([0.1, 0.1, 2.5]).double())


def test_an_index_out_of_range_has_no_margin():
    """It is wrong."""
    assert margins_of(node("ArgMax", "x"), {"x": compared(X)}, torch.tensor([9] * 3), torch.tensor([0] * 3)) is None


def test_the_margin_of_indices_in_any_order_is_that_of_the_numbers_that_are_not_common():
    """The largest one counts for all, as it is not known which belong together."""
    numbers = {"x": compared(torch.tensor([[4.0, 3.0, 2.9, 1.0]]).double())}
    one, other = torch.tensor([[0, 1]]), torch.tensor([[2, 0]])
    for attributes, margins in (({"sorted": 0}, [0.1, 0.1]), ({"sorted": 1}, [1.1, 1.0])):
        found = margins_of(node("TopK", "x", axis=-1, **attributes), numbers, one, other)
        assert found is not None
        torch.testing.assert_close(found[0], torch.tensor([margins]).double())


@pytest.mark.parametrize(
    ("op", "attributes", "decision", "other"),
    [
        ("ArgMax", {"axis": -1}, [1, 1], [2, 0]),
        ("argmin", {"arg1": 0}, [0, 1, 1], [1, 0, 0]),
        ("lt", {"arg1": 2}, [[True, False, False], [False, False, True]], [[False, True, True], [True, True, False]]),
    ],
)
def test_the_nearest_alternative(op, attributes, decision, other):
    """Of an index, that of the next number; of a comparison, the opposite."""
    found = nearest_alternative(node(op, "x", **attributes), {"x": compared(X)}, torch.tensor(decision))
    assert found is not None
    assert found.tolist() == other


def test_the_nearest_alternative_of_an_integer_is_on_the_other_side_of_the_boundary():
    """Conversions round towards 0; several indices of a top-k have more alternatives than one."""
    numbers = compared(torch.tensor([2.01, 1.99, -2.01, -1.99]).double())
    found = nearest_alternative(node("long", "x"), {"x": numbers}, torch.tensor([2, 1, -2, -1]))
    assert found is not None
    assert found.tolist() == [1, 2, -1, -2]
    assert nearest_alternative(node("TopK", "x"), {"x": numbers}, torch.tensor([0, 1])) is None


def test_the_flips_have_the_largest_multiple_of_rounding():
    """A margin of 0 is one of 0 times rounding, also where nothing is rounded."""
    margin, level = torch.tensor([0.0, 0.2, 0.3, 9.0]), torch.tensor([0.0, 0.1, 0.3, 1.0])
    differs = torch.tensor([True, True, True, False])
    found = flips_of(Margins(margin, level), differs)
    assert (found.count, found.elements) == (3, 4)
    assert found.ratio == pytest.approx(2.0)
    assert str(found) == "3 of 4 differ, margin 2 times rounding (2.0e-01 absolute)"
    assert Flips(1, 2).ratio is None
    assert Flips(1, 2, margin=1.0, level=0.0).ratio == math.inf


def test_operators_that_compare_nothing_decide_nothing():
    """The indices of a top-k do, its numbers do not."""
    top = Node("top", "TopK", ("x", "k"), ("numbers", "indices"))
    assert deciding_node("indices", top, {}) is top
    assert deciding_node("numbers", top, {}) is None
    assert deciding_node("n", node("Gather", "x", "i"), {}) is None
    assert deciding_node("n", less := node("aten.lt.Tensor", "x", "y"), {}) is less
