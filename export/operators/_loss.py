"""Losses."""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from ._operator import NodeCall, Operator, Tensor, of_torch


def _likelihood(call: NodeCall, scores: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    ignored = call.get("ignore_index")
    unused = -(2**31) if ignored is None else ignored
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


def _terms(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    return math.prod(shapes[0]) / math.prod(shapes[-1])


OPERATORS = (
    Operator("NegativeLogLikelihoodLoss", _likelihood, torch="nll_loss nll_loss_forward nll_loss_nd"),
    Operator("SoftmaxCrossEntropyLoss", _cross_entropy, torch="cross_entropy cross_entropy_loss", terms=_terms),
    of_torch("mse_loss", terms=_terms),
)
