"""Map the buffers of compiled code to the values of the graph that Inductor compiled."""

import itertools
import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ...graph._arguments import written_arguments
from ...graph._from_fx import operator_name
from ._kernels import Kernel, LoweredGraph

View = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Label:
    """The name and the value of a buffer.

    Attributes:
        name: the name of the value, or else of the buffer; unique among the labels of one compiled graph.
        value: the name of the value that the buffer holds; None if it holds none of the graph.
        view: computes the value from the buffer.
    """

    name: str
    value: str | None
    view: View

    def of(self, buffer: torch.Tensor) -> "Stored":
        """Return the value in a buffer."""
        return Stored(self.name, self.view(buffer).detach(), buffer)


@dataclass(frozen=True)
class Stored:
    """A value that a kernel has stored.

    Attributes:
        name: the name of its label.
        tensor: the value; it shares the memory of the buffer, unless it had to be copied.
        buffer: the buffer.
    """

    name: str
    tensor: torch.Tensor
    buffer: torch.Tensor

    def overwrite(self, tensor: torch.Tensor) -> None:
        """Replace the value for later kernels; a value that does not share the memory of the buffer stays as it is."""
        shares_memory = self.tensor.untyped_storage().data_ptr() == self.buffer.untyped_storage().data_ptr()
        expanded = any(
            size > 1 and not stride for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True)
        )
        if shares_memory and not expanded:
            self.tensor.copy_(tensor)


class BufferMap:
    """Maps the buffers and kernels of a compiled graph to the values and nodes of the graph before compilation.

    Each operation that tracing, a decomposition or a pass creates records its source nodes. The last operation created
    from a node computes the value of that node. A buffer holds that value, or a tensor of which it is a view.

    Args:
        source: the graph before compilation; its nodes have the names of the values.
        lowered: the result of the compilation.
    """

    def __init__(self, source: fx.Graph, lowered: LoweredGraph) -> None:
        self.source = source
        self._nodes = {node.name: node for node in source.nodes}
        self._lowered = lowered
        self._inner = {node.name: node for node in lowered.graph.nodes}
        self._aot_nodes = {node.name: node for node in lowered.aot_graph.nodes}
        same_graph = source is lowered.aot_graph  # Inductor's passes keep the names of the nodes that they keep
        self._sources = {
            node: self._original_names(node) if same_graph else _sources(node, id(source))
            for node in lowered.graph.nodes
        }

    def operation(self, buffer: str) -> str | None:
        """Return the name of the operation of AOTAutograd's graph whose result a buffer holds at the end, or None."""
        node = self._inner.get(self._lowered.operations.get(buffer, ""))
        if node is None:
            return None
        written = self._is_written(buffer, node)
        if not written and _is_same(self._aot_nodes.get(node.name), node):
            return str(node.name)
        replaced = (item for item in self._replaced(node) if written or item.target == node.target)
        return next((item.name for item in replaced if item is not self._aot_nodes.get(node.name)), None)

    def _original_names(self, node: fx.Node) -> set[str]:
        """Return the name of a node of Inductor's graph, or of the operation that a pattern has replaced by it.

        Patterns name the nodes that they insert, and in a backward graph do not record their sources. But unchanged
        consumers of the node read the replaced operation before.
        """
        if _is_same(self._aot_nodes.get(node.name), node):
            return {node.name}
        return {item.name for item in itertools.islice(self._replaced(node), 1)}

    def _replaced(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield what unchanged consumers of a node of Inductor's graph read in its place in AOTAutograd's graph."""
        for user in node.users:
            before = self._aot_nodes.get(user.name)
            if before is not None and _is_same(before, user):
                read, read_before = (pytree.tree_leaves((item.args, item.kwargs)) for item in (user, before))
                replaced = [other for item, other in zip(read, read_before, strict=False) if item is node]
                if len(read) == len(read_before) and replaced and _type(replaced[0]) == _type(node) is not None:
                    yield replaced[0]

    def values(self, buffer: str) -> Iterator[tuple[str, View]]:
        """Yield the names of the source graph's values that a buffer holds, and the view that computes each from it."""
        result = self._inner.get(self._lowered.operations.get(buffer, ""))  # the node whose result the buffer holds
        pending: list[tuple[fx.Node, View]] = [] if result is None else [(result, _identity)]
        if result is not None and self._is_written(buffer, result):  # a scatter became a write within the kernel
            pending = []
            if self.source is self._lowered.aot_graph and (name := self.operation(buffer)) is not None:
                yield name, _identity
        while pending:
            node, view = pending.pop(0)
            for name in self._values_by_node.get(node, ()):
                yield name, view
            pending += [(user, _compose(view, user)) for user in node.users if views_of(user) is node]

    def _is_written(self, buffer: str, node: fx.Node) -> bool:
        """Return whether the kernel that computes a node into a buffer also writes to the result or to a view of it."""
        origins = {name for kernel in self._lowered.kernels if buffer in kernel.writes for name in kernel.origins}
        return any(
            (user.name in origins and node in written_arguments(user.target, user.args, user.kwargs))
            or (views_of(user) is node and self._is_written(buffer, user))
            for user in node.users
        )

    def labels(self, exported_names: Mapping[str, str], preferred: Container[str] = ()) -> dict[str, Label]:
        """Return the labels of the stored buffers, by the names of the buffers.

        Args:
            exported_names: maps names of values to the names for the labels; other values get no label.
            preferred: the names to prefer for a buffer that holds several values.
        """
        result: dict[str, Label] = {}
        # A copy of an input is not that input: it keeps the buffer's name.
        taken = {exported_names.get(node.name) for node in self._nodes.values() if node.op == "placeholder"}
        for buffer in (name for kernel in self._lowered.kernels for name in kernel.writes):
            candidates = [
                (exported_names[value], view) for value, view in self.values(buffer) if value in exported_names
            ]
            value, view = min(candidates, key=lambda item: item[0] not in preferred, default=(None, _identity))
            name = buffer if value is None or value in taken else value
            taken.add(name)
            result[buffer] = Label(name, value, view)
        return result

    def _computed(self, kernel: Kernel) -> set[str]:
        """Return the names of the source graph's nodes that a kernel computes, according to Inductor."""
        others = {
            name
            for other in self._lowered.kernels
            if len(other.origins) == 1 != len(kernel.origins)
            for name in other.origins
        }
        nodes = [self._inner[name] for name in kernel.origins if name in self._inner and name not in others]
        computing = [node for node in nodes if not views_of(node)]
        return {name for node in computing or nodes for name in self._sources[node]}

    @cached_property
    def all_computed(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the source graph's nodes that each kernel computes, in order, by the name of the kernel.

        A pattern that replaces two operations by one records only the last of them. So an operation without a kernel is
        assigned to the kernels of its consumers; likewise a view.
        """
        kernel_nodes = {kernel.name: self._computed(kernel) for kernel in self._lowered.kernels}
        result: dict[str, list[str]] = {name: [] for name in kernel_nodes}
        users: dict[str, set[str]] = {}
        for node in reversed(self._nodes.values()):
            kernels = {kernel for kernel, names in kernel_nodes.items() if node.name in names}
            users[node.name] = kernels or {kernel for user in node.users for kernel in users[user.name]}
            if node.op == "call_function":
                for kernel in users[node.name]:
                    result[kernel].insert(0, node.name)
        return {kernel: tuple(names) for kernel, names in result.items()}

    @cached_property
    def _values_by_node(self) -> Mapping[fx.Node, list[str]]:
        """The names of the values that each node of Inductor's graph computes."""
        created: dict[str, list[fx.Node]] = {}  # by the name of the source node
        for node, names in self._sources.items():
            for name in names:
                created.setdefault(name, []).append(node)
        result: dict[fx.Node, list[str]] = {}
        inputs = [node for node in self._lowered.graph.nodes if node.op == "placeholder"]
        input_names = [node.name for node in self._nodes.values() if node.op == "placeholder"]
        if len(input_names) == len(inputs):
            result |= {node: [name] for node, name in zip(inputs, input_names, strict=True)}
        for name, node in self._nodes.items():
            item = _item(node, created)
            node_of_value = _computing_node(node, created[name]) if item is None and name in created else item
            if node_of_value is not None:
                result.setdefault(node_of_value, []).append(name)
        return result


def _item(source: fx.Node, created: Mapping[str, Sequence[fx.Node]]) -> fx.Node | None:
    """Return the item of an operation's result that is the same item of the same operation as `source`, or None."""
    if source.target is not operator.getitem or not isinstance(before := source.args[0], fx.Node):
        return None
    items = (
        node
        for node in created.get(before.name, ())
        if node.target is operator.getitem
        and node.args[1] == source.args[1]
        and isinstance(node.args[0], fx.Node)
        and operator_name(node.args[0].target) == operator_name(before.target)
        and _type(node) == _type(source)
    )
    return next(items, None)


def _computing_node(source: fx.Node, created: list[fx.Node]) -> fx.Node | None:
    """Return the last of the nodes created from `source` that others use or that writes to an input.

    None if there is none, or if its result has another type than that of `source`.
    """
    used = [node for node in created if any(user not in created for user in node.users)]
    used = used or [node for node in created if node.target == torch.ops.aten.copy_.default]
    return used[-1] if used and _type(used[-1]) == _type(source) is not None else None


def _type(node: Any) -> tuple[torch.dtype, str] | None:
    """Return the dtype and shape of a node's result, or None if it is not a tensor."""
    value = node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else None
    return (value.dtype, str([size_hint(size) for size in value.shape])) if isinstance(value, torch.Tensor) else None


def size_hint(size: Any) -> Any:
    """Return the number of a symbolic size for the inputs with which it was traced."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _sources(node: fx.Node, graph_id: int) -> set[str]:
    """Return the names of the nodes of one graph from which a node was created."""
    result, pending = set(), list(node.meta.get("from_node") or ())
    while pending:
        source = pending.pop()
        if source.graph_id == graph_id:
            result.add(source.name)
        else:
            pending += source.from_node
    return result


def _is_same(before: fx.Node | None, after: fx.Node | None) -> bool:
    """Return whether two nodes of one name are the same operation; Inductor replaces `view` by `reshape`."""
    if before is None or after is None:
        return False
    return before.target == after.target or (views_of(before) is not None and views_of(after) is not None)


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def views_of(node: fx.Node) -> fx.Node | None:
    """Return the node of which a node is a view, or None."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    alias = schema.returns[0].alias_info if schema is not None and len(schema.returns) == 1 else None
    first = node.args[0] if node.args else None
    return first if alias is not None and not alias.is_write and isinstance(first, fx.Node) else None


def _compose(view: View, node: fx.Node) -> View:
    """Compose two views; computed sizes are those of the inputs for which the graph was compiled."""
    target: Any = node.target

    args, kwargs = fx.map_arg((node.args[1:], node.kwargs), lambda item: size_hint(item.meta["val"]))
    return lambda tensor: target(view(tensor), *args, **kwargs)
