"""What a capture knows of TF32; the device and its settings are made up."""

import json

import onnx
import pytest
import torch
from torch import nn

from filch.steal import DumpError, ModuleInfo, restore, steal_forward
from filch.steal._tf32 import Product, tf32_products

CUDA = torch.device("cuda")


@pytest.fixture
def ampere(monkeypatch):
    """A GPU with TF32, and torch's default settings."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)


def test_by_default_convolutions_use_tf32(ampere, monkeypatch):
    """Matrix products do so on request, and nothing does on the CPU or on an older GPU."""
    assert tf32_products(CUDA) == {"convolution"}
    assert tf32_products(torch.device("cpu")) == tf32_products(None) == frozenset()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert tf32_products(CUDA) == {*Product}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert tf32_products(CUDA) == frozenset()


def test_a_dump_says_which_products_of_the_model_were_rounded(tmp_path, monkeypatch):
    """As does a capture in memory; nothing is written of a model that used no TF32."""
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    for file, tf32 in ((tmp_path / "none.onnx", frozenset()), (tmp_path / "all.onnx", frozenset(Product))):
        monkeypatch.setattr("filch.steal._records.tf32_products", lambda _, tf32=tf32: tf32)
        with steal_forward(("m", model), dump_file=file) as capture:
            model(x)
        assert capture.modules["m"].tf32 == restore(file).modules["m"].tf32 == tf32
        assert (b'"tf32"' in file.read_bytes()) == bool(tf32)


def test_the_first_weight_tells_the_device():
    """A module without weights runs where its inputs are."""
    assert ModuleInfo.of(nn.ReLU()).tf32 == ModuleInfo.of(nn.Linear(1, 1)).tf32 == frozenset()


@pytest.mark.parametrize("damaged", [5, None, [5], [["matmul"]]])
def test_a_damaged_entry_is_refused(tmp_path, damaged):
    """In one sentence; the file comes from outside."""
    with steal_forward(("m", nn.Identity()), dump_file=tmp_path / "dump.onnx"):
        pass
    model = onnx.load(tmp_path / "dump.onnx")
    (entry,) = (item for item in model.metadata_props if item.key == "filch.modules")
    modules = json.loads(entry.value)
    modules["m"]["tf32"] = damaged
    entry.value = json.dumps(modules)
    onnx.save(model, tmp_path / "damaged.onnx")

    assert restore(tmp_path / "dump.onnx").modules["m"].tf32 == frozenset()
    with pytest.raises(DumpError, match=r"the index of .* is damaged"):
        restore(tmp_path / "damaged.onnx")
