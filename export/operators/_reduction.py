"""Operators that combine or rank the numbers along dimensions, and losses."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from ._operator import Compute, Decision, NodeCall, Operator, Tensor, flat_from, integers, number, of_torch

_Reduce = Callable[[Tensor, list[int]], Tensor]  # keeps the dimensions, with size 1


def _reducing(function: _Reduce) -> Compute:
    """Return what reduces dimensions: without axes all of them, or with `noop_with_empty_axes` none."""

    def compute(call: NodeCall, x: Tensor, axes: Tensor | None = None) -> Tensor:
        given = call.get("axes", ()) if axes is None else integers(axes)
        if not len(given) and call.get("noop_with_empty_axes"):
            return function(x.unsqueeze(-1), [-1]).squeeze(-1)  # of each number by itself
        dims = [axis % x.dim() for axis in given] or [*range(x.dim())]
        if not dims:  # a scalar
            return function(x.reshape(1), [0]).reshape(())
        result = function(x, dims)
        return result if call["keepdims"] else result.squeeze(dims)

    return compute


def _sum(x: Tensor, dims: list[int]) -> Tensor:
    return x.sum(dims, keepdim=True, dtype=x.dtype)


def _product(x: Tensor, dims: list[int]) -> Tensor:
    for dim in dims:
        x = x.prod(dim, keepdim=True, dtype=x.dtype)
    return x


def _extreme(function: Callable[..., Tensor], *, is_largest: bool) -> _Reduce:
    """Return a reduction that is infinite, or the limit of an integer dtype, where there are no numbers."""

    def reduce(x: Tensor, dims: list[int]) -> Tensor:
        if x.dtype == torch.bool:
            return reduce(x.byte(), dims).bool()
        if all(x.shape[dim] for dim in dims):
            return function(x, dims, keepdim=True)
        info = torch.iinfo(x.dtype) if not x.is_floating_point() else None
        empty = ((-torch.inf, torch.inf) if info is None else (info.min, info.max))[not is_largest]  # [0] if largest
        return torch.full_like(_sum(x, dims), empty)

    return reduce


def _by_float64(function: _Reduce) -> _Reduce:
    """Return a reduction that computes integers in float64, too."""
    return lambda x, dims: function(x.double(), dims).to(x.dtype)


def _norm(x: Tensor, dims: list[int]) -> Tensor:
    return torch.linalg.vector_norm(x, 2, dims, keepdim=True)


def _position(function: Callable[..., Tensor]) -> Compute:
    """Return what finds the place of an extreme number; the last one of equal ones is the first in reverse."""

    def compute(call: NodeCall, x: Tensor) -> Tensor:
        axis, is_last = call["axis"], call.get("select_last_index")
        found = function(x.flip(axis) if is_last else x, axis, keepdim=bool(call["keepdims"]))
        return x.shape[axis] - 1 - found if is_last else found

    return compute


def _along_axis(function: Callable[[Tensor, int], Tensor]) -> Compute:
    return lambda call, x: function(x, call["axis"])


def _of_matrix(function: Callable[[Tensor, int], Tensor]) -> Compute:
    """Return the form of before version 13: over all dimensions from `axis` on."""
    return lambda call, x: function(flat_from(x, call["axis"]), 1).reshape(x.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1.0)


def _versions(function: Callable[[Tensor, int], Tensor]) -> dict[int, Compute]:
    """Return what a softmax computes: before version 13 over a matrix, then along an axis."""
    return {1: _of_matrix(function), 13: _along_axis(function)}


def _running(function: Callable[..., Tensor], empty: int) -> Compute:
    """Return a running sum or product; `empty` is that of no numbers, the first one of an exclusive one."""

    def compute(call: NodeCall, x: Tensor, axis: Tensor) -> Tensor:
        dim = number(axis)
        x = x.flip(dim) if call["reverse"] else x
        result = function(x, dim, dtype=x.dtype)
        if call["exclusive"]:
            first = torch.full_like(result.narrow(dim, 0, min(1, x.shape[dim])), empty)
            result = torch.cat([first, result.narrow(dim, 0, max(0, x.shape[dim] - 1))], dim)
        return result.flip(dim) if call["reverse"] else result

    return compute


def _top_k(call: NodeCall, x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
    count, axis = call["k"] if k is None else number(k), call["axis"]
    values, order = torch.sort(x, dim=axis, descending=bool(call.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, count), order.narrow(axis, 0, count)


def _unique(call: NodeCall, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    axis = call.get("axis")
    items = (x if axis is None else x.movedim(axis, 0)).contiguous()
    items = items.reshape(-1) if axis is None else items
    values, inverse, counts = torch.unique(items, return_inverse=True, return_counts=True, dim=0)
    places = torch.arange(len(items))
    first = torch.full((len(values),), len(items)).scatter_reduce(0, inverse, places, "amin")
    if not call["sorted"]:
        order = first.argsort()
        values, counts, first = values[order], counts[order], first[order]
        inverse = order.argsort()[inverse]
    return values if axis is None else values.movedim(0, axis), first, inverse, counts


# The lengths of sums, by the shapes of the inputs and of the first output (see `Operator.terms`).
def _reduced(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return math.prod(shapes[0]) / math.prod(shapes[-1])


def _longest(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return max(shapes[0])  # the axis of ONNX's is an input of the node, so its value is unknown here


def _last(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return shapes[0][-1]


def _cancelled(gradient: Tensor, output: Tensor, dim: int, *_: object) -> Tensor:
    """Return the size of the numbers that cancel in the gradient of a softmax, if that of its results is constant."""
    return output * (gradient.abs() + (gradient * output).abs().sum(dim, keepdim=True))


def _reduces(name: str, function: _Reduce, **traits: Any) -> Operator:
    """Return an operator of sums, which kernels may add one by one along dimensions that are not the last."""
    return Operator(name, _reducing(function), terms=_reduced, sequential=_reduced, **traits)


def _likelihood(call: NodeCall, scores: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    ignored = call.get("ignore_index")
    unused = -(2**31) if ignored is None else ignored  # no class has this number
    reduction = call["reduction"]
    if scores.shape[0] and scores.dim() > 2:  # one dimension of places
        shape = target.shape
        loss = functional.nll_loss(
            scores.flatten(2), target.long().flatten(1), weights, ignore_index=unused, reduction=reduction
        )
        return loss.reshape(shape) if reduction == "none" else loss
    return functional.nll_loss(scores, target.long(), weights, ignore_index=unused, reduction=reduction)


def _cross_entropy(
    call: NodeCall, scores: Tensor, target: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    logarithms = torch.log_softmax(scores, 1)
    return _likelihood(call, logarithms, target, weights), logarithms


OPERATORS = (
    Operator("ArgMax", _position(torch.argmax), decision=Decision("selection", default=0, largest=True)),
    Operator("ArgMin", _position(torch.argmin), decision=Decision("selection", default=0, largest=False)),
    Operator("CumProd", _running(torch.cumprod, 1), torch="cumprod"),
    Operator("CumSum", _running(torch.cumsum, 0), torch="cumsum", terms=_longest, sequential=_longest),
    Operator("Hardmax", _versions(_hardmax), jumps=True),
    Operator("LogSoftmax", _versions(functional.log_softmax), torch="log_softmax _log_softmax", terms=_last),
    _reduces("ReduceL1", lambda x, dims: _sum(x.abs(), dims)),
    _reduces("ReduceL2", _by_float64(_norm)),
    _reduces("ReduceLogSum", _by_float64(lambda x, dims: _sum(x, dims).log())),
    _reduces("ReduceLogSumExp", _by_float64(lambda x, dims: x.logsumexp(dims, keepdim=True))),
    Operator("ReduceMax", _reducing(_extreme(torch.amax, is_largest=True)), torch="amax", family="amax", chooses=True),
    _reduces("ReduceMean", _by_float64(lambda x, dims: x.mean(dims, keepdim=True)), family="mean"),
    Operator("ReduceMin", _reducing(_extreme(torch.amin, is_largest=False)), torch="amin", family="amin", chooses=True),
    _reduces("ReduceProd", _product),
    _reduces("ReduceSum", _sum, family="sum"),
    _reduces("ReduceSumSquare", lambda x, dims: _sum(x * x, dims)),
    Operator(
        "Softmax",
        _versions(functional.softmax),
        torch="softmax _softmax _safe_softmax",
        terms=_last,
        rounding="exponential",
    ),
    Operator("TopK", _top_k, chooses=True, routing="gather", decision=Decision("selection", output=1)),
    Operator("Unique", _unique, torch="unique _unique2 unique_consecutive unique_dim"),
    # Those of PyTorch add in blocks, and return numbers and indices together.
    of_torch("mean", family="mean"),
    of_torch("sum sum_to_size", family="sum"),
    of_torch("logsumexp", terms=_reduced),
    of_torch("argmax", decision=Decision("selection", axis="arg1", default=None, largest=True)),
    of_torch("argmin", decision=Decision("selection", axis="arg1", default=None, largest=False)),
    of_torch("argsort", decision=Decision("selection", axis="arg1"), routing="order"),
    of_torch("max", family="amax", chooses=True, decision=Decision("selection", axis="arg1", default=None, output=1)),
    of_torch("min", family="amin", chooses=True, decision=Decision("selection", axis="arg1", default=None, output=1)),
    of_torch("aminmax median kthvalue mode cummax cummin", chooses=True),
    of_torch("sort", chooses=True, routing="order", decision=Decision("selection", axis="arg1", output=1)),
    of_torch("topk", chooses=True, routing="gather", decision=Decision("selection", axis="arg2", output=1)),
    of_torch("_softmax_backward_data", cancelled=_cancelled),
    of_torch("bucketize", decision=Decision("buckets")),
    of_torch("searchsorted", decision=Decision("buckets", boundaries=0)),
    # Losses.
    Operator("NegativeLogLikelihoodLoss", _likelihood, torch="nll_loss nll_loss_forward nll_loss_nd"),
    Operator("SoftmaxCrossEntropyLoss", _cross_entropy, torch="cross_entropy cross_entropy_loss", terms=_reduced),
    of_torch("mse_loss", terms=_reduced),
)
