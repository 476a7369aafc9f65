"""Indices of known shapes are large without having many dimensions; bounds by products alone would refuse them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from filch.export.onnx_files._known_shapes import KnownShapes
from filch.export.onnx_files._ranks import check_ranks

node = helper.make_node
SIZE = 1500  # its square exceeds the elements that all joined shapes may have
INDICES = {
    "a vector": np.arange(SIZE),
    "a grid": np.zeros((SIZE, 2), np.int64),
    "a large grid": np.zeros((SIZE, 700), np.int64),
    "a place": np.zeros((1, 1), np.int64),
    "its shape": np.array([SIZE, 2]),
    "twice": np.array([1, 2]),
    "the first axis": np.array([0]),
    "margins": np.array([0, 0, 0, SIZE]),
    "one": np.array(1),
    "last": np.array([-1]),
}
# What exporters compute from indices: each ends with `made`, which is then joined with itself.
COMPUTED = {
    "expanded to its own shape": [node("Shape", ["a vector"], ["s"]), node("Expand", ["a vector", "s"], ["made"])],
    "expanded to a larger shape": [node("Expand", ["a grid", "its shape"], ["made"])],
    "the largest of several": [
        node("Max", ["a grid", "one"], ["m"]),
        node("Shape", ["m"], ["s"]),
        node("Expand", ["a grid", "s"], ["made"]),
    ],
    "gathered rows": [node("Gather", ["a grid", "a vector"], ["made"])],
    "gathered elements": [node("GatherElements", ["a grid", "a grid"], ["made"], axis=0)],
    "gathered places": [node("GatherND", ["a grid", "a place"], ["made"])],
    "scattered": [
        node("Gather", ["a grid", "the first axis"], ["row"]),
        node("ScatterND", ["a grid", "a place", "row"], ["made"]),
    ],
    "tiled": [node("Tile", ["a grid", "twice"], ["made"])],
    "padded": [node("Pad", ["a grid", "margins"], ["made"])],
    "compared and chosen": [
        node("Less", ["a vector", "one"], ["c"]),
        node("Where", ["c", "a vector", "one"], ["w"]),
        node("Shape", ["w"], ["s"]),
        node("Expand", ["w", "s"], ["made"]),
    ],
    "a large grid": [node("Identity", ["a large grid"], ["made"])],
}


def graph_of(nodes, inputs=()):
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    held = [numpy_helper.from_array(numbers, name) for name, numbers in INDICES.items()]
    return helper.make_graph(nodes, "g", [*inputs], made, held)


@pytest.mark.parametrize("case", COMPUTED)
def test_indices_of_a_known_shape_are_not_taken_for_long_shapes(case):
    """They are joined, and select from a table, as advanced indexing is exported."""
    table = [helper.make_tensor_value_info("table", TensorProto.FLOAT, [None, 3])]
    nodes = [
        node("Unsqueeze", ["made", "last"], ["u"]),
        node("Concat", ["u", "u"], ["indices"], axis=-1),
        node("GatherND", ["table", "indices"], ["y"]),
    ]

    assert check_ranks(graph_of([*COMPUTED[case], *nodes], table))


def test_dimensions_that_indices_replace_do_not_add_up():
    """An unrolled model selects from what it has selected a thousand times."""
    nodes = [node("GatherND", [f"v{step}", "a grid"], [f"v{step + 1}"]) for step in range(1000)]
    given = [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [None, None, 3])]

    assert check_ranks(graph_of(nodes, given))


@pytest.mark.parametrize("indices", ["a vector", "a grid"])
def test_a_shape_of_known_length_is_refused_if_it_is_long(indices):
    """The values that describe it are not many, but the dimensions are."""
    nodes = [node("Reshape", [indices, "last"], ["s"]), node("Reshape", ["x", "s"], ["y"])]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])]

    with pytest.raises(ValueError, match="'y' would have more than 1,000 dimensions"):
        check_ranks(graph_of(nodes, given))


@pytest.mark.parametrize("flat", [False, True])
def test_joined_vectors_are_counted(flat):
    """A matrix that becomes a vector again may be a shape."""
    nodes = [node("Concat", ["a large grid"] * 2, ["joined"], axis=0)]
    nodes += [node("Reshape", ["joined", "last"], ["y"])] if flat else []

    if not flat:
        assert check_ranks(graph_of(nodes))
        return
    with pytest.raises(ValueError, match="its values would have millions of dimensions"):
        check_ranks(graph_of(nodes))


def test_a_shape_is_forgotten_if_another_graph_has_a_value_of_its_name():
    """Two branches may compute values of the same name."""
    known = KnownShapes({"": 17})
    known.add_constant("s", numpy_helper.from_array(np.array([2, 3])))

    known.add_outputs(node("Identity", ["s"], ["a"]))
    assert known.shape("a") == (2,)
    known.add_outputs(node("NonZero", ["unknown"], ["a"]))
    assert known.shape("a") is None


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (node("Shape", ["x"], ["s"]), (3,)),
        (node("Shape", ["x"], ["s"], start=1), (2,)),
        (node("Shape", ["x"], ["s"], start=-1, end=3), (1,)),
        (node("Concat", ["n", "n"], ["s"], axis=0), (4,)),
        (node("Concat", ["n", "x"], ["s"], axis=0), None),  # of numbers that are no integers
        (node("Concat", ["n"], ["s"]), None),  # without the axis that it needs
        (node("Invented", ["n"], ["s"]), None),
        (node("Invented", ["n"], ["s"], domain="elsewhere"), None),
    ],
)
def test_shapes_are_those_that_onnx_infers(made, shape):
    """Nodes that are not valid have none."""
    known = KnownShapes({"": 17})
    known.add_input(helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5, 6]))
    known.add_constant("n", numpy_helper.from_array(np.array([2, 3])))

    known.add_outputs(made)

    assert known.shape("s") == shape
