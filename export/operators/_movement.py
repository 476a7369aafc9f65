"""Operators that move numbers, choose some of them, or make constants."""

import math
from collections.abc import Sequence
from itertools import chain

import onnx_ir as ir
import torch
from torch.nn import functional

from ._dtypes import is_float, storage
from ._operator import NodeCall, Operator, Tensor, UnsupportedError, flat_from, integers, number, of_torch, plain

OPENVINO = "openvino"  # the domain of the layers that OpenVINO runs
_COPIES = "alias clone contiguous detach lift_fresh lift_fresh_copy"
_RESHAPES = "reshape reshape_as view view_as _unsafe_view _reshape_alias _reshape_copy unflatten"
_SPLITS = "chunk split split_with_sizes tensor_split unbind unsafe_chunk unsafe_split unsafe_split_with_sizes"
_PUT = "index_put _index_put_impl _unsafe_index_put"
_SCATTERED_PARTS = "select_scatter slice_scatter diagonal_scatter as_strided_scatter"
_FILLED = "full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like"
_SCATTER = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}  # the reductions of torch, by the names of ONNX


def _constant(call: NodeCall) -> Tensor:
    for name, dtype in (("value_float", torch.float64), ("value_int", torch.int64)):
        for item in (name, f"{name}s"):
            if item in call.attributes:
                return torch.tensor(call[item], dtype=dtype)
    value = call["value"]
    if not isinstance(value, Tensor):
        raise UnsupportedError("a constant without numbers")
    return value


def _constant_of_shape(call: NodeCall, shape: Tensor) -> Tensor:
    value = call.get("value", torch.zeros(1, dtype=torch.float64))
    return value.reshape(()).expand(integers(shape))


def _shape(call: NodeCall, x: Tensor) -> Tensor:
    sizes = [*x.shape]
    return torch.tensor(sizes[call.get("start", 0) : call.get("end", len(sizes))], dtype=torch.int64)


def _reshape(call: NodeCall, x: Tensor, shape: Tensor) -> Tensor:
    keeps = not call.get("allowzero")  # whether a size of 0 stands for that of the input
    return x.reshape(tuple(x.shape[i] if keeps and not size else size for i, size in enumerate(integers(shape))))


def _expand(x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, integers(shape)))


def _squeeze(call: NodeCall, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = call.get("axes") if axes is None else integers(axes)
    return x.squeeze() if given is None else x.squeeze(tuple(given))


def _unsqueeze(call: NodeCall, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = call["axes"] if axes is None else integers(axes)
    for axis in sorted(item % (x.dim() + len(given)) for item in given):
        x = x.unsqueeze(axis)
    return x


def _transpose(call: NodeCall, x: Tensor) -> Tensor:
    return x.permute(tuple(call.get("perm", reversed(range(x.dim())))))


def _concat(call: NodeCall, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, call["axis"])


def _split(call: NodeCall, x: Tensor, split: Tensor | None = None) -> tuple[Tensor, ...]:
    axis, given = call["axis"], call.get("split") if split is None else split
    if given is not None:
        return torch.split(x, integers(given), axis)
    return torch.split(x, max(1, -(-x.shape[axis] // call.get("num_outputs", call.outputs))), axis)


def _slice(
    call: NodeCall,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    first = integers(call["starts"] if starts is None else starts)
    last = integers(call["ends"] if ends is None else ends)
    dims = integers(call.get("axes", range(len(first))) if axes is None else axes)
    by = [1] * len(first) if steps is None else integers(steps)
    for start, end, dim, step in zip(first, last, dims, by, strict=True):
        x = _sliced(x, start, end, dim, step)
    return x


def _sliced(x: Tensor, start: int, end: int, dim: int, step: int) -> Tensor:
    size = x.shape[dim]
    picked = range(size)[slice(start, None if step < 0 and end < -size else end, step)]
    if step > 0:
        return x[(slice(None),) * (dim % x.dim()) + (slice(picked.start, max(picked.start, picked.stop), step),)]
    return x.index_select(dim, torch.tensor([*picked], dtype=torch.int64))


def _pad(
    call: NodeCall, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    sizes = integers(call["pads"] if pads is None else pads)
    dims = range(x.dim()) if axes is None else [item % x.dim() for item in integers(axes)]
    fill = call.get("value", 0) if value is None else number(value)
    for dim, before, after in zip(dims, sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :], strict=True):
        x = _padded(x, dim, before, after, call["mode"], fill)
    return x


def _padded(x: Tensor, dim: int, before: int, after: int, mode: str, fill: float) -> Tensor:
    """Pad one dimension in a mode of ONNX's `Pad`; negative pads crop (see `padded` for several dimensions)."""
    size = x.shape[dim]
    if mode == "constant":
        kept = x.narrow(dim, max(0, -before), max(0, size + min(0, before) + min(0, after)))
        parts = []
        for count in (before, after):
            shape = [*x.shape]
            shape[dim] = max(0, count)
            parts.append(torch.full(shape, fill, dtype=x.dtype))
        return torch.cat([parts[0], kept, parts[1]], dim)
    places = torch.arange(-before, size + after)
    if mode == "reflect":
        places = places.remainder(max(1, 2 * size - 2))
        places = torch.where(places >= size, 2 * size - 2 - places, places)
    return x.index_select(dim, places.clamp(0, size - 1) if mode == "edge" else places.remainder(size))  # else wrap


def _crop_or_pad(call: NodeCall, x: Tensor, shape: Tensor) -> Tensor:
    sizes = integers(shape)
    dims = [item % x.dim() for item in call.get("axes", range(len(sizes)))]
    for dim, size in zip(dims, sizes, strict=True):
        missing = size - x.shape[dim]
        if missing < 0:
            x = x.narrow(dim, -missing // 2, size)
        else:
            x = _padded(x, dim, missing // 2, missing - missing // 2, "constant", 0)
    return x


def _from_start(indices: Tensor, size: int) -> Tensor:
    """Return indices from the start in place of negative ones, which are from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


def _gather(call: NodeCall, x: Tensor, indices: Tensor) -> Tensor:
    axis = call["axis"] % x.dim()
    picked = x.index_select(axis, _from_start(indices, x.shape[axis]).reshape(-1))
    return picked.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _gather_elements(call: NodeCall, x: Tensor, indices: Tensor) -> Tensor:
    return x.gather(call["axis"], _from_start(indices, x.shape[call["axis"]]))


def _gather_nd(call: NodeCall, x: Tensor, indices: Tensor) -> Tensor:
    batch = call.get("batch_dims", 0)
    dims = indices.dim() - 1
    lead = [torch.arange(size).reshape(-1, *[1] * (dims - 1 - at)) for at, size in enumerate(x.shape[:batch])]
    return x[(*lead, *(item.long() for item in indices.unbind(-1)))]


def _scatter_elements(call: NodeCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis, mode = call["axis"], call.get("reduction", "none")
    places = _from_start(indices, x.shape[axis])
    if mode == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _SCATTER[mode])


def _scatter_nd(call: NodeCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    mode = call.get("reduction", "none")
    flat = torch.arange(x.numel()).reshape(x.shape)[tuple(indices.long().unbind(-1))].reshape(-1)
    items, values = x.reshape(-1), updates.reshape(-1)
    changed = (
        items.scatter(0, flat, values) if mode == "none" else items.scatter_reduce(0, flat, values, _SCATTER[mode])
    )
    return changed.reshape(x.shape)


def _tensor_scatter(call: NodeCall, past: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
    axis = call["axis"] % past.dim()
    first = torch.zeros(len(past), dtype=torch.int64) if starts is None else starts.long()
    places = first[:, None] + torch.arange(update.shape[axis])
    places = places % past.shape[axis] if call["mode"] == "circular" else places
    shape = [1] * past.dim()
    shape[0], shape[axis] = places.shape
    return past.scatter(axis, places.reshape(shape).expand(update.shape), update)


def _compress(call: NodeCall, x: Tensor, condition: Tensor) -> Tensor:
    x, axis = (x.reshape(-1), 0) if call.get("axis") is None else (x, call["axis"])
    return x.index_select(axis, condition.nonzero()[:, 0])


def _one_hot(call: NodeCall, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    count, axis = int(number(depth)), call["axis"] % (indices.dim() + 1)
    grid = torch.arange(count).reshape([count if i == axis else 1 for i in range(indices.dim() + 1)])
    return torch.where(_from_start(indices, count).unsqueeze(axis) == grid, values[1], values[0])


def _reverse_sequence(call: NodeCall, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = call["time_axis"], call["batch_axis"]
    places = torch.arange(x.shape[time])[:, None]
    places = torch.where(places < lengths, lengths - 1 - places, places).long()  # [time, batch]
    shape = [1] * x.dim()
    shape[time], shape[batch] = places.shape
    return x.gather(time, (places if time < batch else places.T).reshape(shape).expand(x.shape))


def _range(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    first, last, step = (number(item) for item in (start, limit, delta))
    count = max(0, math.ceil((last - first) / step))
    return first + step * torch.arange(count, dtype=start.dtype)


def _eye_like(call: NodeCall, x: Tensor) -> Tensor:
    kind = None if call.get("dtype") is None else ir.DataType(call["dtype"])
    dtype = x.dtype if kind is None else torch.float64 if is_float(kind) else storage(kind)
    rows, columns = (torch.arange(size) for size in x.shape)
    return (columns - rows[:, None] == call["k"]).to(dtype)


def _triangle(call: NodeCall, x: Tensor, k: Tensor | None = None) -> Tensor:
    return (torch.triu if call["upper"] else torch.tril)(x, 0 if k is None else number(k))


def _depth_to_space(call: NodeCall, x: Tensor) -> Tensor:
    block, (n, c, h, w) = call["blocksize"], x.shape
    if call.get("mode", "DCR") == "DCR":
        x = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(call: NodeCall, x: Tensor) -> Tensor:
    block, (n, c, h, w) = call["blocksize"], x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block)
    order = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(order).reshape(n, c * block**2, h // block, w // block)


def symmetric_pads(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """Return pads in the order of `functional.pad`: the last dimension first, begin and end in turn."""
    return [*chain.from_iterable(zip(reversed(begin), reversed(end), strict=True))]


def padded(x: Tensor, begin: Sequence[int], end: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the last dimensions of a tensor with a number; negative pads crop."""
    pads = symmetric_pads(begin, end)
    return functional.pad(x, pads, value=value) if any(pads) else x


def _tile(x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(integers(repeats))


OPERATORS = (
    Operator("CenterCropPad", _crop_or_pad, movement="combine"),
    Operator("Compress", _compress, movement="combine"),
    Operator("Concat", _concat, torch="cat concat concatenate", family="cat", movement="combine", variadic=True),
    Operator("Constant", _constant),
    Operator("ConstantOfShape", _constant_of_shape),
    Operator("DepthToSpace", _depth_to_space, torch="pixel_shuffle", movement="combine"),
    Operator("Expand", plain(_expand), torch="expand expand_as broadcast_to", movement="expand", resizes=True),
    Operator("EyeLike", _eye_like, torch="eye", dtype_attribute="dtype"),
    Operator("Flatten", lambda call, x: flat_from(x, call["axis"]), torch="flatten", movement="reshape"),
    Operator("Gather", _gather, torch="embedding index_select", family="embedding", movement="combine", weight=0),
    Operator("GatherElements", _gather_elements, torch="gather take_along_dim", movement="combine", routing="gather"),
    Operator("GatherND", _gather_nd, torch="index _unsafe_index", movement="combine", routing="gather"),
    Operator("Identity", plain(lambda x: x), torch=_COPIES, movement="copy"),
    Operator("NonZero", plain(lambda x: x.reshape(x.shape or (1,)).nonzero().T), torch="nonzero", routing="order"),
    Operator("OneHot", _one_hot, torch="one_hot", settings=frozenset({0, 1})),
    Operator("Pad", _pad, torch="pad constant_pad_nd", movement="combine", resizes=True),
    Operator("Range", plain(_range), torch="arange", settings=frozenset({0, 1, 2})),
    Operator("Reshape", _reshape, torch=_RESHAPES, movement="reshape"),
    Operator("ReverseSequence", _reverse_sequence, movement="combine"),
    Operator("Scatter", _scatter_elements, movement="combine", routing="scatter"),
    Operator("ScatterElements", _scatter_elements, torch="scatter", movement="combine", routing="scatter"),
    Operator("ScatterND", _scatter_nd, torch=_PUT, movement="combine", routing="scatter"),
    Operator("Shape", _shape, torch="size sym_size", reads_shape=True),
    Operator("Size", plain(lambda x: torch.tensor(x.numel())), torch="numel sym_numel", reads_shape=True),
    Operator("Slice", _slice, torch="slice", movement="part", resizes=True),
    Operator("SpaceToDepth", _space_to_depth, torch="pixel_unshuffle", movement="combine"),
    Operator("Split", _split, torch=_SPLITS, movement="part", splits=True),
    Operator("Squeeze", _squeeze, torch="squeeze", movement="reshape"),
    Operator("TensorScatter", _tensor_scatter, movement="combine"),
    Operator("Tile", plain(_tile), torch="repeat", movement="combine", resizes=True),
    Operator("Transpose", _transpose, torch="permute t transpose movedim swapaxes numpy_T", movement="permute"),
    Operator("Trilu", _triangle, movement="combine"),
    Operator("Unsqueeze", _unsqueeze, torch="unsqueeze", movement="reshape"),
    Operator("ReorderInput", None, "com.microsoft.nchwc", movement="combine"),
    Operator("ReorderOutput", None, "com.microsoft.nchwc", movement="combine"),
    Operator("MemcpyFromHost", movement="copy"),
    Operator("MemcpyToHost", movement="copy"),
    of_torch("copy", movement="copy", source=1),  # into the first tensor from the second one
    of_torch("as_strided diagonal narrow select unfold", movement="part"),
    of_torch("_conj imag real view_as_complex view_as_real", movement="part"),  # numbers, or parts, of another kind
    of_torch("getitem", movement="combine", splits=True),  # of a tensor, or of a tuple of results
    of_torch("masked_scatter masked_select roll stack take _unsafe_masked_index zero", movement="combine"),
    of_torch("flip repeat_interleave tile tril triu", movement="combine"),
    of_torch(_SCATTERED_PARTS, movement="combine"),
    of_torch(_FILLED),
    of_torch("index_add scatter_add", routing="scatter"),
    of_torch("empty empty_like empty_permuted empty_strided new_empty new_empty_strided", uninitialized=True),
    # The layers of OpenVINO's compiled models.
    *(Operator(name, domain=OPENVINO, movement="combine") for name in ("Concatenation", "Gather")),
    *(Operator(name, domain=OPENVINO, movement="part") for name in ("Split", "StridedSlice")),
    Operator("Broadcast", domain=OPENVINO, movement="expand"),
    Operator("Convert", domain=OPENVINO, movement="cast"),
    Operator("Reorder", domain=OPENVINO, movement="copy"),
    Operator("Reshape", domain=OPENVINO, movement="reshape"),
    Operator("Transpose", domain=OPENVINO, movement="permute"),
)
