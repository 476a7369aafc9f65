"""Which values are indices of selected numbers, so that other indices of equal numbers are right."""

from dataclasses import replace

import pytest
import torch

from filch.compare.float64._ties import selecting_node, unordered_indices, with_ties
from filch.compare.float64._verdict import RoundingVerdict
from filch.export import Graph, Node

TOP = Node("top", "topk", ("x",), ("top",), {"arg1": 2})
SORT = Node("sort", "sort", ("x",), ("sort",))
LARGEST = Node("largest", "max", ("x",), ("largest",))
PRODUCERS = {node.outputs[0]: node for node in (TOP, SORT, LARGEST)}


def item_of(node, index):
    """Return the node that gets one of the results of another."""
    return Node("item", "getitem", node.outputs, ("item",), {"arg1": index})


@pytest.mark.parametrize("node", [TOP, SORT, LARGEST])
def test_only_the_second_result_has_indices(node):
    """The first result has the numbers, which may be integers as well."""
    assert selecting_node("item", item_of(node, 1), PRODUCERS) is node
    assert selecting_node("item", item_of(node, 0), PRODUCERS) is None
    assert selecting_node(node.outputs[0], node, PRODUCERS) is None  # max(x) and max(x, y) return numbers


def test_a_row_of_one_result_is_not_a_second_result():
    """`torch.max(x, y)[1]` and `x.argmax(0)[1]` index a tensor."""
    larger, index = Node("n", "max", ("x", "y"), ("n",)), Node("m", "argmax", ("x",), ("m",), {"arg1": 0})
    producers = {"n": larger, "m": index}

    assert selecting_node("item", item_of(larger, 1), producers) is None
    assert selecting_node("item", item_of(index, 1), producers) is None


def test_a_node_with_several_outputs_has_indices_in_the_second():
    """TopK of ONNX; ArgMax has nothing else."""
    node, indices = Node("n", "TopK", ("x", "k"), ("values", "indices")), Node("m", "ArgMax", ("x",), ("i",))

    assert selecting_node("values", node, {}) is None
    assert selecting_node("indices", node, {}) is node
    assert selecting_node("i", indices, {}) is indices


def test_wrong_integers_are_not_taken_for_indices():
    """[2, 1] in place of [3, 2] would select equal numbers of [5, 0, 0, 0]."""
    wrong = RoundingVerdict("wrong", ratio=10.0)
    x, actual, expected = torch.tensor([5, 0, 0, 0]), torch.tensor([2, 1]), torch.tensor([3, 2])

    def verdict(index):
        node = selecting_node("item", item_of(SORT, index), PRODUCERS)
        found = with_ties(wrong, node, x, actual, expected)
        assert found is not None
        return found.verdict

    assert [verdict(0), verdict(1)] == ["wrong", "decision"]


def test_indices_in_any_order_are_right_if_it_is_left_open():
    """Other ones are not."""
    wrong, x, reference = RoundingVerdict("wrong", ratio=10.0), torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2, 1]])
    node = Node("n", "TopK", ("x", "k"), ("values", "indices"), {"axis": -1, "sorted": 0})
    graph = Graph("g", ("x",), ("indices",), (), (node,), {})
    assert unordered_indices(graph) == {"indices"}
    assert not unordered_indices(replace(graph, outputs=("indices", "values")))  # which have to be in the same order
    reordered = with_ties(wrong, node, x, torch.tensor([[1, 2]]), reference, any_order=True)
    assert reordered.verdict == "decision"
    assert str(reordered.flips) == "2 of 2 differ, which is their order alone (sorted=False)"
    for other, any_order in (([[1, 2]], False), ([[2, 2]], True), ([[0, 2]], True)):
        assert with_ties(wrong, node, x, torch.tensor(other), reference, any_order=any_order) is wrong
