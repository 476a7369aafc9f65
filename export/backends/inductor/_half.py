"""A graph in float16, which takes and returns what it did before."""

import copy
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ...graph._from_fx import results

_LOWEST = torch.finfo(torch.float16).min


def in_half(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph in which float32 is float16: what is given is cast, what is returned is cast back.

    Masks of -3.4e38 become the lowest number there is. It is meant for inference: what the graph writes to its inputs
    stays in the casts.
    """
    made = copy.deepcopy(module)
    returned = list(dict.fromkeys(filter(_is_float, results(made.graph))))
    for node in list(made.graph.nodes):
        if node.op == "placeholder":
            if _is_float(node):
                with made.graph.inserting_after(node):
                    _cast(made.graph, node, torch.float16)
        elif node.op == "output":
            for result in returned:
                with made.graph.inserting_before(node):
                    node.replace_input_with(result, made.graph.call_function(_TO, (result,), {"dtype": torch.float32}))
        else:
            node.target = "half" if node.op == "call_method" and node.target == "float" else node.target
            node.args = map_aggregate(node.args, _narrowed)
            node.kwargs = map_aggregate(node.kwargs, _narrowed)
            if _is_float(node):
                node.meta |= {name: node.meta[name].half() for name in _VALUES if name in node.meta}
    made.recompile()
    return made


def widened(value: torch.Tensor) -> torch.Tensor:
    """A value of such a graph as the graph that it was made of has it."""
    return value.float() if value.dtype == torch.float16 else value


_VALUES = ("val", "example_value")  # where torch.export and Dynamo note what a node makes
_TO = torch.ops.aten._to_copy.default  # noqa: SLF001  the operator's name


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
    cast = graph.call_function(_TO, (node,), {"dtype": dtype})
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val", node.meta.get("example_value"))
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _narrowed(item: Any) -> Any:
    if item is torch.float32:
        return torch.float16
    return max(item, _LOWEST) if isinstance(item, float) else item
