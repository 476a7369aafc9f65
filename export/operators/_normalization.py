"""Operators that normalize numbers by the mean, the variance or the norm of some of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from ._operator import NodeCall, Operator, Tensor, along, by_name, of_torch

_MICROSOFT = "com.microsoft"


def _batch_norm(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Normalize each channel; before version 9, `spatial=0` had a mean of each number of an example."""
    factor = scale * torch.rsqrt(variance + call["epsilon"])
    by_channel = (along(x, 1, item) if item.dim() == 1 else item for item in (mean, factor, bias))
    center, gain, shift = by_channel
    return (x - center).mul_(gain).add_(shift)


def _training_norm(
    call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor | tuple[Tensor, ...]:
    if not call["training_mode"]:
        return _batch_norm(call, x, scale, bias, mean, variance)
    dims = [dim for dim in range(x.dim()) if dim != 1]
    found = x.mean(dims), x.var(dims, correction=0)
    kept = call["momentum"]
    running = (old * kept + new * (1 - kept) for old, new in zip((mean, variance), found, strict=True))
    return _batch_norm(call, x, scale, bias, *found), *running


def _instance_norm(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    dims = [*range(2, x.dim())]
    return _standardized(x, dims, call["epsilon"]) * along(x, 1, scale) + along(x, 1, bias)


def _group_norm(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = x.reshape(len(x), call["num_groups"], -1)
    normal = _standardized(groups, [2], call["epsilon"])
    if call.version < 21:  # a scale for each group, not for each channel
        return (normal * along(groups, 1, scale) + along(groups, 1, bias)).reshape(x.shape)
    return normal.reshape(x.shape) * along(x, 1, scale) + along(x, 1, bias)


def _standardized(x: Tensor, dims: list[int], epsilon: float) -> Tensor:
    center = x - x.mean(dims, keepdim=True)
    return center * torch.rsqrt(center.square().mean(dims, keepdim=True) + epsilon)


def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float, stash_type: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    del stash_type  # the precision of the sums
    dims = [*range(axis % x.dim(), x.dim())]
    mean = x.mean(dims, keepdim=True)
    inverse = torch.rsqrt((x - mean).square().mean(dims, keepdim=True) + epsilon)
    result = (x - mean) * inverse * scale
    return result if bias is None else result + bias, mean, inverse


def _rms_norm(call: NodeCall, x: Tensor, scale: Tensor) -> Tensor:
    return _simplified_norm(x, scale, axis=call["axis"], epsilon=call["epsilon"])[0]


def _local_norm(call: NodeCall, x: Tensor) -> Tensor:
    """Divide by a power of the sum of squares of neighboring channels."""
    size = call["size"]
    squares = functional.pad(x.square().movedim(1, -1), [(size - 1) // 2, size // 2]).unfold(-1, size, 1).sum(-1)
    return x / (call["bias"] + call["alpha"] / size * squares.movedim(-1, 1)) ** call["beta"]


def _unit_norm(call: NodeCall, x: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(x, call["p"], call["axis"], keepdim=True)
    return torch.where(size == 0, torch.zeros_like(x), x / size)


def _mean_variance_norm(call: NodeCall, x: Tensor) -> Tensor:
    dims = list(call["axes"])
    center = x - x.mean(dims, keepdim=True)
    return center / (center.square().mean(dims, keepdim=True).sqrt() + _LITTLE)


_LITTLE = 1e-9  # that the specification's function adds to the standard deviation


def _simplified_norm(
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor]:
    del stash_type  # the precision of the sums
    inverse = (x.square().mean([*range(axis % x.dim(), x.dim())], keepdim=True) + epsilon).rsqrt()
    return x * inverse * scale, inverse


def _skip_simplified_norm(
    x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Tensor, None, Tensor, Tensor]:
    total = x + skip if bias is None else x + skip + bias
    result, inverse = _simplified_norm(total, scale, epsilon=epsilon)
    return result, None, inverse, total  # it has no mean, the second output


def _skip_norm(
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = x + skip if bias is None else x + skip + bias
    return *_layer_norm(total, scale, shift, epsilon=epsilon), total


def _embed_norm(
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segment_table: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor]:
    places = torch.arange(ids.shape[1]).expand(ids.shape) if position_ids is None else position_ids
    total = words[ids.long()] + positions[places.long()]
    if segments is not None and segment_table is not None:
        total = total + segment_table[segments.long()]
    result = functional.layer_norm(total, total.shape[-1:], scale, shift, epsilon)
    counts = torch.zeros(len(ids), dtype=torch.int32) if mask is None else mask.sum(-1, dtype=torch.int32)
    return result, None if mask_index_type else counts, total


def _channels_last_group_norm(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    last = bool(call.get("channels_last", 1))
    moved = x.movedim(-1, 1) if last else x
    result = functional.group_norm(moved, call["groups"], scale, bias, call.get("epsilon", 1e-5))
    result = result * torch.sigmoid(result) if call["activation"] else result
    return result.movedim(1, -1) if last else result


# The lengths of sums, by the shapes of the inputs and of the first output (see `Operator.terms`).
def _last(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return shapes[0][-1]


def _from_axis(attributes: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> float:
    return math.prod(shapes[0][attributes.get("axis", -1) :])


def _of_sample(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return math.prod(shapes[0][1:])


def _of_channel(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return math.prod(shapes[0]) / shapes[0][1]


_BATCH_NORM: dict[str, Any] = {"family": "batch_norm", "weight": 1}
_LAYER_NORM: dict[str, Any] = {"family": "layer_norm", "weight": 1}
_RMS_NORM: dict[str, Any] = {"family": "rms_norm", "weight": 1}

OPERATORS = (
    Operator("BatchNormalization", {7: _batch_norm, 14: _training_norm}, **_BATCH_NORM),
    Operator("GroupNormalization", _group_norm, terms=_of_sample),
    Operator("InstanceNormalization", _instance_norm, terms=_of_sample),
    Operator("LRN", _local_norm),
    Operator("LayerNormalization", by_name(_layer_norm), terms=_from_axis, **_LAYER_NORM),
    Operator("LpNormalization", _unit_norm),
    Operator("MeanVarianceNormalization", _mean_variance_norm),
    Operator("RMSNormalization", _rms_norm, terms=_from_axis, **_RMS_NORM),
    Operator("SimplifiedLayerNormalization", by_name(_simplified_norm), **_RMS_NORM),
    Operator("EmbedLayerNormalization", by_name(_embed_norm), _MICROSOFT),
    Operator("GroupNorm", _channels_last_group_norm, _MICROSOFT),
    Operator("SkipLayerNormalization", by_name(_skip_norm), _MICROSOFT),
    Operator("SkipSimplifiedLayerNormalization", by_name(_skip_simplified_norm), _MICROSOFT),
    of_torch("layer_norm native_layer_norm", terms=_last, **_LAYER_NORM),
    of_torch("rms_norm", terms=_last, **_RMS_NORM),
    of_torch("_fused_rms_norm", **_RMS_NORM),
    of_torch("group_norm instance_norm", terms=_of_sample),
    of_torch("batch_norm", terms=_of_channel, sequential=_of_channel, **_BATCH_NORM),
    of_torch("_native_batch_norm_legit_no_training native_batch_norm", **_BATCH_NORM),
)
