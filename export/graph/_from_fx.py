"""Read a torch.fx graph as a `Graph`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ._arguments import settings_of
from ._graph import Graph
from ._nodes import Frame, Node, Value, split_call

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ROOT = re.compile(r"^[LG]\[[^\]]*\]\.?")  # Dynamo's name for the module that is compiled
_TORCH = "torch.nn.modules."  # Dynamo's stack traces omit the lines of these
_NO_CALLS: Mapping[str, Frame] = {}
GRADIENT = Frame("grad", "Grad")  # the frame around all operations of a backward pass


def graph_from_fx(graph: fx.Graph, name: str = "") -> Graph:
    """Convert a torch.fx graph; `Node.target` is the node's own name.

    For the backward nodes of a joint graph, `Node.gradient_of` names the forward node, and `Node.stack` is `grad`
    followed by the forward node's stack.
    """
    nodes = [node for node in graph.nodes if node.op.startswith("call_")]
    inputs = [node.name for node in graph.find_nodes(op="placeholder")]
    values = {node.name: fx_value(node) for node in graph.nodes if node.op != "output"}
    forward = _forward_nodes(nodes)
    return Graph(
        name=name,
        inputs=tuple(inputs),
        outputs=tuple(node.name for node in results(graph)),
        constants=tuple(node.name for node in graph.find_nodes(op="get_attr")),
        nodes=tuple(_node(node, forward) for node in nodes),
        values=values,
    )


def results(graph: fx.Graph) -> Iterator[fx.Node]:
    """Yield the nodes that a graph returns, in order; constants are left out."""
    nodes: list[fx.Node] = []
    fx.map_arg(graph.output_node().args[0], nodes.append)
    yield from nodes


def module_path(node: fx.Node) -> str | None:
    """Return the path of the innermost module that a node runs in, with `@1` for its second call; None if unknown."""
    return next(reversed(_calls(node)), (None, ""))[0]


def module_stack(node: fx.Node, known_calls: Mapping[str, Frame] = _NO_CALLS) -> tuple[Frame, ...]:
    """Return the module calls that a node runs in, outermost first.

    Dynamo records the Python stack of a node, but not which of its lines call modules. A line counts as a call site if
    it is in the caller's `forward`. All call sites are None if the stack does not have one `forward` for each
    module outside of `torch.nn`.

    Args:
        node: a node of any torch graph.
        known_calls: module calls to return as they are, by the module's path, with `@1` for its second call.
    """
    calls = _calls(node)
    sites = _sites([class_name for _, class_name in calls], python_lines(node))
    return tuple(
        known_calls.get(path) or Frame(split_call(path)[0], class_name, site)
        for (path, class_name), site in zip(calls, sites, strict=True)
    )


def python_lines(node: fx.Node) -> list[tuple[str, str, str]]:
    """Return file, line number and function of each frame of a node's recorded stack trace, outermost first."""
    return _FRAME.findall(node.meta.get("stack_trace") or "")


def is_gradient(node: fx.Node) -> bool:
    """Whether a node of a joint graph, or of a part of one, belongs to the backward pass and is not recomputed."""
    return node.meta.get("partitioner_tag") == "is_backward"


def adds_gradients(node: fx.Node) -> bool:
    """Whether a node of a joint graph sums the gradients of a value with several users."""
    return bool(node.meta.get("is_gradient_acc"))


def operator_name(target: Any) -> str:
    """Return an operator's name without its overload."""
    return str(getattr(target, "__name__", target)).partition(".")[0]


def _calls(node: fx.Node) -> list[tuple[str, str]]:
    """Return the path, with `@1` for the second call, and the class of each module call that a node runs in."""
    # A backward node may have the stack of its forward node only.
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    calls = []
    for key, (dynamo_path, cls) in stack.items():
        path = _ROOT.sub("", str(dynamo_path))
        # The key has the number of the call at its end; the name of a module may contain `@`, too.
        _, count = split_call(str(key)) if str(key).count("@") > path.count("@") else ("", 0)
        name = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        calls.append((f"{path}@{count}" if count else path, name))
    return calls


def _sites(classes: Sequence[str], lines: Sequence[tuple[str, str, str]]) -> list[str | None]:
    """Return the call site of each module call, which is the line before its `forward`.

    Args:
        classes: the classes of the modules, outermost first.
        lines: the frames of the node's stack trace, outermost first.
    """
    forwards = [index for index, (_, _, function) in enumerate(lines) if function == "forward"]
    user_modules = [index for index, name in enumerate(classes) if not name.startswith(_TORCH)]
    if len(user_modules) != len(forwards):
        return [None] * len(classes)
    forward_of = dict(zip(user_modules, forwards, strict=True))
    sites: list[str | None] = []
    for index in range(len(classes)):
        forward = next((forward_of[later] for later in user_modules if later >= index), len(lines))
        called_by_torch = index > 0 and index - 1 not in forward_of  # by a module of torch.nn, which has no lines
        file, line, function = lines[forward - 1] if forward and not called_by_torch else ("", "", "")
        sites.append(f"{file}:{line}" if function == "forward" else None)
    return sites


def _forward_nodes(nodes: Sequence[fx.Node]) -> dict[int, fx.Node]:
    """Return the first forward node of each autograd sequence number, which its backward nodes have, too."""
    forward: dict[int, fx.Node] = {}
    for node in nodes:
        number = node.meta.get("seq_nr")
        if number is not None and not is_gradient(node):
            forward.setdefault(number, node)
    return forward


def _node(node: fx.Node, forward: Mapping[int, fx.Node]) -> Node:
    frames = python_lines(node)
    converted = Node(
        name=node.name,
        op=operator_name(node.target),
        inputs=tuple(item.name for item in node.all_input_nodes),
        outputs=(node.name,),
        attributes=settings_of(node.target, node.args, node.kwargs),
        module=module_path(node),
        source=f"{frames[-1][0]}:{frames[-1][1]}" if frames else None,
        target=node.name,
        stack=module_stack(node),
    )
    if not is_gradient(node):
        return converted
    source = None if adds_gradients(node) else forward.get(node.meta.get("seq_nr", -1))
    stack = converted.stack if source is None else module_stack(source)
    return replace(converted, stack=(GRADIENT, *stack), gradient_of=source.name if source is not None else None)


def fx_value(node: fx.Node) -> Value:
    """Return the dtype and shape of a node's value, as far as torch recorded them."""
    value = node.meta.get("val", node.meta.get("example_value"))
    return tensor_value(node.name, value) if isinstance(value, torch.Tensor) else Value(node.name)


def tensor_value(name: str, tensor: torch.Tensor) -> Value:
    """Return a value with the dtype and shape of a tensor; symbolic dimensions as text."""
    sizes = None if tensor.is_nested else tensor.shape  # torch refuses to tell the shape of a nested one
    shape = None if sizes is None else tuple(size if isinstance(size, int) else str(size) for size in sizes)
    return Value(name, str(tensor.dtype).removeprefix("torch."), shape)
