"""Call PyTorch's operators on tensors of float64, also those that have no kernel for it."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from ..common._operators import operator_name


def call_in_float64(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what an operator computes from arguments whose tensors and dtypes are float64 in place of others."""
    name = operator_name(str(func))
    if name in ("_softmax", "_log_softmax"):
        args = (*args[:2], False)  # whether to convert float16 to float32
    return _WITHOUT_KERNEL.get(name, func)(*args, **kwargs)


def _grouped_mm(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001  PyTorch refuses it
    out_dtype: torch.dtype | None = None,  # noqa: ARG001  float64
) -> torch.Tensor:
    """Return the product of each group of rows, columns or terms, which end at `offs`, with a matrix of its own."""
    if offs is None:
        return first @ second
    groups = [slice(*ends) for ends in pairwise([0, *offs.tolist()])]
    if first.dim() == second.dim():
        return torch.stack([first[:, group] @ second[group] for group in groups])
    result = first.new_zeros(first.shape[-2], second.shape[-1])
    for index, group in enumerate(groups):
        if first.dim() == 2:
            result[group] = first[group] @ second[index]
        else:
            result[:, group] = first[index] @ second[:, group]
    return result


_WITHOUT_KERNEL: Mapping[str, Callable[..., Any]] = {"_grouped_mm": _grouped_mm}
