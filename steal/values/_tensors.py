"""What a tensor is besides its numbers: their order in memory, its class, and the parts of those that are not dense.

To a spec `{"tensor": …}` the encoder adds what the numbers don't tell, and only where it is not as usual:
`"requires_grad": true`, `"class"`, `"part"` (it is a view into that tensor: its first byte, dtype and shape), `"dtype"`
(the numbers are held under another), `"order"` (the dimensions as they lie in memory, from the outermost to the
innermost) and `"expand"` (the shape; the dimensions along which one number is seen again and again are held once).
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.masked import MaskedTensor

from ._dtypes import CARRIERS, SHELLS, dtype_name, dtype_of, not_storable
from ._foreign import Spec, type_name
from ._raw import tensor_of

_MOST_DIMS = 256  # the product of a million takes minutes
_LARGEST = 2**62  # what the number of elements of any tensor must be below
_INDICES = {  # by layout, what a compressed tensor calls its two
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUTS = {str(layout).removeprefix("torch."): layout for layout in (torch.sparse_coo, *_INDICES)}
_QUANTIZED = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
_CLASSES = {type_name(cls): cls for cls in (nn.Parameter, nn.Buffer)}
_SHELLS = {dtype_name(dtype): dtype for dtype in SHELLS}


def is_usual(tensor: torch.Tensor) -> bool:
    """Whether the numbers of a plain tensor, in the order of its indices, are all there is to it."""
    try:
        return (
            tensor.is_contiguous()
            and tensor.dtype in CARRIERS
            and not (tensor.requires_grad or tensor.is_nested)
            and not hasattr(tensor, "_is_buffer")
        )
    except (RuntimeError, ValueError):  # RuntimeError: sparse rows have no strides
        return False


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a strided tensor in which each number that is seen along a whole dimension is seen once."""
    repeated = [dim for dim, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[dim] > 1]
    if not repeated:
        return tensor
    tensor = tensor.detach()
    for dim in repeated:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


def held(tensor: torch.Tensor, *, exact: bool) -> tuple[torch.Tensor, Spec]:
    """What to store of a dense tensor, and what to add to its spec; no more than its dtype, if it need not be exact."""
    extra: Spec = {}
    stored = tensor
    if tensor.dtype in SHELLS:
        stored, extra = tensor.detach().view(SHELLS[tensor.dtype]), {"dtype": dtype_name(tensor.dtype)}
        if not_storable(stored) is not None:
            return tensor, {}
    if not exact:
        return stored, extra
    if not stored.is_contiguous():
        shape, stored = list(stored.shape), compact(stored)
        if (order := _order(stored)) is not None:
            extra["order"] = order
        if list(stored.shape) != shape:
            extra["expand"] = shape
    extra |= _identity(tensor)
    return (stored.detach().as_subclass(torch.Tensor) if "class" in extra else stored), extra


def _order(tensor: torch.Tensor) -> list[int] | None:
    steps = tensor.stride()
    long = [steps[dim] for dim, size in enumerate(tensor.shape) if size > 1]
    in_order = all(outer >= inner for outer, inner in itertools.pairwise(long))
    return None if in_order else sorted(range(len(steps)), key=lambda dim: -steps[dim])


def _identity(tensor: torch.Tensor) -> Spec:
    cls = nn.Buffer if hasattr(tensor, "_is_buffer") else type(tensor)
    found: Spec = {"requires_grad": True} if tensor.requires_grad else {}
    return found if cls is torch.Tensor else found | {"class": type_name(cls)}


def parts(tensor: torch.Tensor, *, exact: bool = True) -> tuple[str, Spec] | None:
    """The tag and the parts, tensors among them, of a tensor that is not dense; None for others.

    What has no numbers (fake ones, those inside torch.func) is never taken apart: its parts would be no better.

    Args:
        tensor: any.
        exact: the parts are kept; else they are looked at and share memory, as many tensors of a small file may be one.
    """
    if isinstance(tensor, MaskedTensor):
        return "masked", {"data": tensor._masked_data, "mask": tensor._masked_mask}  # noqa: SLF001  get_data() copies
    if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  nothing public tells
        return None
    if tensor.is_nested:
        # torch makes a jagged tensor of its rows where it is the first dimension after theirs that differs.
        if tensor.layout is torch.jagged and getattr(tensor, "_ragged_idx", None) != 1:
            return None
        with torch.inference_mode(mode=False), torch.no_grad():  # a jagged tensor from outside is not read in it
            rows = tensor.unbind()
        return ("nested", {"layout": str(tensor.layout).removeprefix("torch."), "rows": rows}) if rows else None
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if tensor.layout in _INDICES or tensor.layout is torch.sparse_coo:
        return "sparse", _sparse(tensor.detach())
    return ("quantized", _quantized(tensor.detach(), exact=exact)) if tensor.dtype in _QUANTIZED else None


def _sparse(tensor: torch.Tensor) -> Spec:
    form: Spec = {"layout": str(tensor.layout).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.layout is torch.sparse_coo:
        form["coalesced"] = tensor.is_coalesced()
        return form | {"indices": tensor._indices(), "values": tensor._values()}  # noqa: SLF001  the others coalesce
    outer, inner = (getattr(tensor, name)() for name in _INDICES[tensor.layout])
    return form | {"outer": outer, "inner": inner, "values": tensor.values()}


def _quantized(tensor: torch.Tensor, *, exact: bool) -> Spec:
    if exact:
        values = tensor.int_repr()
    else:  # it has a version of its own, by which what is kept would not be known to have changed
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


def laid(tensor: torch.Tensor, spec: Spec, copies: Callable[[int], None]) -> torch.Tensor:
    """The stored numbers as the spec, which is not trusted, says that they lie in memory.

    Args:
        tensor: as it is stored.
        spec: see the top of this file.
        copies: called with the number of bytes before these are copied.

    Raises:
        ValueError: the spec does not fit the numbers.
    """
    if "part" in spec:
        start, name, shape = spec["part"]
        tensor = _part(tensor, start, name, shape, copies)
    if "dtype" in spec:
        dtype = _SHELLS[spec["dtype"]]
        if tensor.dtype != SHELLS[dtype]:
            raise ValueError(f"{tensor.dtype} does not hold {dtype}")
        tensor = tensor.view(dtype)
    return _in_order(tensor, integers(spec["order"]), copies) if "order" in spec else tensor


def worn(tensor: torch.Tensor, spec: Spec) -> torch.Tensor:
    """The tensor with the shape, gradient and class that its spec gives it; with `laid`, the inverse of `held`.

    Raises:
        ValueError: the spec does not fit the tensor.
    """
    if "expand" in spec:
        tensor = _expanded(tensor, integers(spec["expand"]))
    return _with_identity(tensor, spec)


def _part(
    tensor: torch.Tensor, start: int, dtype_name: str, shape: list[int], copies: Callable[[int], None]
) -> torch.Tensor:
    """The view that begins at byte `start` of a contiguous tensor."""
    dtype = dtype_of(dtype_name)
    if dtype is None or len(shape) > _MOST_DIMS or any(size < 0 for size in integers([start, *integers(shape)])):
        raise ValueError("no part is like that")
    nbytes = math.prod(shape) * dtype.itemsize
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    raw = real.reshape(-1).view(torch.uint8)
    if start + nbytes > raw.numel():
        raise ValueError("a part goes beyond its tensor")
    raw = raw[start : start + nbytes]
    if (raw.storage_offset() | raw.data_ptr()) % dtype.itemsize:  # sizes are powers of two
        copies(nbytes)
        raw = raw.clone()
    return tensor_of(raw, dtype, torch.Size(shape))


def _in_order(tensor: torch.Tensor, order: list[int], copies: Callable[[int], None]) -> torch.Tensor:
    if sorted(order) != list(range(tensor.dim())):
        raise ValueError(f"{order} is no order of {tensor.dim()} dimensions")
    back = [order.index(dim) for dim in range(len(order))]
    if tensor.dtype in SHELLS:  # torch can't copy them
        return _in_order(tensor.view(SHELLS[tensor.dtype]), order, copies).view(tensor.dtype)
    copies(tensor.nbytes)
    return tensor.permute(order).contiguous().permute(back)


def _expanded(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
    pairs = list(zip(tensor.shape, shape, strict=True))
    if any(wanted < 0 or size not in (1, wanted) for size, wanted in pairs) or math.prod(shape) >= _LARGEST:
        raise ValueError(f"{list(tensor.shape)} does not expand to {shape}")
    return tensor.expand(shape)


def integers(value: Spec) -> list[int]:
    """A list of integers from JSON.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise TypeError("no list of integers")
    return value


def _with_identity(tensor: torch.Tensor, spec: Spec) -> torch.Tensor:
    """The tensor with the gradient and the class that its spec gives it."""
    grad = spec.get("requires_grad") is True
    cls = _CLASSES.get(spec.get("class"))
    if grad and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise ValueError(f"{tensor.dtype} has no gradient")
    if not grad and cls is None:
        return tensor
    if tensor.is_inference():  # a view of it could not be given to a model that trains
        tensor = tensor.clone()
    tensor = tensor.detach()  # what `get` gives may be the holder's own
    if cls is nn.Parameter:
        return nn.Parameter(tensor, requires_grad=grad)
    tensor.requires_grad_(grad)
    return tensor if cls is None else nn.Buffer(tensor)


def joined(tag: str, form: Spec, found: dict[str, torch.Tensor], rows: list[torch.Tensor]) -> torch.Tensor:
    """The inverse of `parts`.

    Args:
        tag: the tag.
        form: what stands there, which is not trusted.
        found: the parts that are tensors.
        rows: those of a nested tensor.
    """
    # That these kinds are young was said where they were made; how they are read is no business of their class.
    with warnings.catch_warnings(), torch._C.DisableTorchFunction():  # noqa: SLF001  nothing public does
        warnings.simplefilter("ignore", UserWarning)
        return _JOINERS[tag](form, found, rows)


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """How much memory tensors take that lie without gaps, and may lie in each other."""
    total = reach = 0
    for start, stop in sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors):
        total += max(stop - max(start, reach), 0)
        reach = max(reach, stop)
    return total


def _nested_of(form: Spec, _: dict[str, torch.Tensor], rows: list[torch.Tensor]) -> torch.Tensor:
    layout = {"jagged": torch.jagged, "strided": torch.strided}[form["layout"]]
    return torch.nested.nested_tensor(rows, layout=layout)


def _masked_of(_: Spec, found: dict[str, torch.Tensor], __: list[torch.Tensor]) -> torch.Tensor:
    return MaskedTensor(found["data"], found["mask"])  # type: ignore[no-untyped-call]


def _sparse_of(form: Spec, found: dict[str, torch.Tensor], _: list[torch.Tensor]) -> torch.Tensor:
    layout, shape = _LAYOUTS[form["layout"]], integers(form["shape"])
    if any(size < 0 for size in shape) or math.prod(shape) >= _LARGEST:
        raise ValueError(f"{shape} is no shape")
    # Indices that point outside would be read and written there: torch looks at each where it is told to.
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            found["indices"], found["values"], shape, is_coalesced=form["coalesced"], check_invariants=True
        )
    return torch.sparse_compressed_tensor(
        found["outer"], found["inner"], found["values"], shape, layout=layout, check_invariants=True
    )


def _quantized_of(form: Spec, found: dict[str, torch.Tensor], _: list[torch.Tensor]) -> torch.Tensor:
    values = found["values"]
    if "axis" not in form:
        scale, zero_point = float(form["scale"]), int(form["zero_point"])
        return torch._make_per_tensor_quantized_tensor(values, scale, zero_point)  # noqa: SLF001  the one way
    (axis,) = integers([form["axis"]])
    sizes = [tuple(found[name].shape) for name in ("scale", "zero_point")]
    if not 0 <= axis < values.dim() or sizes != [(values.shape[axis],)] * 2:  # torch takes any
        raise ValueError(f"axis {axis} has not the scales of {list(values.shape)}")
    return torch._make_per_channel_quantized_tensor(values, found["scale"], found["zero_point"], axis)  # noqa: SLF001  as above


PARTED = ("nested", "masked", "sparse", "quantized")  # the tags of those
_JOINERS = {"nested": _nested_of, "masked": _masked_of, "sparse": _sparse_of, "quantized": _quantized_of}
