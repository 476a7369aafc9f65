"""Every tensor that has numbers comes back with its bits; one that has none is recorded with the reason."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.masked import masked_tensor

from filch.steal import Skipped, describe, restore, steal_forward
from filch.steal._dtypes import CARRIERS

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
WITHOUT = {  # computed with by nothing but torch's own quantisation, or not at all
    *(f"bits{size}" for size in ("1x8", "2x4", "4x2", "8", "16")),
    *(f"{sign}int{size}" for sign in ("", "u") for size in range(1, 8)),
    *("qint8", "qint32", "quint8", "quint4x2", "quint2x4"),
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of (nested|MaskedTensors):UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning"),
]


def _any_bits(dtype, *shape):
    """A tensor of `dtype` with all kinds of bits in it: infinities, NaNs with payloads, subnormals, minus zero."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    *rest, last = shape
    raw = torch.randint(0, 256, (*rest, last * dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


def test_every_dtype_of_torch_has_a_carrier_or_is_known_to_have_none():
    """A dtype that a new torch brings is news."""
    assert {str(dtype).removeprefix("torch.") for dtype in DTYPES if dtype not in CARRIERS} == WITHOUT


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_a_dtype_comes_back_bit_for_bit(remembered, restored, differ, dtype):
    """From memory and from a dump, NaNs and all."""
    tensor = _any_bits(dtype, 3, 64)

    assert differ(restored(tensor), tensor) is None
    assert differ(remembered(tensor), tensor) is None


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_a_dtype_comes_back_in_any_shape(restored, differ, dtype):
    """A single number, none at all, and none in several dimensions."""
    tensors = [_any_bits(dtype, 1).reshape(()), _any_bits(dtype, 0), _any_bits(dtype, 0).reshape(2, 0, 3)]

    assert differ(restored(tensors), tensors) is None


BASE = torch.arange(24.0).reshape(2, 3, 4)
COMPLEX = torch.complex(BASE, BASE + 0.5)
VIEWS = {
    "transposed": BASE.transpose(0, 2),
    "strided": BASE[:, ::2, 1::2],
    "expanded": BASE[:, :1].expand(2, 5, 4),
    "one number expanded": torch.tensor(3.0).expand(2, 2),
    "offset": BASE[1:],
    "conjugated": COMPLEX.conj(),
    "negated": COMPLEX.conj().imag,
    "conjugated and transposed": COMPLEX.mH,
    "channels last": torch.arange(48.0).reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "requiring a gradient": BASE.clone().requires_grad_(),
    "with a gradient function": BASE.clone().requires_grad_() * 2,
    "parameter": nn.Parameter(BASE.clone()),
    "buffer": nn.Buffer(BASE.clone()),
    "half complex": torch.view_as_complex(BASE[..., :2].half().contiguous()),
    "quarter": BASE.to(torch.float8_e4m3fn).transpose(0, 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_comes_back_as_its_numbers(remembered, restored, differ, name):
    """However it lies in memory; it is a plain tensor afterwards."""
    tensor = VIEWS[name]

    assert differ(restored(tensor), tensor) is None
    assert differ(remembered(tensor).as_subclass(torch.Tensor), tensor) is None
    assert not restored(tensor).requires_grad
    assert not remembered(tensor).requires_grad


def test_inference_tensors_come_back_as_plain_ones(remembered, restored, differ):
    """They allow less than others; what was stolen of them can be trained with."""
    weight = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        tensor = torch.arange(3.0) * 2
        capture = remembered(tensor)
    dump = restored(tensor)

    for found in (capture, dump):
        assert differ(found, tensor) is None
        (weight * found).sum().backward()


def test_a_default_device_does_not_reach_what_is_restored(tmp_path):
    """Restored tensors are on the CPU, empty ones too."""
    module = nn.Identity()
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module((torch.ones(2), torch.ones(0)))

    with torch.device("meta"):
        found = restore(tmp_path / "dump.onnx")["m", 0, "O"]

    assert [tensor.device.type for tensor in found] == ["cpu", "cpu"]


def _fake():
    with FakeTensorMode():
        return torch.ones(2, 3)


WITHOUT_NUMBERS = {
    "meta": (lambda: torch.ones(2, 3, device="meta"), "f32[2, 3]", "it has no data"),
    "fake": (_fake, "f32[2, 3]", "it has no data"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "f32[2, 2]", "its layout is sparse_coo"),
    "sparse rows": (lambda: torch.eye(2).to_sparse_csr(), "f32[2, 2]", "its layout is sparse_csr"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "f32[nested]", "it is nested"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        "f32[nested]",
        "it is nested",
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        "quint8[2]",
        "it is quantized",
    ),
    "bits": (lambda: torch.empty(2, dtype=torch.bits8), "bits8[2]", "ONNX has no carrier for bits8"),
    "small integers": (lambda: torch.empty(2, dtype=torch.uint4), "uint4[2]", "ONNX has no carrier for uint4"),
    "masked": (
        lambda: masked_tensor(torch.ones(2), torch.tensor([True, False])),
        "f32[2]",
        "its class, MaskedTensor, keeps its numbers in its own way",
    ),
}


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_a_tensor_without_plain_numbers_is_skipped_with_its_reason(tmp_path, capsys, on_disk, name):
    """The run goes on, what is beside it is stored, and `verbose=1` can speak of it."""
    make, what, reason = WITHOUT_NUMBERS[name]
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx" if on_disk else None, verbose=1) as capture:
        module((make(), torch.ones(1)))

    found, beside = capture["m", 0, "O"]
    assert found == Skipped(what, reason)
    assert beside.item() == 1
    assert f"-- skips a {describe(make())} of key=('m', 0, 'O'): {reason}" in capsys.readouterr().out
