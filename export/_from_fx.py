"""Reads a torch graph as a `Graph`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from ._graph import Graph, Node, Value

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_ROOT = re.compile(r"^L\[[^\]]*\]\.?")  # what Dynamo calls the module that is compiled


def graph_from_fx(graph: fx.Graph, name: str = "") -> Graph:
    """The graph of tensors that a torch graph computes; each node's target is itself."""
    nodes = [node for node in graph.nodes if node.op.startswith("call_")]
    given = [node.name for node in graph.find_nodes(op="placeholder")]
    values = {node.name: _value(node) for node in graph.nodes if node.op != "output"}
    return Graph(
        name=name,
        inputs=tuple(given),
        outputs=tuple(node.name for node in results(graph)),
        constants=tuple(node.name for node in graph.find_nodes(op="get_attr")),
        nodes=tuple(_node(node) for node in nodes),
        values=values,
    )


def results(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes that a graph returns, in order; what is no node is left out."""
    found: list[fx.Node] = []
    fx.map_arg(graph.output_node().args[0], found.append)
    yield from found


def module_path(node: fx.Node) -> str | None:
    """The path of the innermost module that a node runs in, with `@1` for its second call; None if not known."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return None
    key, (path, _) = list(stack.items())[-1]
    _, at, count = str(key).rpartition("@")
    plain = _ROOT.sub("", str(path))
    return f"{plain}@{count}" if at and count.isdigit() else plain


def _node(node: fx.Node) -> Node:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return Node(
        name=node.name,
        op=str(getattr(node.target, "__name__", node.target)).partition(".")[0],
        inputs=tuple(item.name for item in node.all_input_nodes),
        outputs=(node.name,),
        module=module_path(node),
        source=f"{frames[-1][0]}:{frames[-1][1]}" if frames else None,
        target=node.name,
    )


def _value(node: fx.Node) -> Value:
    value = node.meta.get("val", node.meta.get("example_value"))
    if not isinstance(value, torch.Tensor):
        return Value(node.name)
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return Value(node.name, str(value.dtype).removeprefix("torch."), shape)
