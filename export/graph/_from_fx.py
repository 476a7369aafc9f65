"""Reads a torch graph as a `Graph`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ._arguments import told
from ._graph import Graph
from ._nodes import Frame, Node, Value

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ROOT = re.compile(r"^[LG]\[[^\]]*\]\.?")  # what Dynamo calls the module that is compiled
_TORCH = "torch.nn.modules."  # Dynamo leaves the lines of these out of its stacks
_NONE: Mapping[str, Frame] = {}
GRADIENT = Frame("grad", "Grad")  # what the operations of a backward pass run in


def graph_from_fx(graph: fx.Graph, name: str = "") -> Graph:
    """The graph of tensors that a torch graph computes; each node's target is itself.

    A node of a joint graph that is part of a derivative says of which node (`Node.gradient_of`), and its `stack` is
    `grad`, then that node's.
    """
    nodes = [node for node in graph.nodes if node.op.startswith("call_")]
    given = [node.name for node in graph.find_nodes(op="placeholder")]
    values = {node.name: fx_value(node) for node in graph.nodes if node.op != "output"}
    forward = _numbered(nodes)
    return Graph(
        name=name,
        inputs=tuple(given),
        outputs=tuple(node.name for node in results(graph)),
        constants=tuple(node.name for node in graph.find_nodes(op="get_attr")),
        nodes=tuple(_node(node, forward) for node in nodes),
        values=values,
    )


def results(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes that a graph returns, in order; what is no node is left out."""
    found: list[fx.Node] = []
    fx.map_arg(graph.output_node().args[0], found.append)
    yield from found


def module_path(node: fx.Node) -> str | None:
    """The path of the innermost module that a node runs in, with `@1` for its second call; None if not known."""
    return next(reversed(_calls(node)), (None, ""))[0]


def module_stack(node: fx.Node, seen: Mapping[str, Frame] = _NONE) -> tuple[Frame, ...]:
    """The module calls that a node runs in, outermost first.

    Dynamo notes the lines of Python that lead to a node, but not which of them call modules: a line is taken for a call
    site if it stands in the `forward` of the caller, and each module's `forward` is there.

    Args:
        node: of any torch graph.
        seen: calls whose sites are known, by the module's path, with `@1` for its second call.
    """
    calls = _calls(node)
    sites = _sites([kind for _, kind in calls], python_lines(node))
    return tuple(
        seen.get(path) or Frame(path.partition("@")[0], kind, site)
        for (path, kind), site in zip(calls, sites, strict=True)
    )


def python_lines(node: fx.Node) -> list[tuple[str, str, str]]:
    """File, number and function of the lines of Python that lead to a node, outermost first, as torch notes them."""
    return _FRAME.findall(node.meta.get("stack_trace") or "")


def is_gradient(node: fx.Node) -> bool:
    """Whether a node of a joint graph, or of a part of one, is part of a derivative: what is recomputed is not."""
    return node.meta.get("partitioner_tag") == "is_backward"


def adds_gradients(node: fx.Node) -> bool:
    """Whether a node of a joint graph adds up the gradients of a value that is read more than once."""
    return bool(node.meta.get("is_gradient_acc"))


def operator_name(target: Any) -> str:
    """What a node calls its operator: its name without its overload's."""
    return str(getattr(target, "__name__", target)).partition(".")[0]


def _calls(node: fx.Node) -> list[tuple[str, str]]:
    """Path, with `@1` for the second call, and class of each module call that a node runs in."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    found = []
    for key, (path, kind) in stack.items():
        _, at, count = str(key).rpartition("@")
        plain = _ROOT.sub("", str(path))
        named = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        found.append((f"{plain}@{count}" if at and count.isdigit() else plain, named))
    return found


def _sites(kinds: Sequence[str], lines: Sequence[tuple[str, str, str]]) -> list[str | None]:
    """The call site of each module call, of the module's class and the lines of Python that lead to the node."""
    begins = [index for index, (_, _, function) in enumerate(lines) if function == "forward"]
    own = [index for index, kind in enumerate(kinds) if not kind.startswith(_TORCH)]
    if len(own) != len(begins):
        return [None] * len(kinds)
    starts = dict(zip(own, begins, strict=True))
    found: list[str | None] = []
    for index in range(len(kinds)):
        begin = next((starts[later] for later in own if later >= index), len(lines))
        by_torch = index > 0 and index - 1 not in starts
        told_by = lines[begin - 1] if begin and not by_torch else ("", "", "")
        found.append(f"{told_by[0]}:{told_by[1]}" if told_by[2] == "forward" else None)
    return found


def _numbered(nodes: Sequence[fx.Node]) -> dict[int, fx.Node]:
    """By the number that autograd gave to an operation, the first node that it became."""
    found: dict[int, fx.Node] = {}
    for node in nodes:
        number = node.meta.get("seq_nr")
        if number is not None and not is_gradient(node):
            found.setdefault(number, node)
    return found


def _node(node: fx.Node, forward: Mapping[int, fx.Node]) -> Node:
    frames = python_lines(node)
    made = Node(
        name=node.name,
        op=operator_name(node.target),
        inputs=tuple(item.name for item in node.all_input_nodes),
        outputs=(node.name,),
        attributes=told(node.target, node.args, node.kwargs),
        module=module_path(node),
        source=f"{frames[-1][0]}:{frames[-1][1]}" if frames else None,
        target=node.name,
        stack=module_stack(node),
    )
    if not is_gradient(node):
        return made
    source = None if adds_gradients(node) else forward.get(node.meta.get("seq_nr", -1))
    stack = made.stack if source is None else module_stack(source)
    return replace(made, stack=(GRADIENT, *stack), gradient_of=source.name if source is not None else None)


def fx_value(node: fx.Node) -> Value:
    """What is known of the value of a node."""
    value = node.meta.get("val", node.meta.get("example_value"))
    if not isinstance(value, torch.Tensor):
        return Value(node.name)
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return Value(node.name, str(value.dtype).removeprefix("torch."), shape)
