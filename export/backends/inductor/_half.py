"""Convert a graph to float16, with inputs and outputs of the original dtypes."""

import copy
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ...graph._from_fx import results

_LOWEST = torch.finfo(torch.float16).min


def to_float16(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph with float16 in place of float32: inputs are cast to it and outputs cast back.

    Masks of -3.4e38 become the lowest finite float16. This is for inference: in-place changes of the inputs are lost.
    """
    copied = copy.deepcopy(module)
    outputs = list(dict.fromkeys(filter(_is_float, results(copied.graph))))
    for node in list(copied.graph.nodes):
        if node.op == "placeholder":
            if _is_float(node):
                with copied.graph.inserting_after(node):
                    cast = copied.graph.call_function(_TO, (node,), {"dtype": torch.float16})
                node.replace_all_uses_with(cast, delete_user_cb=lambda user, cast=cast: user is not cast)
        elif node.op == "output":
            for result in outputs:
                with copied.graph.inserting_before(node):
                    cast = copied.graph.call_function(_TO, (result,), {"dtype": torch.float32})
                node.replace_input_with(result, cast)
        else:
            node.target = "half" if node.op == "call_method" and node.target == "float" else node.target
            node.args = map_aggregate(node.args, _to_float16_argument)
            node.kwargs = map_aggregate(node.kwargs, _to_float16_argument)
            if _is_float(node):
                node.meta |= {name: node.meta[name].half() for name in _VALUES if name in node.meta}
    copied.recompile()
    return copied


_VALUES = ("val", "example_value")  # the keys of torch.export and Dynamo for the fake tensor of a node
_TO = torch.ops.aten._to_copy.default  # noqa: SLF001  the operator's name


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val", node.meta.get("example_value"))
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _to_float16_argument(item: Any) -> Any:
    if item is torch.float32:
        return torch.float16
    return max(item, _LOWEST) if isinstance(item, float) else item
