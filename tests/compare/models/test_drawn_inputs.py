"""Drawn inputs fit what the graph declares: dtypes, shapes, and the size of what an input indexes."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from filch.compare import CompareError
from filch.compare.models._drawn_inputs import draw_inputs
from filch.export import as_program

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def graph(*inputs, nodes=(), weights=()):
    """Return a graph with inputs of a name, type and shape, and weights of a name and shape."""
    values = [helper.make_tensor_value_info(*item) for item in inputs]
    tensors = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights]
    made = [helper.make_node(*item[:3], **item[3]) for item in nodes]
    made.append(helper.make_node("Identity", [inputs[0][0]], ["y"]))
    output = helper.make_tensor_value_info("y", *inputs[0][1:])
    return as_program(helper.make_model(helper.make_graph(made, "main", values, [output], tensors))).graph


def test_floats_are_normally_distributed():
    """They have both signs, and the mean and deviation of a normal distribution."""
    x = draw_inputs(graph(("x", FLOAT, [100, 100]))).tensors["x"]
    assert x.dtype == torch.float32 and abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05


def test_the_seed_decides():
    """Equal seeds give equal numbers."""
    one, same, other = (draw_inputs(graph(("x", FLOAT, [4])), seed=seed).tensors["x"] for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_indices_are_within_what_they_index():
    """Token ids are smaller than the embedding, also through a cast, and along another axis."""
    nodes = [
        ("Cast", ["ids"], ["cast"], {"to": TensorProto.INT32}),
        ("Gather", ["table", "cast"], ["e"], {}),
        ("Gather", ["table", "columns"], ["f"], {"axis": -1}),
    ]
    made = graph(("ids", INT64, [50]), ("columns", INT64, [50]), nodes=nodes, weights=[("table", [3, 5])])
    drawn = draw_inputs(made).tensors
    assert {*drawn["ids"].tolist()} == {0, 1, 2} and {*drawn["columns"].tolist()} == {0, 1, 2, 3, 4}


def test_other_integers_are_small_and_not_zero():
    """They may be divisors or lengths."""
    assert {*draw_inputs(graph(("n", INT64, [200]))).tensors["n"].tolist()} == {*range(1, 10)}


def test_masks_are_ones():
    """Booleans, and inputs that are called a mask."""
    drawn = draw_inputs(graph(("attention_mask", INT64, [2]), ("keep", BOOL, [2]))).tensors
    assert drawn["attention_mask"].tolist() == [1, 1] and drawn["keep"].tolist() == [True, True]


def test_dynamic_dimensions_have_the_size_of_the_same_name():
    """One given shape sets the sizes of all inputs; a sum of names is computed; others have size 1."""
    made = graph(("x", FLOAT, ["batch", "length"]), ("z", FLOAT, ["batch", "other", "length + 2"]))
    drawn = draw_inputs(made, shapes={"x": (2, 8)}).tensors
    assert drawn["x"].shape == (2, 8) and drawn["z"].shape == (2, 1, 10)


@pytest.mark.parametrize("shape", [(2, 4), (2,), (2, -3), (2, 3, 1)])
def test_a_shape_that_does_not_fit_is_refused(shape):
    """The error has the declared and the given shape."""
    with pytest.raises(CompareError, match=r"takes x: float32\[batch, 3\], which can't have the shape"):
        draw_inputs(graph(("x", FLOAT, ["batch", 3])), shapes={"x": shape})


def test_an_unknown_name_is_refused():
    """The error lists the inputs."""
    with pytest.raises(CompareError, match="there is no input 'z'; the inputs are x"):
        draw_inputs(graph(("x", FLOAT, [1])), shapes={"z": (1,)})


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (("x", TensorProto.STRING, [1]), "of type string can be drawn"),
        (("x", FLOAT, None), "does not declare the shape"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(declared, message):
    """Texts, and inputs of unknown shapes."""
    with pytest.raises(CompareError, match=message):
        draw_inputs(graph(declared))


@pytest.mark.parametrize("shape", [[2**20, 2**20], ["n + 1000000000000", 3]])
def test_a_file_cannot_demand_all_memory(shape):
    """The shapes that it declares are those of somebody else."""
    with pytest.raises(CompareError, match=r"no input 'x' of shape \[.*\] can be drawn: give its shape"):
        draw_inputs(graph(("x", FLOAT, shape)))


def test_an_axis_that_is_no_integer_is_not_followed():
    """An attribute of a damaged file may have any type."""
    nodes = [("Gather", ["table", "ids"], ["e"], {"axis": "first"})]
    drawn = draw_inputs(graph(("ids", INT64, [50]), nodes=nodes, weights=[("table", [3, 5])])).tensors["ids"]
    assert drawn.max() <= 2


@pytest.mark.parametrize("unknown", [-1, -2, "-1", "?", "", None])
def test_a_dimension_that_no_size_or_name_is_given_has_any_size(unknown):
    """Paddle's converter writes -1; two such dimensions need not be equal."""
    read = graph(("x", FLOAT, [unknown, 3]), ("z", FLOAT, [unknown, 3]))

    tensors = draw_inputs(read, shapes={"x": (5, 3)}).tensors

    assert (tensors["x"].shape, tensors["z"].shape) == ((5, 3), (1, 3))
    assert read.values["x"].shape == (None, 3)


@pytest.mark.parametrize("name", ["INT4", "UINT4", "FLOAT4E2M1", "FLOAT8E8M0"])
def test_numbers_that_torch_can_not_compute_with_are_not_drawn(name):
    """The message says what to do."""
    with pytest.raises(CompareError, match=f"no input 'x' of type {name.lower()} can be drawn: give the inputs"):
        draw_inputs(graph(("x", getattr(TensorProto, name), [4])))
