"""Store and restore a tensor's memory order, class and gradient flag, and the parts of sparse and other tensors.

The encoder adds these entries to a spec `{"tensor": …}` where they differ from the default: `"requires_grad": true`,
`"class"`, `"part"` (a view into the stored tensor: first byte, dtype and shape), `"dtype"` (if the data is stored as
another dtype), `"order"` (the dimensions in memory order, outermost first) and `"expand"` (the full shape of a tensor
with stride 0 in some dimensions; these are stored with size 1).
"""

import itertools
import math
import reprlib
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.masked import MaskedTensor

from ..private._torch import DisableTorchFunction, make_per_channel_quantized_tensor, make_per_tensor_quantized_tensor
from ._dtypes import CARRIERS, OPAQUE_DTYPES, dtype_name, dtype_of, is_functorch_wrapped, is_storable
from ._foreign import Spec, type_name
from ._raw import tensor_from_bytes
from ._sharding import LocalShard, Sharding

MAX_DIMS = 256  # computing the product of a million sizes takes minutes
_MAX_ELEMENTS = 2**62  # torch requires fewer elements than this
_INDICES = {  # the names of a compressed tensor's two index tensors
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUTS = {str(layout).removeprefix("torch."): layout for layout in (torch.sparse_coo, *_INDICES)}
_QUANTIZED = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
_CLASSES = {type_name(cls): cls for cls in (nn.Parameter, nn.Buffer)}
_OPAQUE_NAMES = {dtype_name(dtype): dtype for dtype in OPAQUE_DTYPES}
_REAL_DTYPES = frozenset(dtype for dtype in CARRIERS if not dtype.is_complex)


def is_simple(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is fully described by dtype, shape and data: contiguous, no gradient, no buffer."""
    try:
        return (
            tensor.is_contiguous()
            and tensor.dtype in CARRIERS
            and not (tensor.requires_grad or tensor.is_nested)
            and not hasattr(tensor, "_is_buffer")
        )
    except (RuntimeError, ValueError):  # some sparse layouts have no strides
        return False


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is `is_simple`, storable, on the CPU, and has no lazy conjugate or negative.

    It may still have no memory (see `reason_not_storable`).
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and tensor.dtype in _REAL_DTYPES
        and not tensor.is_nested
        and not hasattr(tensor, "_is_buffer")
        and not is_functorch_wrapped(tensor)
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def unexpand(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a strided tensor in which dimensions of stride 0 (from `expand`) have size 1."""
    repeated = [dim for dim, stride in enumerate(tensor.stride()) if stride == 0 and tensor.shape[dim] > 1]
    if not repeated:
        return tensor
    tensor = tensor.detach()
    for dim in repeated:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


def stored_form(tensor: torch.Tensor, *, exact: bool) -> tuple[torch.Tensor, Spec]:
    """Return the tensor to store for a dense tensor, and the entries to add to its spec.

    Without `exact` only the dtype is added.
    """
    extra: Spec = {}
    stored = tensor
    if tensor.dtype in OPAQUE_DTYPES:
        stored, extra = tensor.detach().view(OPAQUE_DTYPES[tensor.dtype]), {"dtype": dtype_name(tensor.dtype)}
        if not is_storable(stored):
            return tensor, {}
    if not exact:
        return stored, extra
    if not stored.is_contiguous():
        shape, stored = list(stored.shape), unexpand(stored)
        if (order := _memory_order(stored)) is not None:
            extra["order"] = order
        if list(stored.shape) != shape:
            extra["expand"] = shape
    extra |= _class_and_gradient(tensor)
    return (stored.detach().as_subclass(torch.Tensor) if "class" in extra else stored), extra


def _memory_order(tensor: torch.Tensor) -> list[int] | None:
    """Return the dimensions in memory order, outermost first; None if that is their own order."""
    strides = tensor.stride()
    effective = [strides[dim] for dim, size in enumerate(tensor.shape) if size > 1]  # those of size 1 have no effect
    in_order = all(outer >= inner for outer, inner in itertools.pairwise(effective))
    return None if in_order else sorted(range(len(strides)), key=lambda dim: -strides[dim])


def _class_and_gradient(tensor: torch.Tensor) -> Spec:
    """Return the entries for the class and the gradient flag, where they differ from the default."""
    cls = nn.Buffer if hasattr(tensor, "_is_buffer") else type(tensor)
    spec: Spec = {"requires_grad": True} if tensor.requires_grad else {}
    return spec if cls is torch.Tensor else spec | {"class": type_name(cls)}


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a tensor are in one storage: not those of a sparse, nested or opaque one."""
    return tensor.layout is torch.strided and not tensor.is_nested


def split_parts(tensor: torch.Tensor, *, exact: bool = True) -> tuple[str, Spec] | None:
    """Return the tag and the parts of a tensor that is not dense; None for a dense tensor or one without data.

    Args:
        tensor: any tensor.
        exact: the parts will be stored; else they are only inspected and may share memory with other tensors.
    """
    if isinstance(tensor, MaskedTensor):
        return "masked", {"data": tensor._masked_data, "mask": tensor._masked_mask}  # noqa: SLF001  get_data() copies
    if tensor.is_meta or is_functorch_wrapped(tensor):
        return None
    if tensor.is_nested:
        # nested_tensor() rebuilds a jagged tensor only if its ragged dimension is the first one after the batch.
        if tensor.layout is torch.jagged and getattr(tensor, "_ragged_idx", None) != 1:
            return None
        with torch.inference_mode(mode=False), torch.no_grad():  # unbind fails on it in inference mode
            rows = tensor.unbind()
        return ("nested", {"layout": str(tensor.layout).removeprefix("torch."), "rows": rows}) if rows else None
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if tensor.layout in _INDICES or tensor.layout is torch.sparse_coo:
        return "sparse", _sparse_parts(tensor.detach())
    return ("quantized", _quantized_parts(tensor.detach(), exact=exact)) if tensor.dtype in _QUANTIZED else None


def _sparse_parts(tensor: torch.Tensor) -> Spec:
    """Return layout, shape, indices and values; `outer` and `inner` are the indices of a compressed layout."""
    entries: Spec = {"layout": str(tensor.layout).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.layout is torch.sparse_coo:
        entries["coalesced"] = tensor.is_coalesced()
        return entries | {"indices": tensor._indices(), "values": tensor._values()}  # noqa: SLF001  indices() needs a coalesced tensor
    outer, inner = (getattr(tensor, name)() for name in _INDICES[tensor.layout])
    return entries | {"outer": outer, "inner": inner, "values": tensor.values()}


def _quantized_parts(tensor: torch.Tensor, *, exact: bool) -> Spec:
    """Return the integers, scales and zero points of a quantized tensor; `exact` is that of `split_parts`."""
    if exact:
        values = tensor.int_repr()
    else:  # int_repr() would return a copy, whose version counter doesn't show changes of the original
        values = torch.empty(0, dtype=_QUANTIZED[tensor.dtype], device=tensor.device)
        values.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.qscheme() == torch.per_tensor_affine:
        return {"values": values, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "values": values,
        "scale": tensor.q_per_channel_scales(),
        "zero_point": tensor.q_per_channel_zero_points(),
        "axis": tensor.q_per_channel_axis(),
    }


def apply_layout(tensor: torch.Tensor, spec: Spec, count_copy: Callable[[int], None]) -> torch.Tensor:
    """Apply `"part"`, `"dtype"` and `"order"` of an untrusted spec to a stored tensor.

    Args:
        tensor: the stored tensor.
        spec: see the top of this file.
        count_copy: called with the number of bytes before each copy.

    Raises:
        ValueError: the spec doesn't match the tensor.
    """
    if "part" in spec:
        start, name, shape = spec["part"]
        tensor = _view_part(tensor, start, name, shape, count_copy)
    if "dtype" in spec:
        dtype = _OPAQUE_NAMES[spec["dtype"]]
        if tensor.dtype != OPAQUE_DTYPES[dtype]:
            raise ValueError(f"{tensor.dtype} does not store {dtype}")
        tensor = tensor.view(dtype)
    return _reorder(tensor, check_integers(spec["order"]), count_copy) if "order" in spec else tensor


def apply_class_and_shape(tensor: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Apply `"expand"`, `"requires_grad"`, `"class"` and `"sharding"` of an untrusted spec.

    After `apply_layout`, this is the inverse of `stored_form`.

    Raises:
        ValueError: the spec doesn't match the tensor.
    """
    if "expand" in spec:
        tensor = _expand(tensor, check_integers(spec["expand"]))
    requires_grad = spec.get("requires_grad") is True
    cls = _CLASSES.get(spec.get("class"))
    if requires_grad and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise ValueError(f"{tensor.dtype} can't require a gradient")
    if "sharding" in spec:
        tensor = LocalShard.of(tensor, Sharding.from_json(spec["sharding"]))
        return tensor.requires_grad_(requires_grad)
    if not requires_grad and cls is None:
        return tensor
    if tensor.is_inference():  # it can't be used by a model that trains
        tensor = tensor.clone()
    tensor = tensor.detach()  # the flag must not be set on a tensor that other specs share
    if cls is nn.Parameter:
        return nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad_(requires_grad)
    return tensor if cls is None else nn.Buffer(tensor)


def _view_part(
    tensor: torch.Tensor, start: int, dtype_name: str, shape: list[int], count_copy: Callable[[int], None]
) -> torch.Tensor:
    """Return the view of a contiguous tensor that begins at byte `start`."""
    dtype = dtype_of(dtype_name)
    if dtype is None or len(shape) > MAX_DIMS or min(check_integers([start, *check_integers(shape)])) < 0:
        raise ValueError(f"the part {reprlib.repr([start, dtype_name, shape])} is not valid")
    nbytes = math.prod(shape) * dtype.itemsize
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    raw = real.reshape(-1).view(torch.uint8)
    if start + nbytes > raw.numel():
        raise ValueError(f"a part ends at byte {start + nbytes} of a tensor with {raw.numel()} bytes")
    raw = raw[start : start + nbytes]
    if (raw.storage_offset() | raw.data_ptr()) % dtype.itemsize:  # sizes are powers of two
        count_copy(nbytes)
        raw = raw.clone()
    return tensor_from_bytes(raw, dtype, torch.Size(shape))


def _reorder(tensor: torch.Tensor, order: list[int], count_copy: Callable[[int], None]) -> torch.Tensor:
    """Return a tensor with its dimensions in the given memory order."""
    if sorted(order) != list(range(tensor.dim())):
        raise ValueError(f"{reprlib.repr(order)} is not a permutation of {tensor.dim()} dimensions")
    inverse = [order.index(dim) for dim in range(len(order))]
    if tensor.dtype in OPAQUE_DTYPES:  # torch can't copy these dtypes
        return _reorder(tensor.view(OPAQUE_DTYPES[tensor.dtype]), order, count_copy).view(tensor.dtype)
    count_copy(tensor.nbytes)
    return tensor.permute(order).contiguous().permute(inverse)


def _expand(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Return a tensor expanded to a shape, after checking that it can be."""
    pairs = list(zip(tensor.shape, shape, strict=True))
    if any(new < 0 or old not in (1, new) for old, new in pairs) or math.prod(shape) >= _MAX_ELEMENTS:
        raise ValueError(f"{list(tensor.shape)} does not expand to {shape}")
    return tensor.expand(shape)


def check_integers(value: Spec) -> list[int]:
    """Return `value` if it is a list of integers.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise TypeError(f"{reprlib.repr(value)} is not a list of integers")
    return value


def join_parts(tag: str, entries: Spec, parts: dict[str, torch.Tensor], rows: list[torch.Tensor]) -> torch.Tensor:
    """Return the tensor that `split_parts` split.

    Args:
        tag: the first result of `split_parts`.
        entries: the second result of `split_parts`, from an untrusted spec.
        parts: the parts that are tensors, by name.
        rows: the rows of a nested tensor.
    """
    # Their creation warns of prototype status; the user has seen that when the model created them.
    with warnings.catch_warnings(), DisableTorchFunction():
        warnings.simplefilter("ignore", UserWarning)
        return _JOINERS[tag](entries, parts, rows)


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the memory of contiguous tensors in bytes, counting overlaps once."""
    total = end = 0
    for start, stop in sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors):
        total += max(stop - max(start, end), 0)
        end = max(end, stop)
    return total


def _join_nested(entries: Spec, _: dict[str, torch.Tensor], rows: list[torch.Tensor]) -> torch.Tensor:
    """Return a nested tensor of its rows."""
    layout = {"jagged": torch.jagged, "strided": torch.strided}[entries["layout"]]
    return torch.nested.nested_tensor(rows, layout=layout)


def _join_masked(_: Spec, parts: dict[str, torch.Tensor], __: list[torch.Tensor]) -> torch.Tensor:
    """Return a masked tensor."""
    return MaskedTensor(parts["data"], parts["mask"])  # type: ignore[no-untyped-call]


def _join_sparse(entries: Spec, parts: dict[str, torch.Tensor], _: list[torch.Tensor]) -> torch.Tensor:
    """Return a sparse tensor of its indices and values, after checking them."""
    layout, shape = _LAYOUTS[entries["layout"]], check_integers(entries["shape"])
    if any(size < 0 for size in shape) or math.prod(shape) >= _MAX_ELEMENTS:
        raise ValueError(f"{reprlib.repr(shape)} is not a valid shape")
    # torch checks the indices only if asked to; wrong ones would read and write outside of the tensor.
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            parts["indices"], parts["values"], shape, is_coalesced=entries["coalesced"], check_invariants=True
        )
    return torch.sparse_compressed_tensor(
        parts["outer"], parts["inner"], parts["values"], shape, layout=layout, check_invariants=True
    )


def _join_quantized(entries: Spec, parts: dict[str, torch.Tensor], _: list[torch.Tensor]) -> torch.Tensor:
    """Return a quantized tensor of its integers, scales and zero points."""
    values = parts["values"]
    if "axis" not in entries:
        scale, zero_point = float(entries["scale"]), int(entries["zero_point"])
        return make_per_tensor_quantized_tensor(values, scale, zero_point)
    (axis,) = check_integers([entries["axis"]])
    sizes = [tuple(parts[name].shape) for name in ("scale", "zero_point")]
    if not 0 <= axis < values.dim() or sizes != [(values.shape[axis],)] * 2:  # torch doesn't check this
        raise ValueError(f"scales of shapes {sizes} don't match axis {axis} of {list(values.shape)}")
    return make_per_channel_quantized_tensor(values, parts["scale"], parts["zero_point"], axis)


PART_TAGS = ("nested", "masked", "sparse", "quantized")  # the tags that `split_parts` returns
_JOINERS = {"nested": _join_nested, "masked": _join_masked, "sparse": _join_sparse, "quantized": _join_quantized}
