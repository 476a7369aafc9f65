"""Map the buffers of compiled code to the values of the graph that Inductor compiled."""

import operator
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from filch.steal.private._torch import pytree

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
        sizes = zip(self.tensor.shape, self.tensor.stride(), strict=True)
        is_expanded = any(stride == 0 and size > 1 for size, stride in sizes)  # several elements are one number
        if shares_memory and not is_expanded:
            self.tensor.copy_(tensor)


class BufferMap:
    """Maps the buffers and kernels of a compiled graph to the values and nodes of the graph before compilation.

    There are three torch graphs: the source graph, before compilation; the one that AOTAutograd makes of it; and
    Inductor's, which its passes make of that. Each node that tracing, a decomposition or a pass creates records the
    nodes from which it was created. Of the nodes created from one node, the last computes the value of that node. A
    buffer holds that value, or a tensor of which it is a view.

    Args:
        source: the source graph; its nodes have the names of the values. It may be AOTAutograd's.
        lowered: the result of the compilation.
    """

    def __init__(self, source: fx.Graph, lowered: LoweredGraph) -> None:
        self.source = source
        self._lowered = lowered
        self._source_nodes = {node.name: node for node in source.nodes}
        self._aot_nodes = {node.name: node for node in lowered.aot_graph.nodes}
        self._inductor_nodes = {node.name: node for node in lowered.graph.nodes}
        is_aot_graph = source is lowered.aot_graph
        # For each node of Inductor's graph, the names of the source nodes from which it was created.
        self._source_names = {
            node: self._aot_names(node) if is_aot_graph else _recorded_sources(node, id(source))
            for node in lowered.graph.nodes
        }

    def _aot_names(self, node: fx.Node) -> set[str]:
        """Return the name of AOTAutograd's node that a node of Inductor's graph is, or that a pattern replaced by it.

        Inductor's passes keep the names of the nodes that they keep. Patterns name the nodes that they insert, and in a
        backward graph do not record their sources. But unchanged consumers of the node read the replaced one before.
        """
        if _is_same(self._aot_nodes.get(node.name), node):
            return {node.name}
        replaced = next(self._replaced(node), None)
        return set() if replaced is None else {replaced.name}

    def _replaced(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield what unchanged consumers of a node of Inductor's graph read in its place in AOTAutograd's graph."""
        for user in node.users:
            before = self._aot_nodes.get(user.name)
            if before is not None and _is_same(before, user):
                read, read_before = (pytree.tree_leaves((item.args, item.kwargs)) for item in (user, before))
                replaced = [other for item, other in zip(read, read_before, strict=False) if item is node]
                if len(read) == len(read_before) and replaced and _same_type(replaced[0], node):
                    yield replaced[0]

    def _held_node(self, buffer: str) -> fx.Node | None:
        """Return the node of Inductor's graph whose result a buffer holds, or None."""
        return self._inductor_nodes.get(self._lowered.operations.get(buffer, ""))

    def operation(self, buffer: str) -> str | None:
        """Return the name of the operation of AOTAutograd's graph whose result a buffer holds at the end, or None."""
        node = self._held_node(buffer)
        if node is None:
            return None
        same_name = self._aot_nodes.get(node.name)
        is_written = self._is_written(buffer, node)
        if not is_written and _is_same(same_name, node):
            return str(node.name)
        # If the kernel also writes to the result, the operation is what consumers read in place of the node.
        replaced = (item for item in self._replaced(node) if is_written or item.target == node.target)
        return next((item.name for item in replaced if item is not same_name), None)

    def values(self, buffer: str) -> Iterator[tuple[str, View]]:
        """Yield the names of the source graph's values that a buffer holds, and the view that computes each from it."""
        held = self._held_node(buffer)
        if held is None:
            return
        if self._is_written(buffer, held):  # a scatter became a write within the kernel: `held` is what it writes to
            if self.source is self._lowered.aot_graph and (name := self.operation(buffer)) is not None:
                yield name, _identity
            return
        pending: deque[tuple[fx.Node, View]] = deque([(held, _identity)])
        while pending:
            node, view = pending.popleft()
            for name in self._values_by_node.get(node, ()):
                yield name, view
            pending.extend((user, _compose(view, user)) for user in node.users if views_of(user) is node)

    def _is_written(self, buffer: str, node: fx.Node) -> bool:
        """Return whether the kernel that computes a node into a buffer also writes to the result or to a view of it."""
        origins = {name for kernel in self._lowered.kernels if buffer in kernel.writes for name in kernel.origins}
        return any(
            (user.name in origins and node in written_arguments(user.target, user.args, user.kwargs))
            or (views_of(user) is node and self._is_written(buffer, user))
            for user in node.users
        )

    def labels(self, value_names: Mapping[str, str], preferred: Container[str] = ()) -> dict[str, Label]:
        """Return the labels of the stored buffers, by the names of the buffers.

        Args:
            value_names: maps names of values to the names for the labels; other values get no label.
            preferred: the names to prefer for a buffer that holds several values.
        """
        result: dict[str, Label] = {}
        # A copy of an input is not that input: it keeps the buffer's name.
        taken = {value_names.get(node.name) for node in self.source.find_nodes(op="placeholder")}
        for buffer in (name for kernel in self._lowered.kernels for name in kernel.writes):
            candidates = [(value_names[value], view) for value, view in self.values(buffer) if value in value_names]
            value, view = min(candidates, key=lambda item: item[0] not in preferred, default=(None, _identity))
            name = buffer if value is None or value in taken else value
            taken.add(name)
            result[buffer] = Label(name, value, view)
        return result

    @cached_property
    def all_computed(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the source graph's nodes that each kernel computes, in order, by the name of the kernel.

        A pattern that replaces two operations by one records only the last of them. So an operation without a kernel is
        assigned to the kernels of its consumers; likewise a view.
        """
        reported = {kernel.name: self._reported_nodes(kernel) for kernel in self._lowered.kernels}
        kernels_of: dict[str, set[str]] = {}  # the kernels that compute a source node
        for node in reversed(self._source_nodes.values()):
            kernels = {kernel for kernel, names in reported.items() if node.name in names}
            kernels_of[node.name] = kernels or {kernel for user in node.users for kernel in kernels_of[user.name]}
        calls = [name for name, node in self._source_nodes.items() if node.op == "call_function"]
        return {kernel: tuple(name for name in calls if kernel in kernels_of[name]) for kernel in reported}

    def _reported_nodes(self, kernel: Kernel) -> set[str]:
        """Return the names of the source graph's nodes that a kernel computes, according to Inductor.

        An operation that is the only one of another kernel is not fused into this one, although it may be reported. The
        views that a kernel reads are not computed, unless it computes nothing else.
        """
        computed_alone = {
            other.origins[0] for other in self._lowered.kernels if len(other.origins) == 1 and len(kernel.origins) != 1
        }  # empty if this kernel has one operation only, which it keeps
        names = [name for name in kernel.origins if name not in computed_alone]
        nodes = [self._inductor_nodes[name] for name in names if name in self._inductor_nodes]
        computing = [node for node in nodes if not views_of(node)] or nodes
        # Of an operation that replaces others, torch may record only from what its first result was made.
        items = [user for node in computing for user in node.users if user.target is operator.getitem]
        return {name for node in (*computing, *items) for name in self._source_names[node]}

    @cached_property
    def _values_by_node(self) -> Mapping[fx.Node, list[str]]:
        """The names of the source graph's values that each node of Inductor's graph computes."""
        created: dict[str, list[fx.Node]] = {}  # the nodes of Inductor's graph by the name of their source node
        for node, names in self._source_names.items():
            for name in names:
                created.setdefault(name, []).append(node)
        result: dict[fx.Node, list[str]] = {}
        inputs, source_inputs = (graph.find_nodes(op="placeholder") for graph in (self._lowered.graph, self.source))
        if len(source_inputs) == len(inputs):  # otherwise AOTAutograd added or removed some, and positions differ
            result |= {node: [source.name] for node, source in zip(inputs, source_inputs, strict=True)}
        for name, source in self._source_nodes.items():
            node = _same_item(source, created) or _computing_node(source, created.get(name, []))
            if node is not None:
                result.setdefault(node, []).append(name)
        return result


def _same_item(source: fx.Node, created: Mapping[str, Sequence[fx.Node]]) -> fx.Node | None:
    """Return the node of Inductor's graph that reads the same item of the same operation's result as `source`, or None.

    Args:
        source: a node of the source graph.
        created: the nodes of Inductor's graph, by the name of the source node from which they were created.
    """
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


def _computing_node(source: fx.Node, created: Sequence[fx.Node]) -> fx.Node | None:
    """Return the last of the nodes created from `source` that others use or that writes to an input.

    If that is one of several results of an operation, it is the first of these. None if there is none, or if its result
    has another type than that of `source`.
    """
    used = [node for node in created if any(user not in created for user in node.users)]
    used = used or [node for node in created if node.target == torch.ops.aten.copy_.default]
    if used and used[-1].target is operator.getitem:  # noise that an operator returns beside its result, for example
        operation = used[-1].args[0]
        used = [min((node for node in used if node.args[0] is operation), key=lambda node: int(str(node.args[1])))]
    return used[-1] if used and _same_type(used[-1], source) else None


def _same_type(a: Any, b: Any) -> bool:
    """Return whether the results of two nodes are tensors of the same dtype and shape."""
    return _type(a) is not None and _type(a) == _type(b)


def _type(node: Any) -> tuple[torch.dtype, str] | None:
    """Return the dtype and shape of a node's result, or None if it is not a tensor or not recorded."""
    value = node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else None
    return (value.dtype, str([size_hint(size) for size in value.shape])) if isinstance(value, torch.Tensor) else None


def size_hint(size: Any) -> Any:
    """Return the number of a symbolic size for the inputs with which it was traced."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _recorded_sources(node: fx.Node, graph_id: int) -> set[str]:
    """Return the names of the nodes of the graph with this `id` from which a node was created, as torch recorded.

    Each record names a node of one graph and, in `from_node`, the nodes of earlier graphs from which that was created.
    """
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
    """Return the node of which a node is a view, or None; an in-place operation is no view."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    alias = schema.returns[0].alias_info if schema is not None and len(schema.returns) == 1 else None
    first = node.args[0] if node.args else None
    return first if alias is not None and not alias.is_write and isinstance(first, fx.Node) else None


def _compose(view: View, node: fx.Node) -> View:
    """Compose two views; computed sizes are those of the inputs for which the graph was compiled."""
    target: Any = node.target
    args, kwargs = fx.map_arg((node.args[1:], node.kwargs), lambda item: size_hint(item.meta["val"]))
    return lambda tensor: target(view(tensor), *args, **kwargs)
