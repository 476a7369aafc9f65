"""Checkpoints of any origin end in tensors or in one sentence, within bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from filch.compare import CompareError, align
from filch.compare.models import _array_files, _gguf
from filch.compare.models._array_files import load_arrays
from filch.compare.models._gguf import load_gguf
from filch.steal.files._kinds import budget_of

Write = Callable[[Path], object]


def saved(make):
    """Return a function that saves a value."""

    def write(path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layouts that may change
            torch.save(make(), path)

    return write


def nested_in_itself(levels):
    """Return a small dictionary that is walked 2**levels times."""
    value: dict[str, Any] = {"w": torch.ones(1)}
    for _ in range(levels):
        value = {"a": value, "b": value}
    return value


def compressed(path):
    saved(lambda: {"w": torch.zeros(1000, 1000)})(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, contents in members.items():
            archive.writestr(name, contents)


def pickled(contents):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in {"data.pkl": contents, "byteorder": b"little", "version": b"3\n"}.items():
                archive.writestr(f"a/{name}", part)

    return write


def tar(path):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("pickle"), io.BytesIO())


def safetensors(header, contents=bytes(16)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return lambda path: path.write_bytes(struct.pack("<Q", len(text)) + text + contents)


def entry(dtype, shape, start, stop):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def damaged_npz(path):
    np.savez_compressed(path, a=np.arange(1000.0))
    contents = bytearray(path.read_bytes())
    contents[100:110] = bytes([255]) * 10
    path.write_bytes(contents)


HOSTILE: dict[str, tuple[str, Write, str]] = {
    "a damaged stream of NumPy": ("a.npz", damaged_npz, "it is not a file of numpy.savez"),
    "nested 40 times": ("a.pt", saved(lambda: nested_in_itself(40)), "it is nested more than 32 deep"),
    "nested 24 times": ("a.pt", saved(lambda: nested_in_itself(24)), "it has more than 262,144 values"),
    "expanded": ("a.pt", saved(lambda: {"w": torch.zeros(1).expand(2**20, 2**20)}), "more than 2,147,483,648 bytes"),
    "sparse": (
        "a.pt",
        saved(lambda: {"w": torch.sparse_coo_tensor([[0], [0]], [1.0], (2**30, 2**30), check_invariants=True)}),
        "more than 2,147,483,648 bytes",
    ),
    "meta": ("a.pt", saved(lambda: {"w": torch.empty(8, 8, device="meta")}), "'w' has no numbers"),
    "compressed": ("a.pt", compressed, "is compressed, which torch never does"),
    "a pickle that only torch reads": ("a.pt", pickled(b"\x80\2h\0."), "can't be read as arrays"),
    "a tar file": ("a.pt", tar, "in the format of PyTorch before 0.2"),
    "no dictionary": ("a.pt", saved(lambda: torch.ones(2)), "it has no tensors in a dictionary"),
    "an empty file": ("a.pt", lambda path: path.touch(), "can't be read as arrays"),
    "a FIFO": ("a.pt", os.mkfifo, "it is a FIFO"),
    "a FIFO of safetensors": ("a.safetensors", os.mkfifo, "it is a FIFO"),
    "a device": ("a.bin", lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "a device of safetensors": ("a.safetensors", lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "a FIFO of NumPy": ("a.npz", os.mkfifo, "it is a FIFO"),
    "a terabyte": ("a.npz", lambda path: (path.touch(), os.truncate(path, 2**40)), "at most 2,147,483,648 are read"),
    "a long header": ("a.safetensors", lambda path: path.write_bytes(b"\xff" * 64), "its header is said to have"),
    "a cut header": ("a.safetensors", lambda path: path.write_bytes(b"\1"), "it is no file of safetensors"),
    "a header of lists": ("a.safetensors", safetensors(b"[" * 9999), "it is nested too deep"),
    "a header that is a list": ("a.safetensors", safetensors([1]), "it is no file of safetensors"),
    "no numbers": ("a.safetensors", safetensors({"a": entry("F6_E2M3", [4], 0, 3)}), "numbers of type 'F6_E2M3'"),
    "too few numbers": ("a.safetensors", safetensors({"a": entry("F32", [8], 0, 16)}), "which are not its shape"),
    "beyond the end": ("a.safetensors", safetensors({"a": entry("F32", [8], 0, 32)}), "in the file"),
    "true": ("a.safetensors", safetensors({"a": entry("U8", [True, True], 0, 1)}), "has the shape"),
    "an odd number of F4": ("a.safetensors", safetensors({"a": entry("F4", [7], 0, 3)}), "which are not its shape"),
    "shared numbers": (
        "a.safetensors",
        safetensors({"a": entry("U8", [16], 0, 16), "b": entry("U8", [9], 7, 16)}),
        "'b' is not after the tensor before it",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_checkpoint_is_refused_with_one_sentence(tmp_path, case):
    """It says what is wrong, before memory is taken."""
    name, write, message = HOSTILE[case]
    write(tmp_path / name)
    with pytest.raises(CompareError, match=message) as caught:
        load_arrays(tmp_path / name)
    assert str(caught.value).isprintable()


def test_a_hostile_gguf_file_is_refused_with_one_sentence(tmp_path, monkeypatch):
    """An array that is said to go on after the end of the file, and what is no regular file."""
    pytest.importorskip("gguf")
    path = tmp_path / "a.gguf"
    key = struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 2**60)  # an array of so many integers
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + key)
    monkeypatch.setattr(_gguf, "budget_of", partial(budget_of, items=1000))
    with pytest.raises(CompareError, match="can't be read as GGUF: it has more than 1,000 fields"):
        load_gguf(path)
    keys = b"".join(struct.pack("<QcIB", 1, bytes([key]), 0, 1) for key in range(40, 60))
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 20) + keys)
    with pytest.raises(CompareError, match="can't be read as GGUF: it has more than 1,000 fields"):
        load_gguf(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CompareError, match="it is a FIFO"):
        load_gguf(path)


def test_the_words_of_a_gguf_file_are_skipped(tmp_path, monkeypatch):
    """The package would read each of them, in 70 microseconds."""
    pytest.importorskip("gguf")
    words = struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 300) + struct.pack("<Q3s", 3, b"one") * 300
    sizes = struct.pack("<Q1sIIQ", 1, b"l", 9, 5, 3) + struct.pack("<3i", 1, 2, 3)
    weight = struct.pack("<Q1sIQIQ", 1, b"w", 1, 2, 0, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + words + sizes + weight
    (tmp_path / "a.gguf").write_bytes(header + bytes(-len(header) % 32) + struct.pack("<2f", 1.0, 2.0))
    monkeypatch.setattr(_gguf, "budget_of", partial(budget_of, items=303 + 32 * 30))
    assert load_gguf(tmp_path / "a.gguf").weights["w"].tolist() == [1.0, 2.0]


def test_unpickling_is_counted_in_steps(tmp_path, monkeypatch):
    """However fast the machine is, and whatever the pickle makes."""
    pickled(b"\x80\2" + b"]" * 10_000 + b".")(tmp_path / "a.pt")
    monkeypatch.setattr(_array_files, "budget_of", partial(budget_of, steps=1000))
    with pytest.raises(CompareError, match="unpickling it takes more than 1,000 steps or 120 seconds"):
        load_arrays(tmp_path / "a.pt")


def kinds_of_tensors(numbers):
    """Return the same numbers in each way in which a tensor can have them."""
    return {
        "sparse": numbers.to_sparse(),
        "rows": numbers.to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(numbers, 0.5, 0, torch.qint8),
        "float8": numbers.to(torch.float8_e4m3fn),
    }


def test_each_kind_of_tensor_is_read_as_its_numbers(tmp_path):
    """Sparse, quantized and of eight bits; the rows of a nested tensor are tensors of their own."""
    numbers = torch.tensor([[0.0, 0.5], [1.5, 0.0]])
    saved(lambda: {**kinds_of_tensors(numbers), "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])})(
        tmp_path / "a.pt"
    )
    found = load_arrays(tmp_path / "a.pt")
    assert {*found} == {"sparse", "rows", "quantized", "float8", "nested.0", "nested.1"}
    assert all(torch.equal(found[name], numbers) for name in kinds_of_tensors(numbers))


def test_numbers_of_four_and_eight_bits_in_safetensors_are_read(tmp_path):
    """Two of four bits are in a byte, the first in its lower half."""
    header = {"a": entry("F4", [2, 2], 0, 2), "b": entry("F8_E4M3", [1], 2, 3), "c": entry("I8", [0], 3, 3)}
    safetensors(header, bytes((0x21, 0xF7, 0x38)))(tmp_path / "a.safetensors")
    found = load_arrays(tmp_path / "a.safetensors")
    assert found["a"].tolist() == [[0.5, 1.0], [6.0, -6.0]]
    assert found["b"].tolist() == [1.0]
    assert found["c"].shape == (0,)


class Holding(torch.nn.Module):
    """A linear layer with a further buffer, of which the output may depend."""

    def __init__(self, held, *, used=False):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.used = torch.nn.Linear(8, 8), used
        self.register_buffer("held", held)

    def forward(self, x):
        y = self.linear(x).relu()
        return torch.sparse.mm(self.held, y) if self.used else y


HELD: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(8).to_sparse(),
    "rows": lambda: torch.eye(8).to_sparse_csr(),
    "bits": lambda: torch.eye(8, dtype=torch.bool).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.eye(8), 0.1, 0, torch.qint8),
    "opaque": lambda: torch.eye(8).to_mkldnn(),
    "float8": lambda: torch.eye(8).to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta state)")
@pytest.mark.parametrize("kind", HELD)
def test_a_module_with_a_tensor_that_is_not_dense_is_aligned(kind):
    """By its values and by its weights alone."""
    own, other = Holding(HELD[kind]()), Holding(HELD[kind]())
    assert align(own, other, torch.randn(8, 8)).close
    assert align(own, other).close


def test_a_wrong_sparse_buffer_is_found():
    """By the outputs that are computed with it, and by its numbers; the same one is silent."""
    x, held = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), torch.eye(8)
    wrong = held.clone()
    wrong[2, 5] = 1.25
    right = Holding(held.to_sparse(), used=True)
    assert align(right, Holding(held.to_sparse(), used=True), x).close
    for given in ((x,), ()):
        assert not align(right, Holding(wrong.to_sparse(), used=True), *given).close


def test_weights_without_numbers_are_refused():
    """Those of a model on the device meta, which was never loaded."""
    model = Holding(torch.ones(3, device="meta"))
    with pytest.raises(CompareError, match="Holding has weights on the device meta, which have no numbers"):
        align(model, model, torch.ones(8, 8))
    with pytest.raises(CompareError, match="'held' has no numbers"):
        align(model, model)


def test_integers_that_are_not_compared_are_reported():
    """Packed weights are left out of the comparison, which a remark says; equal ones are not mentioned."""
    weights = {"w": torch.randn(4, 4), "packed": torch.arange(6)}
    assert not align(weights, dict(weights), weights_only=True).remarks
    other = {**weights, "packed": torch.arange(6) * 3}
    remarks = align(weights, other, weights_only=True).remarks
    assert remarks == tuple(
        f"weights of {side} that are integers which the other one does not have are not compared: 'packed' (int64)"
        for side in "AB"
    )
