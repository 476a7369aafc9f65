"""Tensors with data are restored bit for bit; others are skipped with a reason."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.masked import MaskedTensor, masked_tensor

from filch.steal import DumpError, Skipped, describe, restore, steal_append, steal_forward, tensors
from filch.steal.values._decode import decode
from filch.steal.values._dtypes import CARRIERS, OPAQUE_DTYPES, reason_not_storable
from filch.steal.values._encode import encode
from filch.steal.values._structure import structure
from filch.steal.values._tensors import split_parts

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTIZED = {"qint8", "qint32", "quint8", "quint4x2", "quint2x4"}

pytestmark = [
    pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32) support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of (nested|MaskedTensors):UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning"),
]


def _any_bits(dtype, *shape):
    """Return a tensor with infinities, NaNs with payloads, subnormals and -0.0."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    *rest, last = shape
    raw = torch.randint(0, 256, (*rest, last * dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


def test_every_dtype_of_torch_can_be_stored_or_is_a_known_exception():
    """Fails when a new torch release adds a dtype."""
    missing = {
        str(dtype).removeprefix("torch.") for dtype in DTYPES if dtype not in CARRIERS and dtype not in OPAQUE_DTYPES
    }

    assert missing == QUANTIZED


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_every_dtype_is_restored_bit_for_bit(captured, restored, differ, dtype):
    """From memory and from a dump, including NaNs."""
    tensor = _any_bits(dtype, 3, 64)

    assert differ(restored(tensor), tensor) is None
    assert differ(captured(tensor), tensor) is None


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_every_dtype_is_restored_in_any_shape(restored, differ, dtype):
    """Scalars, and empty tensors of one or several dimensions."""
    tensors = [_any_bits(dtype, 1).reshape(()), _any_bits(dtype, 0), _any_bits(dtype, 0).reshape(2, 0, 3)]

    assert differ(restored(tensors), tensors) is None


def _encoded(value):
    """Return the JSON form of a value, and the tensors stored for it."""
    stored = []

    def put(tensor, _path):
        stored.append(tensor)
        return {"tensor": len(stored) - 1}

    return encode(value, put), stored


@pytest.mark.parametrize("dtype", OPAQUE_DTYPES, ids=str)
def test_a_dtype_that_torch_cannot_copy_is_stored_as_bytes(restored, captured, dtype):
    """It is restored with its dtype, also transposed."""
    tensor = torch.arange(12 * dtype.itemsize, dtype=torch.uint8).reshape(3, -1).view(dtype).t()

    for send in (restored, captured):
        found = send(tensor)
        assert (found.dtype, found.stride()) == (dtype, (1, 4))
        assert torch.equal(found.view(OPAQUE_DTYPES[dtype]), tensor.view(OPAQUE_DTYPES[dtype]))
    assert tensors(tensor)[""].dtype == OPAQUE_DTYPES[dtype]


class Tagged(torch.Tensor):
    """A subclass with `__torch_function__` that changes nothing."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(func)


BASE = torch.arange(24.0).reshape(2, 3, 4)
COMPLEX = torch.complex(BASE, BASE + 0.5)
VIEWS = {
    "transposed": BASE.transpose(0, 2),
    "strided": BASE[:, ::2, 1::2],
    "expanded": BASE[:, :1].expand(2, 5, 4),
    "one number expanded": torch.tensor(3.0).expand(2, 2),
    "column expanded": torch.arange(4.0)[:, None].expand(4, 3),
    "expanded and transposed": BASE.mT[:, :, :1].expand(2, 4, 7).transpose(0, 1),
    "expanded to nothing": torch.ones(1).expand(0, 1),
    "overlapping": torch.arange(5.0).unfold(0, 3, 1),
    "offset": BASE[1:],
    "conjugated": COMPLEX.conj(),
    "negated": COMPLEX.conj().imag,
    "conjugated and transposed": COMPLEX.mH,
    "channels last": torch.arange(48.0).reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "requiring a gradient": BASE.clone().requires_grad_(),
    "with a gradient function": BASE.clone().requires_grad_() * 2,
    "expanded with a gradient": torch.ones(1, 2, requires_grad=True).expand(3, 2),
    "complex with a gradient": COMPLEX.clone().requires_grad_(),
    "parameter": nn.Parameter(BASE.clone()),
    "frozen parameter": nn.Parameter(torch.arange(3), requires_grad=False),
    "transposed parameter": nn.Parameter(BASE.mT),
    "buffer": nn.Buffer(BASE.clone()),
    "of another class": BASE.as_subclass(Tagged),
    "half complex": torch.view_as_complex(BASE[..., :2].half().contiguous()),
    "quarter": BASE.to(torch.float8_e4m3fn).transpose(0, 1),
    "lazily copied": torch._lazy_clone(BASE),  # noqa: SLF001  there is no public API
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_restored_with_their_values(captured, restored, differ, name):
    """Whatever their strides are; classes of torch are kept."""
    tensor = VIEWS[name]
    plain = torch.Tensor.as_subclass(tensor, torch.Tensor).detach()

    for send in (restored, captured):
        found = send(tensor)
        assert differ(found.detach(), plain) is None
        assert type(found) is (nn.Parameter if "parameter" in name else torch.Tensor)
        assert isinstance(found, nn.Buffer) == (name == "buffer")
        assert found.requires_grad == ("gradient" in name or name in {"parameter", "transposed parameter"})
        assert found.is_leaf


@pytest.mark.parametrize(
    "name", ["transposed", "one number expanded", "column expanded", "channels last", "transposed parameter"]
)
def test_views_are_restored_in_their_memory_order(restored, name):
    """And with no more memory."""
    assert restored(VIEWS[name]).stride() == VIEWS[name].stride()


def test_gaps_between_elements_are_removed(restored):
    """Memory between the elements doesn't belong to the tensor."""
    assert restored(BASE[:, ::2, 1::2]).is_contiguous()
    assert restored(BASE[:, :, :2].mT).stride() == (6, 1, 2)


def test_expanded_tensors_are_stored_without_repetition():
    """Such as a mask for all heads and layers."""
    spec, stored = _encoded(torch.ones(2, 1, 3, 1).expand(2, 1000, 3, 4))

    assert spec == {"tensor": 0, "expand": [2, 1000, 3, 4]}
    assert [tensor.shape for tensor in stored] == [(2, 1, 3, 1)]


def test_memory_order_is_not_part_of_the_structure():
    """Neither are gradient flag and class, and tensors by path have their full shape."""
    values = [BASE, VIEWS["transposed"], VIEWS["expanded"], VIEWS["parameter"]]

    assert [structure(value) for value in values] == [{"tensor": None}] * 4
    assert [tensors(value)[""] is value for value in values] == [True] * 4


def _changed(spec, **changes):
    return {**spec, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"order": [0]}, {"order": [0, 0, 1]}, {"order": [0, 1, 3]}, {"order": [0, -1, 1]}, {"order": [0, True, 2]},
        {"order": "012"}, {"order": None}, {"expand": [2, 3]}, {"expand": [4, 3, 4]}, {"expand": [2, 3, -1]},
        {"expand": [1, 2, 3, 4]}, {"expand": 5}, {"dtype": "bits8"}, {"dtype": "float64"}, {"dtype": []},
    ],
)  # fmt: skip
def test_an_invalid_layout_is_refused(changes):
    """Before memory is allocated."""
    with pytest.raises(DumpError, match="the description of a value is damaged: "):
        decode(_changed({"tensor": 0}, **changes), lambda _: BASE)


@pytest.mark.parametrize("shape", [[2**61, 2**61, 1], [2**62, 1, 1], [10**30, 1, 1]])
def test_an_expansion_to_too_many_elements_is_refused(shape):
    """The number of elements would overflow; merely large expansions take no memory."""
    with pytest.raises(DumpError):
        decode({"tensor": 0, "expand": shape}, lambda _: torch.ones(1, 1, 1))
    large = decode({"tensor": 0, "expand": [2**40, 2, 1]}, lambda _: torch.ones(1, 1, 1))
    assert describe(large, statistics=True) == "f32[1099511627776, 2, 1] 1 … 1, mean 1"


def test_requires_grad_of_integers_is_refused():
    """Integer tensors can't require a gradient."""
    with pytest.raises(DumpError, match=r"torch.int64 can't require a gradient"):
        decode({"tensor": 0, "requires_grad": True}, lambda _: torch.ones(2, dtype=torch.int64))


def test_the_stored_tensor_is_not_changed_by_decoding():
    """It doesn't require a gradient because a restored tensor does."""
    held = torch.ones(2)

    found = decode({"tensor": 0, "requires_grad": True, "class": "torch.nn.parameter:Parameter"}, lambda _: held)

    assert isinstance(found, nn.Parameter) and found.requires_grad and not held.requires_grad


def test_inference_tensors_are_restored_as_normal_tensors(captured, restored, differ):
    """So they can be used for training."""
    weight = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        tensor = torch.arange(3.0) * 2
        capture = captured(tensor)
    dump = restored(tensor)

    for found in (capture, dump):
        assert differ(found, tensor) is None
        (weight * found).sum().backward()


def test_a_default_device_does_not_affect_restored_tensors(tmp_path):
    """They are on the CPU, also if empty."""
    module = nn.Identity()
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module((torch.ones(2), torch.ones(0)))

    with torch.device("meta"):
        found = restore(tmp_path / "dump.onnx")["m", 0, "O"]

    assert [tensor.device.type for tensor in found] == ["cpu", "cpu"]


ROWS = [torch.arange(6.0).reshape(2, 3), torch.ones(1, 3)]
MATRIX = torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 0, 0, 4]])
APART = {
    "sparse": MATRIX.to_sparse,
    "not coalesced": lambda: torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (3,), check_invariants=True),
    "dense inside": lambda: MATRIX.to_sparse(1),
    "none at all": lambda: torch.zeros(0, 3).to_sparse(),
    "sparse rows": MATRIX.to_sparse_csr,
    "sparse columns": MATRIX.to_sparse_csc,
    "sparse rows of blocks": lambda: MATRIX.to_sparse_bsr((2, 2)),
    "sparse columns of blocks": lambda: MATRIX.to_sparse_bsc((2, 1)),
    "several sparse": lambda: MATRIX.expand(2, 4, 4).to_sparse_csr(),
    "sparse with a gradient": lambda: MATRIX.to_sparse().requires_grad_(),
    "nested": lambda: torch.nested.nested_tensor(ROWS),
    "jagged": lambda: torch.nested.nested_tensor(ROWS, layout=torch.jagged),
    "jagged with a gradient": lambda: torch.nested.nested_tensor(ROWS, layout=torch.jagged, requires_grad=True),
    "quantized": lambda: torch.quantize_per_tensor(MATRIX, 0.1, 3, torch.quint8),
    "quantized, signed": lambda: torch.quantize_per_tensor(MATRIX, 0.1, 0, torch.qint32),
    "quantized by channel": lambda: torch.quantize_per_channel(
        MATRIX, torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.arange(4), 1, torch.qint8
    ),
    "masked": lambda: masked_tensor(MATRIX, MATRIX > 1),
    "masked with a gradient": lambda: masked_tensor(MATRIX.clone(), MATRIX > 1, requires_grad=True),
    "masked along a dimension": lambda: masked_tensor(MATRIX, torch.tensor([[True], [False]] * 2).expand(4, 4)),
}


def _numbers(tensor):
    """Return the values of a sparse, nested or quantized tensor as one or several dense tensors."""
    if isinstance(tensor, MaskedTensor):
        return [tensor.get_data(), tensor.get_mask()]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.is_quantized:
        return [tensor.int_repr(), tensor.dequantize()]
    parts = [tensor.to_dense()]
    return parts if tensor.layout != torch.sparse_coo else [*parts, tensor._indices(), tensor._values()]  # noqa: SLF001  the public ones need a coalesced tensor


@pytest.mark.parametrize("name", APART)
def test_sparse_nested_and_quantized_tensors_are_restored(captured, restored, name):
    """With the same class and values, and their parts have paths."""
    tensor = APART[name]()
    with torch.no_grad():
        wanted = _numbers(tensor)

    for send in (restored, captured):
        found = send(tensor)
        assert (type(found), found.layout, found.dtype) == (type(tensor), tensor.layout, tensor.dtype)
        assert found.requires_grad == tensor.requires_grad
        assert tensor.is_nested or found.shape == tensor.shape
        with torch.no_grad():
            assert all(map(torch.equal, _numbers(found), wanted))
    assert len(tensors(tensor)) >= 1


def test_the_parts_of_a_tensor_have_paths():
    """Named nearly as in torch."""
    assert list(tensors({"a": MATRIX.to_sparse()})) == ["['a'].indices", "['a'].values"]
    assert list(tensors(MATRIX.to_sparse_csc())) == [".outer", ".inner", ".values"]
    assert list(tensors(torch.nested.nested_tensor(ROWS))) == ["[0]", "[1]"]


@pytest.mark.parametrize("name", ["quantized", "quantized, signed", "quantized by channel"])
def test_the_integers_of_a_quantized_tensor_share_its_memory(name):
    """They are a view."""
    tensor = APART[name]()

    _, form = split_parts(tensor, exact=False)

    assert torch.equal(form["values"], tensor.int_repr())
    assert form["values"].data_ptr() == tensor.data_ptr()


def test_a_tensor_is_skipped_if_one_of_its_parts_is():
    """With the reason of the part."""
    spec = encode(MATRIX.to_sparse(), lambda tensor, path: {"skipped": path, "reason": "it is large"})

    assert spec == {"skipped": "f32[4, 4]", "reason": "it is large"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sparse", {"indices": 9}), ("sparse", {"shape": [1, 1]}), ("sparse", {"shape": [2**61, 2**61]}),
        ("sparse", {"shape": [-4, 4]}), ("sparse", {"layout": "strided"}), ("sparse", {"indices": {"list": []}}),
        ("not coalesced", {"coalesced": True}), ("sparse", {"values": {"tensor": 0}}),
        ("sparse rows", {"shape": [4, 1]}), ("sparse rows", {"outer": {"tensor": 1}}), ("sparse rows", {"inner": None}),
        ("sparse rows of blocks", {"layout": "sparse_csr"}), ("nested", {"layout": "strided?"}),
        ("jagged", {"rows": 5}), ("nested", {"rows": []}),
        ("quantized", {"scale": "x"}), ("quantized", {"zero_point": []}), ("quantized by channel", {"axis": 7}),
        ("quantized by channel", {"axis": True}), ("quantized by channel", {"scale": {"tensor": 0}}),
        ("masked", {"mask": {"tensor": 0}}),
    ],
)  # fmt: skip
def test_inconsistent_parts_are_refused(name, changes):
    """Indices outside of the shape would access other memory."""
    spec, stored = _encoded(APART[name]())
    ((tag, form),) = spec.items()

    try:
        found = decode({tag: _changed(form, **changes)}, stored.__getitem__)
    except DumpError as error:
        assert "the description of a value is damaged: " in str(error)  # noqa: PT017  one of two valid outcomes
    else:
        assert changes == {"rows": []} or not isinstance(found, torch.Tensor)


@pytest.mark.parametrize(
    "spec",
    [
        {"nested": {"layout": "jagged", "rows": [{"same": 0}]}},
        {"sparse": {"layout": "sparse_coo", "shape": [5], "indices": {"same": 0}, "values": {"same": 0}}},
        {"quantized": {"values": {"same": 0}, "scale": 1.0, "zero_point": 0}},
        {"masked": {"data": {"same": 0}, "mask": {"same": 0}}},
        {"numpy": {"same": 0}},
    ],
)
def test_the_part_of_a_tensor_cannot_be_expanded(spec):
    """Parts are copied, and an expansion from a small file could be of any size."""
    long = {"tensor": 0, "expand": [2**40, 2], "shared": 0}

    with pytest.raises(DumpError, match=r"\('same'\)"):
        decode({"tuple": [[0, long], [1, spec]]}, lambda _: torch.ones(1, 2))
    assert decode({"numpy": {"tensor": 0, "expand": [2**40, 2]}}, lambda _: torch.ones(1, 2)).shape == (1, 2)


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ([0, "float32", [2, 2]], [[0, 1], [2, 3]]), ([4, "float32", [2]], [1, 2]), ([16, "float32", [2, 3]], None),
        ([4, "complex64", [1]], [1 + 2j]), ([24, "float32", [0]], []), ([0, "int64", [3]], None),
        ([0, "float33", [1]], None), ([-4, "float32", [1]], None), ([0, "float32", [-1]], None), ([0, "float32"], None),
        ([0, "float32", [28]], None), ([0, "float32", [2**62]], None), ([25, "float32", [0]], None), ("abc", None),
        ([0, "float32", [1] * 300], None), ([0.0, "float32", [1]], None), ([True, "float32", [1]], None),
    ],
)  # fmt: skip
def test_a_view_of_a_stored_tensor_is_read_or_refused(part, wanted):
    """Its first byte, dtype and shape must lie inside the tensor."""
    spec = {"tensor": 0, "part": part}
    if wanted is None and part != [0, "int64", [3]]:
        with pytest.raises(DumpError):
            decode(spec, lambda _: torch.arange(6.0))
    else:
        assert wanted is None or decode(spec, lambda _: torch.arange(6.0)).tolist() == wanted


def test_an_unaligned_view_of_a_stored_tensor_is_copied():
    """It can't be read in place."""
    raw = torch.arange(40, dtype=torch.uint8)

    found = decode({"tensor": 0, "part": [1, "int32", [2]]}, lambda _: raw)

    assert found.view(torch.uint8).tolist() == list(range(1, 9))


def test_repeated_tensors_are_views_of_the_first():
    """They share its memory."""
    specs = [{"tensor": 0, "order": [2, 0, 1]}, {"tensor": 0, "part": [4, "float32", [2]]}, {"tensor": 0}]

    for spec in specs:
        one, other = decode({"list": [[0, spec], [1, spec]]}, lambda _: BASE)
        assert one is not other
        assert one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize("name", APART)
def test_a_repeated_sparse_or_quantized_tensor_is_a_view(name):
    """Of the same class as the first."""
    spec, stored = _encoded(APART[name]())

    one, other = decode({"list": [[0, spec], [1, spec]]}, stored.__getitem__)

    assert one is not other and type(one) is type(other)
    assert one.requires_grad == other.requires_grad
    with torch.no_grad():
        assert all(map(torch.equal, _numbers(one), _numbers(other)))


def test_values_of_any_memory_order_are_within_the_copy_limit(captured, restored, differ):
    """Several megabytes in many memory orders, each twice."""
    whole = torch.arange(2.0**19).reshape(8, 16, 32, 128)
    orders = [whole.permute(order) for order in ((0, 1, 3, 2), (1, 0, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3))]
    value = [whole, *orders, *(view.view_as(view) for view in orders), [view.numpy() for view in orders]]

    assert differ(captured(value), value) is None
    assert differ(restored(value), value) is None


MODES = [
    torch.no_grad, torch.inference_mode, FakeTensorMode, lambda: torch.device("meta"), lambda: torch.autocast("cpu"),
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["dense", *APART])
def test_modes_do_not_affect_capturing_and_decoding_tensors(name, mode):
    """Values are as they were, and usable outside of the mode."""
    tensor = torch.ones(2, 3).t() if name == "dense" else APART[name]()

    with mode():
        spec, stored = _encoded(tensor)
    copies = [part.detach().clone() for part in stored]
    with mode():
        found = decode(spec, copies.__getitem__)

    assert type(found) is type(tensor) and found.requires_grad == tensor.requires_grad
    assert found.device.type == "cpu" and not found.is_inference()


def test_parts_of_an_inference_tensor_are_read():
    """Inference tensors support fewer operations."""
    with torch.inference_mode():
        made = [make() for make in APART.values() if "gradient" not in str(make)]
        specs = [_encoded(tensor)[0] for tensor in made]

    assert not any("skipped" in spec for spec in specs)


def _fake():
    with FakeTensorMode():
        return torch.ones(2, 3)


def _freed():
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


class Wrapping(torch.Tensor):
    """A subclass that stores its data in its own way."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3))  # noqa: SLF001  as all wrapper subclasses do

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(func)


WITHOUT_NUMBERS = {
    "meta": (lambda: torch.ones(2, 3, device="meta"), "f32[2, 3]", "it has no data"),
    "fake": (_fake, "f32[2, 3]", "it has no data"),
    "freed": (_freed, "f32[2, 3]", "there is no memory behind it"),
    "lazy": (nn.UninitializedParameter, "f32[?]", "it is not initialized"),
    "sparse without data": (
        lambda: torch.empty(2, 2, layout=torch.sparse_coo, device="meta"),
        "f32[2, 2]",
        "it has no data",
    ),
    "jagged and transposed": (
        lambda: torch.nested.nested_tensor(ROWS, layout=torch.jagged).transpose(1, 2),
        "f32[nested]",
        "it is nested",
    ),
    "packed and quantized": (
        lambda: torch._empty_affine_quantized([4], scale=1.0, zero_point=0, dtype=torch.quint4x2),  # noqa: SLF001  as above
        "quint4x2[4]",
        "it is quantized",
    ),
    "of a class of its own": (Wrapping, "f32[2, 3]", "its class, Wrapping, stores its data in its own way"),
}


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_a_tensor_without_readable_data_is_skipped_with_a_reason(tmp_path, capsys, on_disk, name):
    """The run continues, other values are stored, and `verbose=1` can describe the tensor."""
    make, what, reason = WITHOUT_NUMBERS[name]
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx" if on_disk else None, verbose=1) as capture:
        module((make(), torch.ones(1)))

    found, beside = capture["m", 0, "O"]
    assert found == Skipped(what, reason)
    assert beside.item() == 1
    assert f"-- skips a {describe(make())} of key=('m', 0, 'O'): {reason}" in capsys.readouterr().out


def test_a_tensor_inside_a_torch_func_transformation_is_skipped():
    """It represents a batch or a derivative."""
    reasons = []

    def look(tensor):
        encode(
            [tensor, tensor.t()],
            lambda inner, _: reasons.append(reason_not_storable(inner)) or {"skipped": "", "reason": ""},
        )
        return tensor.sum()

    torch.vmap(look)(torch.ones(2, 3, 4))
    torch.func.grad(look)(torch.ones(3, 4))

    assert reasons == ["it is inside a transformation of torch.func"] * 4


@pytest.mark.parametrize(
    "dtype",
    [
        *(kind for kind in vars(ml_dtypes).values() if isinstance(kind, type) and issubclass(kind, np.generic)),
        *(np.longdouble, np.clongdouble, np.dtype(np.longdouble).newbyteorder()),
    ],
    ids=lambda dtype: np.dtype(dtype).str + np.dtype(dtype).name,
)
def test_arrays_of_dtypes_that_numpy_or_torch_lack_are_restored(dtype, tmp_path):
    """Bit for bit, as arrays and as scalars."""
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    with steal_forward(torch.nn.Identity(), dump_file=tmp_path / "dump.onnx"):
        steal_append("array", array)
        steal_append("scalar", array[0, 1])
    dump = restore(tmp_path / "dump.onnx")
    found, scalar = dump["array", 0, "V"], dump["scalar", 0, "V"]

    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert (type(scalar), scalar) == (type(array[0, 1]), array[0, 1])


@pytest.mark.parametrize("dtype", [np.longlong, np.ulonglong], ids=lambda dtype: dtype.__name__)
def test_integers_that_c_has_twice_are_restored(captured, dtype):
    """NumPy has two types of 64 bits, of which torch knows one."""
    found = captured(np.arange(3).astype(dtype))
    assert (found.dtype, found.tolist()) == (np.dtype(dtype), [0, 1, 2])
