"""Which values of the graph that was given to Inductor its buffers hold."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ._kernels import Kernel, Lowered

View = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Label:
    """What a buffer is called.

    Attributes:
        name: unique among the labels of one compiled graph: that of the value it holds, else the buffer's own.
        value: what the value that it holds is known as; None if it holds none that is known.
        view: how the value is had from the buffer.
    """

    name: str
    value: str | None
    view: View

    def of(self, buffer: torch.Tensor) -> "Stored":
        """The value in a buffer."""
        return Stored(self.name, self.view(buffer).detach(), buffer)


@dataclass(frozen=True)
class Stored:
    """What a kernel has stored.

    Attributes:
        name: of its label.
        tensor: the value; in the buffer's memory, unless it can't be had without a copy.
        buffer: the buffer.
    """

    name: str
    tensor: torch.Tensor
    buffer: torch.Tensor

    def overwrite(self, tensor: torch.Tensor) -> None:
        """Let later kernels read another value; what can't be written through the view stays as it is."""
        inside = self.tensor.untyped_storage().data_ptr() == self.buffer.untyped_storage().data_ptr()
        expanded = any(
            size > 1 and not stride for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True)
        )
        if inside and not expanded:
            self.tensor.copy_(tensor)


class BufferMap:
    """Follows the numbers of one compiled graph back to the graph that it was made of.

    Each operation that tracing, decomposing or a pass made records what it was made from; the last one made from an
    operation carries its value. A buffer holds that value, or something of which it is a view.

    Args:
        given: what was compiled; its nodes' names are those of the values.
        lowered: what came out.
    """

    def __init__(self, given: fx.Graph, lowered: Lowered) -> None:
        self.given = given
        self._given = {node.name: node for node in given.nodes}
        self._lowered = lowered
        self._inner = {node.name: node for node in lowered.graph.nodes}
        self._before = {node.name: node for node in lowered.given.nodes}
        own = given is lowered.given  # Inductor's passes keep the names of what they keep
        self._sources = {node: self._kept(node) if own else _sources(node, id(given)) for node in lowered.graph.nodes}

    def operation(self, buffer: str) -> str | None:
        """The name of the operation of AOTAutograd's graph whose numbers a buffer holds; None if there is none."""
        name = self._lowered.exact.get(buffer)
        return name if _is_same(self._before.get(name or ""), self._inner.get(name or "")) else None

    def _kept(self, node: fx.Node) -> set[str]:
        return {node.name} if _is_same(self._before.get(node.name), node) else self._replaced(node)

    def _replaced(self, node: fx.Node) -> set[str]:
        """The operation that stood where a pattern has put a node: those that read it are still there, and read that.

        Patterns name what they put in, and say of a backward graph's nodes not what these were made from.
        """
        for user in node.users:
            before = self._before.get(user.name)
            if before is not None and _is_same(before, user):
                read, was = (pytree.tree_leaves((item.args, item.kwargs)) for item in (user, before))
                stood = [other for item, other in zip(read, was, strict=False) if item is node]
                if len(read) == len(was) and stood and _type(stood[0]) == _type(node) is not None:
                    return {stood[0].name}
        return set()

    def values(self, buffer: str) -> Iterator[tuple[str, View]]:
        """The names of the given graph's values that a buffer holds, and how each of them is had from it."""
        exact = self._inner.get(self._lowered.exact.get(buffer, ""))
        pending: list[tuple[fx.Node, View]] = [] if exact is None else [(exact, _as_it_is)]
        while pending:
            node, view = pending.pop(0)
            for name in self._carried.get(node, ()):
                yield name, view
            pending += [(user, _then(view, user)) for user in node.users if views_of(user) is node]

    def labels(self, known_as: Mapping[str, str], first: Container[str] = ()) -> dict[str, Label]:
        """What each stored buffer is called, by its own name.

        Args:
            known_as: the values that have a meaning to the reader, and what he calls them.
            first: those of them that a buffer that holds several is called by.
        """
        found: dict[str, Label] = {}
        # A copy of an input is not that input: it keeps the buffer's name.
        taken = {known_as.get(node.name) for node in self._given.values() if node.op == "placeholder"}
        for buffer in (name for kernel in self._lowered.kernels for name in kernel.writes):
            held = [(known_as[value], view) for value, view in self.values(buffer) if value in known_as]
            value, view = min(held, key=lambda item: item[0] not in first, default=(None, _as_it_is))
            name = buffer if value is None or value in taken else value
            taken.add(name)
            found[buffer] = Label(name, value, view)
        return found

    def computed(self, kernel: Kernel) -> set[str]:
        """The names of the given graph's nodes that a kernel computes, as far as Inductor knows."""
        others = {
            name
            for other in self._lowered.kernels
            if len(other.origins) == 1 != len(kernel.origins)
            for name in other.origins
        }
        nodes = [self._inner[name] for name in kernel.origins if name in self._inner and name not in others]
        working = [node for node in nodes if not views_of(node)]
        return {name for node in working or nodes for name in self._sources[node]}

    @cached_property
    def all_computed(self) -> Mapping[str, tuple[str, ...]]:
        """By the name of a kernel, the names of the given graph's nodes that it computes, in order.

        A pattern that replaces two operations by one records only the last of them. So an operation that no kernel is
        said to compute belongs to the kernels that compute those that use it; likewise a view.
        """
        said = {kernel.name: self.computed(kernel) for kernel in self._lowered.kernels}
        found: dict[str, list[str]] = {name: [] for name in said}
        users: dict[str, set[str]] = {}
        for node in reversed(self._given.values()):
            own = {kernel for kernel, names in said.items() if node.name in names}
            users[node.name] = own or {kernel for user in node.users for kernel in users[user.name]}
            if node.op == "call_function":
                for kernel in users[node.name]:
                    found[kernel].insert(0, node.name)
        return {kernel: tuple(names) for kernel, names in found.items()}

    def node_of(self, name: str) -> fx.Node | None:
        """The given graph's node of a name."""
        return self._given.get(name)

    @cached_property
    def _carried(self) -> Mapping[fx.Node, list[str]]:
        """The names of the values that each of Inductor's own nodes carries."""
        made: dict[str, list[fx.Node]] = {}
        for node, names in self._sources.items():
            for name in names:
                made.setdefault(name, []).append(node)
        found: dict[fx.Node, list[str]] = {}
        taken = [node.name for node in self._given.values() if node.op == "placeholder"]
        inner = [node for node in self._lowered.graph.nodes if node.op == "placeholder"]
        if len(taken) == len(inner):
            found |= {node: [name] for node, name in zip(inner, taken, strict=True)}
        for name, nodes in made.items():
            carrier = _carrier(self._given[name], nodes) if name in self._given else None
            if carrier is not None:
                found.setdefault(carrier, []).append(name)
        return found


def _carrier(given: fx.Node, made: list[fx.Node]) -> fx.Node | None:
    """The last of the nodes made from one that is used outside of them, or writes to an input, if it may have it."""
    used = [node for node in made if any(user not in made for user in node.users)] or [
        node for node in made if node.target == torch.ops.aten.copy_.default
    ]
    return used[-1] if used and _type(used[-1]) == _type(given) is not None else None


def _type(node: Any) -> tuple[torch.dtype, str] | None:
    value = None if not isinstance(node, fx.Node) else node.meta.get("val", node.meta.get("example_value"))
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, str([_number(size) for size in value.shape])


def _number(size: Any) -> Any:
    """The number that a symbolic size has for the inputs it was traced with."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _sources(node: fx.Node, graph_id: int) -> set[str]:
    """The names of the nodes of one graph that a node was made from."""
    found, pending = set(), list(node.meta.get("from_node") or ())
    while pending:
        source = pending.pop()
        if source.graph_id == graph_id:
            found.add(source.name)
        else:
            pending += source.from_node
    return found


def _is_same(before: fx.Node | None, after: fx.Node | None) -> bool:
    """Whether two nodes of one name are the same operation; Inductor makes a `reshape` of each `view`."""
    if before is None or after is None:
        return False
    return before.target == after.target or (views_of(before) is not None and views_of(after) is not None)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def views_of(node: fx.Node) -> fx.Node | None:
    """What a node is a view of; None if it is none."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    alias = schema.returns[0].alias_info if schema is not None and len(schema.returns) == 1 else None
    first = node.args[0] if node.args else None
    return first if alias is not None and not alias.is_write and isinstance(first, fx.Node) else None


def _then(view: View, node: fx.Node) -> View:
    """A view of a view; sizes that were computed are those of the inputs that the graph was compiled for."""
    target: Any = node.target

    def known(item: fx.Node) -> Any:
        return _number(item.meta["val"])

    args, kwargs = fx.map_arg((node.args[1:], node.kwargs), known)
    return lambda tensor: target(view(tensor), *args, **kwargs)
