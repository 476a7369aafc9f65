"""Convert a graph to float16, with inputs and outputs of the original dtypes."""

import copy
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ...evaluation._devices import keep_names
from ...graph._from_fx import results

_LOWEST = torch.finfo(torch.float16).min


def to_float16(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph with float16 in place of float32: inputs are cast to it and outputs cast back.

    Masks of -3.4e38 become the lowest finite float16. This is for inference: in-place changes of the inputs are lost.
    """
    copied = copy.deepcopy(module)
    graph = copied.graph
    keep_names(graph, module.graph)
    outputs = list(dict.fromkeys(filter(_is_float, results(graph))))
    for node in list(graph.nodes):
        if node.op == "placeholder" and _is_float(node):
            with graph.inserting_after(node):
                cast = graph.call_function(_TO, (node,), {"dtype": torch.float16})
            # Each user but the cast itself reads the cast.
            node.replace_all_uses_with(cast, delete_user_cb=lambda user, cast=cast: user is not cast)
        elif node.op not in ("placeholder", "output"):
            _lower(node)
    for result in outputs:
        with graph.inserting_before(graph.output_node()):
            cast = graph.call_function(_TO, (result,), {"dtype": torch.float32})
        graph.output_node().replace_input_with(result, cast)
    copied.recompile()
    return copied


_VALUES = ("val", "example_value")  # the keys of torch.export and Dynamo for the fake tensor of a node
_TO = torch.ops.aten._to_copy.default  # noqa: SLF001  the operator's name


def _is_float(node: fx.Node) -> bool:
    """Return whether a node's result is a float32 tensor."""
    value = node.meta.get("val", node.meta.get("example_value"))
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _lower(node: fx.Node) -> None:
    """Let an operation compute in float16, and its fake tensors have this dtype."""
    if node.op == "call_method" and node.target == "float":  # `x.float()`, in Dynamo's graphs
        node.target = "half"
    node.args, node.kwargs = map_aggregate(node.args, _lowered), map_aggregate(node.kwargs, _lowered)
    if _is_float(node):
        node.meta |= {name: node.meta[name].half() for name in _VALUES if name in node.meta}


def _lowered(argument: Any) -> Any:
    """Return an argument of an operation in float16: its dtype, or a number that float16 can hold."""
    if argument is torch.float32:
        return torch.float16
    return max(argument, _LOWEST) if isinstance(argument, float) else argument
