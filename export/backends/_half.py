"""A graph in float16, which takes and returns what it did before."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_LOWEST = torch.finfo(torch.float16).min


def in_half(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph in which float32 is float16; masks of -3.4e38 become the lowest number there is."""
    made = copy.deepcopy(module)
    for node in made.graph.nodes:
        if node.op not in ("placeholder", "output"):
            node.args = fx.node.map_aggregate(node.args, _narrowed)
            node.kwargs = fx.node.map_aggregate(node.kwargs, _narrowed)
    made.recompile()
    return made


def halved(values: Sequence[Any]) -> list[Any]:
    """The values with float32 tensors in float16."""
    return [item.half() if isinstance(item, torch.Tensor) and item.dtype == torch.float32 else item for item in values]


def widened(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values with float16 tensors in float32."""
    return tuple(
        item.float() if isinstance(item, torch.Tensor) and item.dtype == torch.float16 else item for item in values
    )


def _narrowed(item: Any) -> Any:
    if item is torch.float32:
        return torch.float16
    return max(item, _LOWEST) if isinstance(item, float) else item
