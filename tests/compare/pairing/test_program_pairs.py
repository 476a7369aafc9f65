"""Which values of two programs correspond to each other: by name, by operator and operands, or by their numbers."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from filch.compare.pairing import _observed
from filch.compare.pairing._observed import Observed
from filch.compare.pairing._program_pairs import pair_values
from filch.export import as_program
from filch.export.backends import get_backend

WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
X = torch.linspace(-2, 2, 12).reshape(3, 4)


def observed(*nodes, weights=()):
    """Return a program from `x` to `y` and its values; a node is its operator, inputs, outputs and attributes."""
    made = [helper.make_node(op, reads, outputs, **dict(*rest)) for op, reads, outputs, *rest in nodes]
    arrays = {"w": WEIGHT, **dict(weights)}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 4]) for name in "xy")
    graph = helper.make_graph(made, "main", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    program = as_program(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    backend = get_backend("onnxruntime-cpu")
    values = backend.run(backend.compile(program, optimize=False), {"x": X}, tuple(program.graph.producer))
    return Observed(program.graph, {"x": X, **values}, program.constant)


EXPECTED = (("MatMul", ["x", "w"], ["a"]), ("Exp", ["a"], ["b"]), ("Mul", ["b", "x"], ["c"]), ("Neg", ["c"], ["y"]))
RENAMED = (("MatMul", ["x", "w"], ["1"]), ("Exp", ["1"], ["2"]), ("Mul", ["2", "x"], ["3"]), ("Neg", ["3"], ["y"]))


def pairs_of(actual, expected=EXPECTED, **options):
    return paired(observed(*actual, **options), observed(*expected))


def paired(actual, expected):
    return pair_values(actual, expected, {"x": "x", "y": "y"})


def names(found):
    return {name: pair.source for name, pair in found.by_value.items()}


def test_values_of_one_name_and_similar_numbers_correspond():
    """The values of a program are its own."""
    found = pairs_of(EXPECTED)
    assert names(found) == {name: name for name in "xabcy"} and found.by_value["a"].evidence == "name"


def test_values_without_names_correspond_by_their_operators():
    """Also with the operands of a product exchanged."""
    actual = (*RENAMED[:2], ("Mul", ["x", "2"], ["3"]), RENAMED[3])
    found = pairs_of(actual)
    assert names(found) == {"x": "x", "1": "a", "2": "b", "3": "c", "y": "y"}
    assert found.by_value["3"].evidence == "operands"


def test_other_operators_correspond_by_their_numbers():
    """A value of nearly equal numbers is found; the one inside of the other decomposition has none."""
    actual = (*RENAMED[:2], ("Neg", ["2"], ["4"]), ("Mul", ["4", "x"], ["5"]), ("Identity", ["5"], ["y"]))
    found = pairs_of(actual)
    assert "4" not in names(found)
    assert names(found)["2"] == "b"


@pytest.mark.parametrize("place", range(3))
def test_a_wrong_operator_and_what_follows_correspond_without_names(place):
    """The values after it are found by what reads them, back from the output."""
    nodes = [*RENAMED]
    nodes[place] = ("Softplus", nodes[place][1][:1], nodes[place][2])
    assert names(pairs_of(nodes)) == {"x": "x", "1": "a", "2": "b", "3": "c", "y": "y"}


def test_a_wrong_weight_corresponds():
    """The operator with another constant is the same one."""
    found = pairs_of(RENAMED, weights=[("w", WEIGHT + 1)])
    assert names(found)["1"] == "a" and found.by_value["1"].evidence == "operands"


SCALED = (EXPECTED[0], ("Mul", ["a", "s"], ["e"]), ("Exp", ["e"], ["b"]), *EXPECTED[2:])


@pytest.mark.parametrize("largest", [3, 1.01])
def test_a_product_may_have_the_numbers_of_what_is_computed_from_it(largest):
    """A factor was folded into its weights, and the name of its result was kept; also if the factor is nearly 1."""
    scale = np.linspace(1, largest, 4, dtype=np.float32)
    expected = observed(*SCALED, weights=[("s", scale)])
    found = paired(observed(*EXPECTED, weights=[("w", WEIGHT * scale)]), expected)
    assert names(found) == {"x": "x", "a": "e", "b": "b", "c": "c", "y": "y"}
    wrong = paired(observed(*EXPECTED, weights=[("w", WEIGHT * scale[::-1])]), expected)
    assert names(wrong)["a"] == "a"
    twice = paired(observed(*SCALED, weights=[("w", WEIGHT * scale), ("s", scale)]), expected)
    assert names(twice)["a"] == "a" and names(twice)["e"] == "e"


def test_each_weight_is_hashed_once_in_a_program(monkeypatch):
    """Also if several nodes read it: the hashes of a model of 4 GB take seconds."""
    hashed, sha256 = [], _observed.hashlib.sha256

    def counting(data):
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(_observed.hashlib, "sha256", counting)
    nodes = (*EXPECTED[:1], ("MatMul", ["a", "w"], ["b"]), ("MatMul", ["b", "w"], ["y"]))
    assert len(pairs_of(nodes, nodes).by_value) == len("xaby")
    assert hashed == 2 * [WEIGHT.nbytes]


def test_a_name_that_means_something_else_does_not_count():
    """In the file of another exporter the same names may be those of other values."""
    actual = (("MatMul", ["x", "w"], ["b"]), ("Exp", ["b"], ["c"]), ("Mul", ["c", "x"], ["a"]), ("Neg", ["a"], ["y"]))
    assert names(pairs_of(actual)) == {"x": "x", "b": "a", "c": "b", "a": "c", "y": "y"}


def test_a_value_that_outputs_do_not_depend_on_is_left_out():
    """Its numbers are not those of the value of its name, but nothing is wrong."""
    actual = (*EXPECTED[:3], ("Neg", ["c"], ["y"]), ("Exp", ["x"], ["d"]))
    expected = (*EXPECTED, ("Log", ["b"], ["d"]))
    assert "d" not in pairs_of(actual, expected).by_value


def test_a_copy_of_an_earlier_value_is_what_it_replaces():
    """`Identity` in place of a node has the numbers of another value, and the reader shows what it should be."""
    actual = (*RENAMED[:2], ("Identity", ["1"], ["3"]), RENAMED[3])
    assert names(pairs_of(actual))["3"] == "c"


def test_quantized_integers_correspond_to_no_numbers():
    """The same operator on integers computes other numbers."""
    actual = (
        ("Cast", ["x"], ["i"], {"to": TensorProto.INT32}),
        ("Mul", ["i", "i"], ["j"]),
        ("Cast", ["j"], ["k"], {"to": TensorProto.FLOAT}),
        ("Neg", ["k"], ["y"]),
    )
    expected = (("Mul", ["x", "x"], ["c"]), ("Neg", ["c"], ["y"]))
    assert "j" not in pairs_of(actual, expected).by_value


@pytest.mark.parametrize("wrong", [0, 3])
def test_quantized_weights_may_be_columns_of_one(wrong):
    """Each of two products has half of a joined weight; or one that has other numbers, with most of them wrong."""
    integers = np.random.default_rng(0).integers(0, 16, (2, 4, 4), np.uint8)
    weight = (np.concatenate(integers).T.astype(np.float32) - 8) / 4
    integers[1, :wrong] ^= 1
    packed = [np.pad(half[:, ::2] | half[:, 1::2] << 4, ((0, 0), (0, 6)))[:, None] for half in integers]
    scales = np.full(4, 0.25, np.float32)
    sizes = {"K": 4, "N": 4, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
    products = [("MatMulNBits", ["x", name, "scales"], [f"{name}.product"], {**sizes, "name": name}) for name in "ab"]
    actual = observed(
        *products,
        ("Mul", ["a.product", "b.product"], ["y"]),
        weights=[("a", packed[0]), ("b", packed[1]), ("scales", scales)],
    )
    split = ("Split", ["joined"], ["first", "second"], {"axis": -1, "num_outputs": 2})
    nodes = ("MatMul", ["x", "joined.weight"], ["joined"]), split, ("Mul", ["first", "second"], ["y"])
    found = paired(actual, observed(*nodes, weights=[("joined.weight", weight)]))
    assert names(found)["a.product"] == "first"
    assert found.same_weights == ({"a"} if wrong else {"a", "b"})


def test_a_wrong_value_that_is_one_number_has_no_parts():
    """Its operator computes another value from what it reads, which is not a part of it."""
    total = ("ReduceMin", ["x"], ["s"], {"keepdims": 0})
    expected = (total, ("LeakyRelu", ["s"], ["a"], {"alpha": 0.1}), ("Mul", ["x", "a"], ["y"]))
    wrong = ("LeakyRelu", ["s"], ["b"], {"alpha": 30.0})

    found = pairs_of((*expected[:2], wrong, ("Mul", ["x", "b"], ["y"])), expected)

    assert names(found)["a"] == "a" and names(found)["y"] == "y" and None not in names(found).values()
