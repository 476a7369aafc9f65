"""The operations of a torch graph as in the source code, each with its row of a report."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from ..results._rows import ModelOperation, Row

_NAMESPACES = {"torch": torch, "torch.nn.functional": nn.functional}


def as_returned(name: str) -> str:
    """Return what the value of a node is called at the end of the call, when later nodes have written to it."""
    return f"{name}, as returned"


def fx_operators(graph: fx.Graph, rows: Sequence[Row]) -> Iterator[ModelOperation]:
    """Yield the inputs, the operations and the result of a graph from Dynamo, without its weights.

    Args:
        graph: its weights are among its placeholders.
        rows: of the exported graph.
    """
    exported = [row for row in rows if row.stage == "exported"]
    by_value = {row.value: row for row in exported if row.kind != "output"}
    returned = {row.value: row for row in exported if row.kind == "output"}
    leaves = _leaves(graph)
    nodes = [node for node in graph.nodes if _is_tensor(node)]
    for index, node in enumerate(nodes):
        leaf = leaves.get(_call(node))
        if node.op == "placeholder":
            if not isinstance(node.meta["example_value"], nn.Parameter) and not _is_weight(node):
                yield ModelOperation(
                    "placeholder", "", None, str(node.meta["example_value"].dtype).removeprefix("torch.")
                )
        elif leaf is None:
            yield ModelOperation("call_function", function_text(node), by_value.get(node.name))
        elif index + 1 == len(nodes) or _call(nodes[index + 1]) != _call(node):  # the last one of the call: its result
            yield ModelOperation("call_module", repr(leaf), by_value.get(node.name))
    first = next(iter(graph.output_node().all_input_nodes), None)
    name = "" if first is None else first.name
    yield ModelOperation("output", "", returned.get(as_returned(name), by_value.get(name)))


def function_text(node: fx.Node) -> str:
    """Return the function's name in source code: `torch.flatten`, `operator.iadd`, `torch.Tensor.view`."""
    if node.op == "call_method":
        return f"torch.Tensor.{node.target}"
    name = str(getattr(node.target, "__name__", node.target))
    module = str(getattr(node.target, "__module__", "")).removeprefix("_") or "torch"  # `_operator` is operator
    public = (path for path, namespace in _NAMESPACES.items() if getattr(namespace, name, None) is node.target)
    return f"{next(public, module)}.{name}"


def _is_tensor(node: fx.Node) -> bool:
    """Return whether a node is an input or operation whose value is a tensor."""
    return node.op != "output" and isinstance(node.meta.get("example_value"), torch.Tensor)


def _is_weight(node: fx.Node) -> bool:
    """Return whether an input is a parameter or buffer of a module, judged by the name that Dynamo gives it."""
    return any(part in str(node.target) for part in ("_parameters_", "_buffers_"))


def _call(node: fx.Node) -> str | None:
    """Return the innermost module call of a node, as Dynamo identifies it; None outside of modules."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    return str(list(stack)[-1]) if stack else None


def _leaves(graph: fx.Graph) -> dict[str | None, nn.Module]:
    """Return the modules without submodules, by their calls; Dynamo only stores the `id` of each module."""
    calls = {call for node in graph.nodes if node.op != "placeholder" and (call := _call(node)) is not None}
    ids = {call: int(identity) for call in calls if (identity := call.partition("@")[0]).isdigit()}
    called = {*ids.values()}
    modules = {id(item): item for item in gc.get_objects() if id(item) in called and isinstance(item, nn.Module)}
    return {call: modules[key] for call, key in ids.items() if key in modules and not list(modules[key].children())}
