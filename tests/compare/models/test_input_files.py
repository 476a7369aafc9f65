"""Files of inputs: what NumPy, safetensors and Polygraphy write is read; damaged and hostile files are errors."""

import base64
import io
import json
import os
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from filch.compare import CompareError, load_inputs


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


def pickled(path):
    np.savez(path, x=np.array([{}], dtype=object))


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
    ("a.npz", pickled, "which only a pickle can hold"),
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
