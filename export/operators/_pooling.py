"""Operators that combine the numbers of windows and regions, and resize what is between them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from ._movement import padded
from ._operator import Compute, NodeCall, Operator, Tensor, UnsupportedError, integers, number, of_torch, plain
from ._windows import Windows, unfolded, windows_of, with_last_windows

_HALF = 0.5
_NEAR, _RELATIVELY_NEAR = 2.0**-18, 2.0**-21  # to a tie: as far as rounding in float32 moves coordinates

_MAX_POOLS = "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices"
_UPSAMPLES = (
    "upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_trilinear3d"
)


def _pool_windows(call: NodeCall, x: Tensor) -> Windows:
    windows = windows_of(call, x.shape[2:], call["kernel_shape"])
    return with_last_windows(windows, x.shape[2:]) if call.get("ceil_mode") else windows


def _window_numbers(x: Tensor, windows: Windows, fill: float = 0.0) -> Tensor:
    """Return the numbers of each window, with the pads `fill`; `_dims` are the dimensions of a window."""
    return unfolded(padded(x, windows.begin, windows.end, fill), windows)


def _dims(windows: Windows) -> list[int]:
    return [*range(-len(windows.kernel), 0)]


def _max_pool(call: NodeCall, x: Tensor) -> tuple[Tensor, ...]:
    """Return the largest numbers and, if the node has a second output, their indices in the whole tensor."""
    windows = _pool_windows(call, x)
    low: Any = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    wide = x if x.is_floating_point() else x.long()
    numbers = _window_numbers(wide, windows, low)
    if call.outputs == 1:
        return (numbers.amax(_dims(windows)).to(x.dtype),)
    largest, index = numbers.flatten(-len(windows.kernel)).max(-1)
    sizes = x.shape[2:]
    order = torch.arange(math.prod(sizes)).reshape(sizes if not call.get("storage_order") else sizes[::-1])
    order = order.permute(*reversed(range(order.dim()))) if call.get("storage_order") else order
    within = _window_numbers(order[None, None], windows, -1).flatten(-len(windows.kernel))
    places = within.expand(*x.shape[:2], *within.shape[2:]).gather(-1, index[..., None])[..., 0]
    starts = torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(sizes)) * math.prod(sizes)
    return largest.to(x.dtype), places + starts


def _average_pool(call: NodeCall, x: Tensor) -> Tensor:
    windows = windows_of(call, x.shape[2:], call["kernel_shape"])
    longer = with_last_windows(windows, x.shape[2:]) if call.get("ceil_mode") else windows
    total = _window_numbers(x, longer).sum(_dims(windows))
    ones = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype)
    if call.get("count_include_pad"):  # but not what `ceil_mode` adds
        ones = padded(ones, windows.begin, windows.end, 1.0)
        more = [large - small for large, small in zip(longer.end, windows.end, strict=True)]
        longer = replace(longer, begin=[0] * len(more), end=more)
    return total / _window_numbers(ones, longer).sum(_dims(windows))


def _norm_pool(call: NodeCall, x: Tensor) -> Tensor:
    windows, power = _pool_windows(call, x), call["p"]
    return _window_numbers(x.abs() ** power, windows).sum(_dims(windows)) ** (1 / power)


def _global_norm_pool(call: NodeCall, x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, call["p"], [*range(2, x.dim())], keepdim=True)


def _global_pool(function: Callable[..., Tensor]) -> Compute:
    return plain(lambda x: function(x, [*range(2, x.dim())], keepdim=True))


def _unpool(call: NodeCall, x: Tensor, indices: Tensor, shape: Tensor | None = None) -> Tensor:
    windows = windows_of(call, [1] * (x.dim() - 2), call["kernel_shape"])
    least_sizes = [
        (size - 1) * stride - begin - end + kernel
        for size, stride, begin, end, kernel in zip(
            x.shape[2:], windows.strides, windows.begin, windows.end, windows.kernel, strict=True
        )
    ]
    # Indices are those of the given shape, which is that of the tensor that was pooled, as in torch and ONNX Runtime.
    sizes = [*x.shape[:2], *least_sizes] if shape is None else integers(shape)
    return x.new_zeros(math.prod(sizes)).scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(sizes)


def _columns_to_image(call: NodeCall, x: Tensor, image: Tensor, block: Tensor) -> Tensor:
    sizes, kernel = integers(image), integers(block)
    windows = windows_of(call, sizes, kernel)
    count = math.prod(sizes)
    order = torch.arange(count).reshape(1, 1, *sizes)
    places = _window_numbers(order, windows, count)[0, 0].flatten(len(sizes)).flatten(0, -2).T  # [kernel, windows]
    parts = x.reshape(len(x), -1, *places.shape)
    result = x.new_zeros(*parts.shape[:2], count + 1)  # the last place collects what is in the pads
    result.index_add_(2, places.reshape(-1), parts.flatten(2))
    return result[..., :count].reshape(*parts.shape[:2], *sizes)


def _axis_sources(
    call: NodeCall,
    size: int,
    count: int,
    scale: float,
    region: tuple[float, float],
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return the place in an axis of the input that each index of the output reads, computed in a dtype.

    `size` and `count` are the sizes of the axis in the input and the output, `region` the start and the end to
    crop, relative to the axis.
    """
    at, step = torch.arange(count, dtype=dtype), torch.tensor(scale, dtype=dtype)
    mode = call.get("coordinate_transformation_mode", "asymmetric")
    if mode in {"half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"}:
        if mode == "pytorch_half_pixel" and count == 1:
            return torch.zeros(1, dtype=dtype)  # by the specification; onnx.reference has -0.5
        shift = size / 2 * (1 - count / (step * size)) if mode == "half_pixel_symmetric" else 0.0
        return shift + (at + 0.5) / step - 0.5
    if mode == "asymmetric":
        return at / step
    start, end = region if mode == "tf_crop_and_resize" else (0.0, 1.0)  # else align_corners
    if count > 1:
        return start * (size - 1) + at * (end - start) * (size - 1) / (count - 1)
    middle = (start + end) / 2 * (size - 1) if mode == "tf_crop_and_resize" else 0.0
    return torch.full((count,), middle, dtype=dtype)


def _is_rounded(call: NodeCall, size: int, count: int, scale: float) -> bool:
    """Whether kernels round what they compute places from, so that a tie may not be exact."""
    is_symmetric = call.get("coordinate_transformation_mode") == "half_pixel_symmetric"
    factors = [scale, *([count / (scale * size)] if is_symmetric else [])]
    return any(float(torch.tensor(item, dtype=torch.float32)) != item for item in factors)


def _near_tie(rounded: Tensor, sources: Tensor, tie: int, *, is_rounded: bool) -> Tensor:
    """Return places on the side `tie` (1 or -1) of where float32 may have moved them; exact ones as they are."""
    moved = sources + tie * (_NEAR + sources.abs() * _RELATIVELY_NEAR)
    return moved if is_rounded else torch.where(rounded == sources, sources, moved)


def _nearest(call: NodeCall, sources: Tensor, scale: float) -> Tensor:
    if call.version < 11:  # before there was `nearest_mode`, as ONNX Runtime does it
        return sources.floor() if scale >= 1 else sources.ceil()
    low = sources.floor()
    return {
        "round_prefer_floor": low + (sources - low > _HALF),
        "round_prefer_ceil": low + (sources - low >= _HALF),
        "floor": low,
        "ceil": sources.ceil(),
    }[call["nearest_mode"]]


def _taps(call: NodeCall, sources: Tensor, size: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return the indices that each output reads, and their weights: both of the shape [outputs, indices]."""
    is_linear, filtered = call["mode"] == "linear", call.get("antialias", 0) and scale < 1
    stretch = scale if filtered else 1.0
    radius = (1 if is_linear else 2) / stretch
    reach = math.ceil(radius)
    indices = sources.floor()[:, None] + torch.arange(1 - reach, reach + 1)
    distance = ((sources[:, None] - indices) * stretch).abs()
    weights = (1 - distance).clamp(min=0) if is_linear else _cubic(distance, call.get("cubic_coeff_a", -0.75))
    if call.get("exclude_outside"):
        weights = torch.where((indices >= 0) & (indices < size), weights, 0.0)
    return indices.clamp(0, size - 1).long(), weights / weights.sum(1, keepdim=True)


def _cubic(distance: Tensor, a: float) -> Tensor:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))


def _resized(call: NodeCall, x: Tensor, dim: int, count: int, scale: float, region: tuple[float, float]) -> Tensor:
    """Resize one dimension; the numbers of a whole dimension are read once for each place of a window."""
    size = x.shape[dim]
    sources = _axis_sources(call, size, count, scale, region)
    if call["mode"] == "nearest":  # rounding decides between two numbers at the same distance: kernels use float32
        places = _axis_sources(call, size, count, scale, region, torch.float32)
        if tie := call.ties.get(dim, 0):
            places = _near_tie(places, sources, tie, is_rounded=_is_rounded(call, size, count, scale))
        result = x.index_select(dim, _nearest(call, places, scale).clamp(0, size - 1).long())
    else:
        indices, weights = _taps(call, sources, size, scale)
        shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
        pairs = zip(indices.unbind(1), weights.unbind(1), strict=True)
        wide = x.double()
        result = sum((wide.index_select(dim, at) * weight.reshape(shape) for at, weight in pairs), torch.tensor(0.0))
        result = result.to(x.dtype) if x.is_floating_point() else result.round().to(x.dtype)
    if call.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        return result
    outside = ((sources < 0) | (sources > size - 1)).nonzero()[:, 0]
    return result.index_fill(dim, outside, call["extrapolation_value"])


def _resize(
    call: NodeCall,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    axes = [item % x.dim() for item in call.get("axes", range(x.dim()))]
    lengths = [x.shape[axis] for axis in axes]
    if sizes is None or not sizes.numel():
        if scales is None:
            raise UnsupportedError("neither scales nor sizes")
        ratios = scales.tolist()
        counts = integers((torch.tensor(lengths, dtype=torch.float32) * scales.float()).floor())  # as kernels multiply
    else:
        ratios, counts = _ratios(call, lengths, integers(sizes))
    regions = [(0.0, 1.0)] * len(axes)
    if roi is not None and roi.numel():
        regions = [*zip(roi[: len(axes)].tolist(), roi[len(axes) :].tolist(), strict=True)]
    is_cropped = call.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    for axis, count, ratio, region in zip(axes, counts, ratios, regions, strict=True):
        if count != x.shape[axis] or ratio != 1 or (is_cropped and region != (0.0, 1.0)):
            x = _resized(call, x, axis, count, ratio, region)
    return x


def _ratios(call: NodeCall, lengths: Sequence[int], sizes: list[int]) -> tuple[list[float], list[int]]:
    """Return the scales and sizes of an output whose sizes are given."""
    ratios = [size / length for size, length in zip(sizes, lengths, strict=True)]
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios, sizes
    ratio = (min if policy == "not_larger" else max)(ratios)
    return [ratio] * len(ratios), [math.floor(ratio * length + 0.5) for length in lengths]


def _upsample(call: NodeCall, x: Tensor, scales: Tensor | None = None) -> Tensor:
    """Resize before version 11, without a region; before version 9, the scales are an attribute."""
    given = torch.tensor(call["scales"], dtype=torch.float64) if scales is None else scales
    return _resize(replace(call, version=min(call.version, 10)), x, None, given)


def _grid_sample(call: NodeCall, x: Tensor, grid: Tensor) -> Tensor:
    named = str(call["mode"])
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(named, named)
    return functional.grid_sample(x, grid, mode, call["padding_mode"], bool(call["align_corners"]))


def _affine_grid(call: NodeCall, theta: Tensor, size: Tensor) -> Tensor:
    return functional.affine_grid(theta, integers(size), bool(call["align_corners"]))


def _region_pool(call: NodeCall, x: Tensor, regions: Tensor) -> Tensor:
    """Return the largest number of each part of each region, whose borders are whole numbers."""
    height, width = call["pooled_shape"]
    results = []
    for index, *borders in regions.tolist():  # the index of the image, and two corners
        left, top, right, bottom = (_half_away_from_zero(item * call["spatial_scale"]) for item in borders)
        rows, columns = max(bottom - top + 1, 1), max(right - left + 1, 1)
        parts = [
            _part_maximum(x[int(index)], _span(i, rows, height, top), _span(j, columns, width, left))
            for i in range(height)
            for j in range(width)
        ]
        results.append(torch.stack(parts, -1).reshape(-1, height, width))
    return torch.stack(results) if results else x.new_zeros(0, x.shape[1], height, width)


def _half_away_from_zero(value: float) -> int:
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _span(index: int, size: int, count: int, start: int) -> tuple[int, int]:
    return start + index * size // count, start + -(-(index + 1) * size // count)


def _part_maximum(x: Tensor, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    part = x[:, max(0, rows[0]) : max(0, rows[1]), max(0, columns[0]) : max(0, columns[1])]
    return part.amax((1, 2)) if part.numel() else x.new_zeros(len(x))


def _region_align(call: NodeCall, x: Tensor, regions: Tensor, batch: Tensor) -> Tensor:
    """Return the mean or the largest number of each part of each region, of numbers read between those of the input."""
    results = [_one_region(call, x[int(index)], region) for region, index in zip(regions, batch, strict=True)]
    shape = x.shape[1], call["output_height"], call["output_width"]
    return torch.stack(results) if results else x.new_zeros(0, *shape)


def _one_region(call: NodeCall, x: Tensor, region: Tensor) -> Tensor:
    shift = 0.5 if call.get("coordinate_transformation_mode") == "half_pixel" else 0.0
    left, top, right, bottom = (region * call["spatial_scale"] - shift).tolist()
    low = 1.0 if shift == 0 else -math.inf  # the least size of a region, except with half_pixel
    rows, columns = (
        _region_places(start, max(end - start, low), count, call["sampling_ratio"], size)
        for start, end, count, size in (
            (top, bottom, call["output_height"], x.shape[1]),
            (left, right, call["output_width"], x.shape[2]),
        )
    )
    corners = [
        x[:, at.reshape(-1)][:, :, other.reshape(-1)].reshape(len(x), *at.shape, *other.shape)
        * (weight[:, :, None, None] * other_weight)
        for at, weight in rows
        for other, other_weight in columns
    ]
    if call["mode"] == "avg":
        return sum(corners[1:], corners[0]).mean((2, 4))
    return torch.stack(corners).amax(0).amax((2, 4))  # of the products, not of what is read between the numbers


def _region_places(start: float, length: float, count: int, ratio: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the indices on both sides of each place that a region reads, and their weights: [parts, places]."""
    samples = ratio or max(1, math.ceil(length / count))  # 0: as many as a part has numbers
    step = length / count
    inner = (torch.arange(samples, dtype=torch.float64) + 0.5) * step / samples
    places = start + torch.arange(count, dtype=torch.float64)[:, None] * step + inner
    inside = (places >= -1) & (places <= size)
    places = places.clamp(0, size - 1)
    first = places.floor().clamp(max=size - 1)
    share = places - first
    return [
        (first.long(), torch.where(inside, 1 - share, 0.0)),
        ((first + 1).clamp(max=size - 1).long(), torch.where(inside, share, 0.0)),
    ]


def _suppress(
    call: NodeCall,
    boxes: Tensor,
    scores: Tensor,
    max_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
) -> Tensor:
    """Return [image, class, box] of the boxes that no better one of the class overlaps, as NonMaxSuppression does.

    Args:
        call: with `center_point_box`, whether boxes are centers and sizes instead of opposite corners.
        boxes: in the shape [images, boxes, 4].
        scores: in the shape [images, classes, boxes].
        max_boxes_per_class: how many boxes of a class and image are kept at most; the default of ONNX keeps none.
        iou_threshold: of two boxes with a larger intersection over union, only the better one is kept.
        score_threshold: boxes need a higher score.
    """
    count = 0 if max_boxes_per_class is None else int(number(max_boxes_per_class))
    max_iou = 0.0 if iou_threshold is None else number(iou_threshold)
    min_score = -math.inf if score_threshold is None else number(score_threshold)
    kept: list[tuple[int, int, int]] = []
    for image, image_boxes in enumerate(boxes):
        iou = _overlaps(_corners(image_boxes, is_centered=bool(call["center_point_box"])))
        for label, label_scores in enumerate(scores[image]):
            kept += [(image, label, box) for box in _kept(label_scores, iou > max_iou, count, min_score)]
    return torch.tensor(kept, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: Tensor, *, is_centered: bool) -> Tensor:
    first, second = boxes[:, :2], boxes[:, 2:]
    if is_centered:
        return torch.cat([first - second / 2, first + second / 2], 1)
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], 1)


def _overlaps(boxes: Tensor) -> Tensor:
    """Return the intersection over union of each pair of boxes."""
    low, high = torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
    common, areas = (high - low).clamp(min=0).prod(-1), (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return torch.where(common > 0, common / (areas[:, None] + areas - common), 0.0)


def _kept(scores: Tensor, too_near: Tensor, count: int, floor: float) -> list[int]:
    """Return the boxes of one class to keep, at most `count`, best first; `too_near` is a matrix of pairs."""
    kept: list[int] = []
    for index in scores.sort(descending=True, stable=True)[1].tolist():
        if len(kept) < count and float(scores[index]) > floor and not bool(too_near[index, kept].any()):
            kept.append(index)
    return kept


# The length of sums, by the shapes of the inputs and of the first output (see `Operator.terms`).
def _terms(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return math.prod(shapes[0]) / math.prod(shapes[-1])


_SUMS: Mapping[str, Any] = {"terms": _terms, "sequential": _terms}

OPERATORS = (
    Operator("AffineGrid", _affine_grid, torch="affine_grid affine_grid_generator"),
    Operator("AveragePool", _average_pool, **_SUMS, resamples=True),
    Operator("Col2Im", _columns_to_image, torch="col2im"),
    Operator("GlobalAveragePool", _global_pool(torch.mean), **_SUMS),
    Operator("GlobalLpPool", _global_norm_pool, **_SUMS),
    Operator("GlobalMaxPool", _global_pool(torch.amax), torch="adaptive_max_pool1d adaptive_max_pool2d", chooses=True),
    Operator("GridSample", _grid_sample, torch="grid_sampler grid_sampler_2d grid_sampler_3d grid_sample"),
    Operator("LpPool", _norm_pool, **_SUMS),
    Operator("MaxPool", _max_pool, torch=_MAX_POOLS, family="max_pool2d", chooses=True),
    Operator("MaxRoiPool", _region_pool, chooses=True),
    Operator("MaxUnpool", _unpool, torch="max_unpool2d", movement="combine"),
    Operator("NonMaxSuppression", _suppress),
    Operator("Resize", {10: _upsample, 11: _resize}, settings=frozenset({1, 2}), resamples=True),
    Operator("RoiAlign", _region_align, torch="roi_align"),
    Operator("Upsample", _upsample, settings=frozenset({1}), resamples=True),
    # In PyTorch, sums of windows are added like those of products.
    of_torch("avg_pool2d", terms=_terms, resamples=True),
    of_torch("adaptive_avg_pool2d", terms=_terms),
    of_torch(_UPSAMPLES, resamples=True),
)
