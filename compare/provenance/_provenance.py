"""Which exported nodes a compiled node computes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property

from filch.export import Graph, Node, shared_calls
from filch.export.backends import Compiled

from ._ancestors import Ancestors
from ._redundant import Redundant


class NodeProvenance:
    """Compares a compiled graph with the graph that it was made of.

    Optimisers keep the names of the values that they keep, or the backend says under which name they are. So the
    exported nodes between a surviving value and the nearest surviving values before it are what the compiled nodes
    between the same values compute. Nodes that change nothing, or do again what another does, are not counted among
    them, nor those whose values do not depend on the inputs, unless they are there themselves.
    """

    def __init__(self, exported: Graph, made: Compiled) -> None:
        self.exported = exported
        self.compiled = made.graph
        self.redundant = Redundant(exported)
        self._backend_references = made.origins
        self._same = made.value_aliases
        self._by_name = {node.name: node for node in exported.nodes}
        self._cone = cache(self._cone_of)
        self._computes: dict[str, tuple[Node, ...]] = {}

    @cached_property
    def surviving(self) -> frozenset[str]:
        """The exported values that are in the compiled graph, in whatever form."""
        return frozenset(map(self.exported_name, self.compiled.known)) & self.exported.known

    def exported_name(self, name: str) -> str:
        """The exported graph's name of a compiled value."""
        return self._same.get(name, name)

    def is_inserted(self, node: Node) -> bool:
        """Whether a compiled node only changes the form of a value: its layout, shape, type or place."""
        if len(node.outputs) != 1 or not node.inputs or node.name in self._backend_references:
            return False
        known = self.exported_name(node.outputs[0])
        return known in self.exported.known and known == self.exported_name(node.inputs[0])

    def drawn(self) -> Graph:
        """The compiled graph, each node with its origins and with the calls and the line of code that these had."""
        return replace(self.compiled, nodes=tuple(map(self._told, self.compiled.nodes)))

    def _told(self, node: Node) -> Node:
        computes = self.of(node)
        named = self.named(node)
        return replace(
            node,
            origins=tuple(item.name for item in computes),
            stack=node.stack or shared_calls([item.stack for item in computes if item.stack]),
            module=node.module if node.module is not None else named.module,
            source=node.source or named.source,
        )

    def named(self, node: Node) -> Node:
        """The last of the nodes that a compiled node computes whose module is known; itself if there is none."""
        return next((item for item in reversed(self.of(node)) if item.module is not None), node)

    def of(self, node: Node) -> tuple[Node, ...]:
        """The exported nodes that a compiled node computes, alone or with its neighbours.

        Of a node that was inserted, those whose value it holds; none, if it holds an input.
        """
        if node.name not in self._computes:
            self._computes[node.name] = self._of(node)
        return self._computes[node.name]

    def _of(self, node: Node) -> tuple[Node, ...]:
        if node.name in self._backend_references:
            return tuple(self._by_name[name] for name in self._backend_references[node.name])
        found: dict[str, Node] = {}
        for name in node.outputs:
            for end in [name] if self._survives(name) else self._ends(name):
                found |= {item.name: item for item in self._cone(self.exported_name(end))}
        return tuple(found.values())

    def worked(self, node: Node) -> tuple[Node, ...]:
        """The exported nodes whose rounding a compiled node has: none that it only changes the form of; or itself."""
        return (() if self.is_inserted(node) else self.of(node)) or (node,)

    def covers(self, node: Node, name: str) -> tuple[Node, ...]:
        """The exported nodes between a value of a compiled node and what it reads: their faults show in it.

        They are those that it computes, and those that were removed or folded on the way.

        Args:
            node: the compiled node.
            name: which of its values.
        """
        ends = [self.exported_name(end) for end in ([name] if self._survives(name) else self._ends(name))]
        read = {self.exported_name(item) for item in node.reads if item not in self.compiled.constant_values}
        # What it reads in place of another value, which an optimiser took for the same, may be wrong, or that one.
        merged = self._behind(read, Ancestors(self.exported, ends))
        found = {item.name: item for item in (*self._between(ends, read, node), *self.of(node), *merged)}
        return tuple(sorted(found.values(), key=lambda item: self.exported.places[item.name]))

    def _between(self, ends: Iterable[str], read: Collection[str], node: Node) -> Iterator[Node]:
        """The exported nodes between some values and those that a compiled node reads for them, or depends on."""
        before = Ancestors(self.compiled, node.reads)
        pending, seen = [*ends], {*ends}
        while pending:
            producer = self.exported.producer.get(pending.pop())
            if producer is None:
                continue
            yield producer
            for item in producer.reads:
                if item not in read and item not in seen and not self._stays(item, before):
                    seen.add(item)
                    pending.append(item)

    def _stays(self, name: str, before: Ancestors) -> bool:
        """Whether an exported value that is no constant is an input or made by one of some compiled nodes."""
        # What was removed hands on what is read in its place; its own value may be there still for others.
        if name in self._handed_on or name in self.exported.constant_values:
            return False
        return name in self._inputs or any(node in before for node in self._makers.get(name, ()))

    def _behind(self, names: Iterable[str], others: Ancestors) -> Iterator[Node]:
        """The exported nodes that some values depend on, without those that are among `others`."""
        pending, seen = [*names], {*names}
        while pending:
            producer = self.exported.producer.get(pending.pop())
            if producer is not None and producer not in others:
                yield producer
                pending += [name for name in producer.reads if name not in seen]
                seen.update(producer.reads)

    @cached_property
    def _inputs(self) -> frozenset[str]:
        return frozenset(self.exported.inputs)

    @cached_property
    def _makers(self) -> Mapping[str, list[Node]]:
        """The compiled nodes that make each exported value, in whatever form."""
        found: dict[str, list[Node]] = {}
        for node in self.compiled.nodes:
            for name in node.outputs:
                found.setdefault(self.exported_name(name), []).append(node)
        return found

    @cached_property
    def _handed_on(self) -> frozenset[str]:
        nodes = (self._by_name[name] for name in self.redundant.unchanged)
        return frozenset(name for node in nodes for name in node.outputs)

    @cached_property
    def _stops(self) -> frozenset[str]:
        """The exported values that no compiled node computes on its way to another one."""
        found = set(self.surviving | self.redundant.fixed)
        for node in self.exported.nodes:
            source = self.redundant.unchanged.get(node.name)
            before = self.redundant.again.get(node.name)
            if source in found or (before is not None and {*before.outputs} <= found):
                found.update(node.outputs)
        return frozenset(found)

    def _cone_of(self, name: str) -> tuple[Node, ...]:
        producer = self.exported.producer.get(name)
        while producer is not None and self._is_renamed(producer):
            name = self.redundant.unchanged[producer.name]
            producer = self.exported.producer.get(name)
        made = self.exported.cone([name], self._stops)
        return tuple(node for node in made if node is producer or node.name not in self.redundant.unchanged)

    def _is_renamed(self, node: Node) -> bool:
        """Whether a node that changes nothing is gone, and the one before it makes its value under its name."""
        source = self.redundant.unchanged.get(node.name)
        return source is not None and source not in self.surviving and source in self.exported.producer

    def _survives(self, name: str) -> bool:
        return self.exported_name(name) in self.surviving

    def inside(self, name: str) -> str:
        """For a value that the exported graph does not have: the compiled node at whose value it can be judged."""
        if self._survives(name):
            return ""
        ends = self._ends(name)
        nodes = ", ".join(dict.fromkeys(self.compiled.producer[end].name for end in ends))
        return f"the exported graph has no such value: see {nodes}" if nodes else "the exported graph has no such value"

    def _ends(self, name: str) -> Iterable[str]:
        """The nearest surviving values that depend on a value of the compiled graph."""
        return self._after.get(name) or self._next(name, self._after)  # what no node makes is not in the table

    @cached_property
    def _after(self) -> Mapping[str, tuple[str, ...]]:
        """For each value of a compiled node that does not survive, the nearest surviving ones that depend on it."""
        found: dict[str, tuple[str, ...]] = {}
        for node in reversed(self.compiled.nodes):
            for name in node.outputs:
                if name and not self._survives(name):
                    found[name] = self._next(name, found)
        return found

    def _next(self, name: str, after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        made = [output for user in self.compiled.consumers.get(name, ()) for output in user.outputs if output]
        ends = [(output,) if self._survives(output) else after.get(output, ()) for output in made]
        return ends[0] if len(ends) == 1 else tuple(dict.fromkeys(end for part in ends for end in part))
