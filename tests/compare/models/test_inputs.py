"""Inputs of programs: read from files, of which damaged and hostile ones are errors, or drawn to fit the graph."""

import base64
import io
import json
import os
import zipfile

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file

from filch.compare import CompareError, load_inputs
from filch.compare.models._drawn_inputs import draw_inputs
from filch.compare.models._second_input import other_numbers
from filch.export import as_program


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def as_polygraphy(array):
    return {"array": base64.b64encode(npy(array)).decode(), "polygraphy_class": "ndarray"}


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.int64).reshape(2, 3), np.asfortranarray(np.eye(3, 2, dtype=np.float32)), np.float16(2)],
)
def test_npz_has_the_arrays_of_one_call(tmp_path, array):
    """Names, dtypes, shapes and numbers are those of the arrays."""
    np.savez_compressed(tmp_path / "a.npz", x=array, y=np.array([True]))
    (inputs,) = load_inputs(tmp_path / "a.npz")
    assert list(inputs) == ["x", "y"] and torch.equal(inputs["x"], torch.from_numpy(np.asarray(array)))


def test_numbers_of_another_byte_order_are_converted(tmp_path):
    """Big-endian arrays are read as the machine's own."""
    np.savez(tmp_path / "a.npz", x=np.arange(3, dtype=">i4"))
    assert load_inputs(tmp_path / "a.npz")[0]["x"].tolist() == [0, 1, 2]


def test_safetensors_has_the_tensors_of_one_call(tmp_path):
    """Also of bfloat16, which NumPy does not have."""
    save_file({"x": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    (inputs,) = load_inputs(tmp_path / "a.safetensors")
    assert torch.equal(inputs["x"], torch.ones(2, dtype=torch.bfloat16))


def test_polygraphy_has_several_calls(tmp_path):
    """`--save-inputs` writes a list of calls; older versions mark arrays in another way."""
    legacy = {"array": as_polygraphy(np.ones(2))["array"], "__polygraphy_encoded_ndarray": "constant"}
    (tmp_path / "a.json").write_text(json.dumps([{"x": as_polygraphy(np.zeros((1, 2)))}, {"x": legacy}]))
    assert [inputs["x"].tolist() for inputs in load_inputs(tmp_path / "a.json")] == [[[0, 0]], [1, 1]]


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(np.zeros(2**22)))


def member(contents):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", contents)

    return write


def with_shape(shape):
    """Return an array of two numbers that claims another shape."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(16)


def with_header(descr):
    """Return an array whose header has a dtype that NumPy does not write."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}\n".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(4)


HOSTILE = [
    ("a.npz", bomb, "at most"),
    ("a.npz", lambda path: np.savez(path, x=np.array([{}], dtype=object)), "which only a pickle can hold"),
    ("a.npz", member(npy(np.zeros(9))[:-1]), "is damaged: its shape is"),
    ("a.npz", member(npy(np.zeros(9)) + b" "), "is damaged: its shape is"),
    ("a.npz", member(with_shape((10**13,))), "is damaged: its shape is"),
    ("a.npz", member(with_shape((-1, -2))), "is no NumPy array: its header is"),
    ("a.npz", member(with_shape((True, True))), "is no NumPy array: its header is"),
    ("a.npz", member(with_header("'" + "<f4" * 9000 + "'")), "is no NumPy array: its header is"),
    ("a.npz", member(with_header("(((" + "-" * 9000 + "1,")), "is no NumPy array: its header is"),
    ("a.npz", member(with_header("'nothing'")), "it has the dtype 'nothing'"),
    ("a.npz", member(with_header("[('a', '<f4')]")), "which no tensor can hold"),
    ("a.npz", member(b"nothing"), "is no NumPy array"),
    ("a.npz", member(npy(np.array(["2020"], "M8[D]"))), "which no tensor can hold"),
    ("a.npz", member(npy(np.zeros(2**20 + 1, "S1"))), "has 1,048,577 strings, and at most 1,048,576 are read"),
    ("a.npz", member(npy(np.array(["a"])).replace(b"a\0\0\0", b"\xff" * 4)), "characters that Unicode does not have"),
    ("a.npz", lambda path: path.write_bytes(b"PK"), "is not a file of numpy.savez"),
    ("a.safetensors", lambda path: path.write_bytes(b"\xff" * 64), "is no file of safetensors"),
    ("a.json", lambda path: path.write_text("[1]"), "is not a list of dictionaries"),
    ("a.json", lambda path: path.write_text("[]"), "is not a list of dictionaries"),
    ("a.json", lambda path: path.write_text("{"), "can't be used as inputs"),
    ("a.json", lambda path: path.write_text('[{"x": [1]}]'), "'x' is of type list"),
    ("a.json", lambda path: path.write_text('[{"x": {"polygraphy_class": "Tensor"}}]'), "'x' is of type 'Tensor'"),
    ("a.json", lambda path: path.write_text('[{"x": {"array": "?", "polygraphy_class": "ndarray"}}]'), "base64"),
    ("a.json", lambda path: path.write_text('[{"x": {"array": 1, "polygraphy_class": "ndarray"}}]'), "base64"),
    ("a.pt", lambda path: path.write_bytes(b""), "give one of .npz, .safetensors, .json"),
    ("a.npz", lambda path: None, "can't read"),
    ("a.npz", os.mkfifo, "it is a FIFO"),
]


@pytest.mark.parametrize(("name", "write", "message"), HOSTILE)
def test_a_damaged_or_hostile_file_is_refused(tmp_path, name, write, message):
    """The error says what is wrong; nothing is unpickled, and no large array is made."""
    write(tmp_path / name)
    with pytest.raises(CompareError, match=message):
        load_inputs(tmp_path / name)


@pytest.mark.parametrize("strings", [["a", "bc"], [b"a", b"bc"]])
def test_strings_are_arrays_of_objects(tmp_path, strings):
    """As a program takes them that has inputs of strings."""
    np.savez(tmp_path / "a.npz", s=np.array(strings))
    (inputs,) = load_inputs(tmp_path / "a.npz")
    assert (inputs["s"].dtype, inputs["s"].tolist()) == (object, strings)


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


def test_other_numbers_do_not_depend_on_the_layout():
    """The same numbers in another order become the same other numbers."""
    image = torch.randn(2, 3, 5, 5)
    tokens = torch.tensor([[5, 9, 2], [7, 9, 4]])
    first, second = other_numbers((image, tokens)), other_numbers((image.permute(0, 2, 3, 1).contiguous(), tokens.T))
    assert torch.equal(first[0].permute(0, 2, 3, 1), second[0])
    assert torch.equal(first[1].T, second[1])
    assert not torch.equal(first[0], image)
    assert sorted(first[1].unique().tolist()) == sorted(tokens.unique().tolist())
    assert not torch.equal(first[1], tokens)


def test_masks_and_positions_are_kept():
    """A mask of other tokens or positions in another order would be another task."""
    mask, positions, flags = torch.tensor([[1, 1, 0]]), torch.arange(6)[None], torch.tensor([True, False])
    kept = other_numbers({"mask": mask, "positions": positions, "flags": flags, "name": "x", "size": 3})
    assert torch.equal(kept["mask"], mask)
    assert torch.equal(kept["positions"], positions)
    assert torch.equal(kept["flags"], flags)
    assert (kept["name"], kept["size"]) == ("x", 3)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.bfloat16, torch.int8])
def test_numbers_of_every_dtype_have_others(dtype):
    """Also of those that torch does not compute with."""
    given = torch.tensor([[5, 9, 2], [7, 9, 4]]).to(dtype)
    other = other_numbers(given)
    assert other.dtype == dtype and other.shape == given.shape
    assert not torch.equal(other.double(), given.double())
