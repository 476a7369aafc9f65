"""Map the nodes of a compiled graph to the exported nodes that they compute."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property

from filch.export import Graph, Node
from filch.export.backends import Compiled
from filch.export.graph._nodes import shared_calls

from ._ancestors import Ancestors
from ._redundant import RedundantNodes


class NodeProvenance:
    """The exported nodes that each node of a compiled graph computes.

    A value that survives optimization keeps its name, or the backend reports its new one. The exported nodes between a
    surviving value and the nearest surviving values before it are therefore what the compiled nodes between the same
    values compute. No-ops, duplicates and nodes that do not depend on the inputs are excluded, unless they survive.

    Args:
        exported: the exported graph.
        compiled: what a backend compiled it to.
    """

    def __init__(self, exported: Graph, compiled: Compiled) -> None:
        self.exported = exported
        self.compiled = compiled.graph
        self.redundant = RedundantNodes(exported)
        self._reported_origins = compiled.origins
        self._exported_name = compiled.exported_name
        self._inputs = frozenset(exported.inputs)
        self._by_name = {node.name: node for node in exported.nodes}
        self._cone = cache(self._cone_of)
        self._computes: dict[str, tuple[Node, ...]] = {}

    @cached_property
    def surviving(self) -> frozenset[str]:
        """The exported values that are in the compiled graph, possibly with another layout, shape or type."""
        return frozenset(map(self._exported_name, self.compiled.known)) & self.exported.known

    def is_inserted(self, node: Node) -> bool:
        """Whether a compiled node only changes the layout, shape, type or device of a value."""
        if len(node.outputs) != 1 or not node.inputs or node.name in self._reported_origins:
            return False
        exported_name = self._exported_name(node.outputs[0])
        return exported_name in self.exported.known and exported_name == self._exported_name(node.inputs[0])

    def annotated(self) -> Graph:
        """Return the compiled graph, each node with its origins and with their module call and line of code."""
        return replace(self.compiled, nodes=tuple(map(self._annotated_node, self.compiled.nodes)))

    def _annotated_node(self, node: Node) -> Node:
        computes = self.of(node)
        origin = self.node_with_module(node)
        return replace(
            node,
            origins=tuple(item.name for item in computes),
            stack=node.stack or shared_calls([item.stack for item in computes if item.stack]),
            module=node.module if node.module is not None else origin.module,
            source=node.source or origin.source,
        )

    def node_with_module(self, node: Node) -> Node:
        """Return the last node with a known module that a compiled node computes; the node itself if there is none."""
        return next((item for item in reversed(self.of(node)) if item.module is not None), node)

    def of(self, node: Node) -> tuple[Node, ...]:
        """Return the exported nodes that a compiled node computes, alone or with its neighbors.

        For an inserted node, they are the nodes that compute the value it converts; empty for an input.
        """
        if node.name not in self._computes:
            self._computes[node.name] = self._nodes_of(node)
        return self._computes[node.name]

    def _nodes_of(self, node: Node) -> tuple[Node, ...]:
        """Compute what `of` returns: the nodes that the backend reports, else those behind the surviving values."""
        if node.name in self._reported_origins:
            return tuple(self._by_name[name] for name in self._reported_origins[node.name])
        nodes: dict[str, Node] = {}
        for name in node.outputs:
            for end in self._nearest_surviving(name):
                nodes |= {item.name: item for item in self._cone(self._exported_name(end))}
        return tuple(nodes.values())

    def rounding_nodes(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes whose rounding errors a compiled node's values have: the exported ones, or itself."""
        return (() if self.is_inserted(node) else self.of(node)) or (node,)

    def covers(self, node: Node, name: str) -> tuple[Node, ...]:
        """Return the exported nodes in which an error of a compiled value may originate.

        They are the nodes that the compiled node computes, and those removed or folded between it and its inputs.

        Args:
            node: the compiled node.
            name: the name of one of its outputs.
        """
        ends = [*map(self._exported_name, self._nearest_surviving(name))]
        read = {self._exported_name(item) for item in node.reads if item not in self.compiled.constant_values}
        # If the optimizer merged two values that are not equal, the nodes that compute either may be the cause.
        merged = self._upstream(read, Ancestors(self.exported, ends))
        nodes = {item.name: item for item in (*self._between(ends, read, node), *self.of(node), *merged)}
        return tuple(sorted(nodes.values(), key=lambda item: self.exported.node_indices[item.name]))

    def _between(self, ends: Iterable[str], read: Collection[str], node: Node) -> Iterator[Node]:
        """Yield the exported nodes between `ends` and the values that a compiled node reads or depends on."""
        ancestors = Ancestors(self.compiled, node.reads)
        pending, seen = [*ends], {*ends}
        while pending:
            producer = self.exported.producer.get(pending.pop())
            if producer is None:
                continue
            yield producer
            for item in producer.reads:
                if item not in read and item not in seen and not self._remains(item, ancestors):
                    seen.add(item)
                    pending.append(item)

    def _remains(self, name: str, ancestors: Ancestors) -> bool:
        """Whether an exported value is an input or computed by one of `ancestors`, and not a constant."""
        # Even if the output of a no-op remains for other nodes, this node may read the no-op's input instead.
        if name in self._no_op_outputs or name in self.exported.constant_values:
            return False
        return name in self._inputs or any(node in ancestors for node in self._producers.get(name, ()))

    def _upstream(self, names: Iterable[str], excluded: Ancestors) -> Iterator[Node]:
        """Yield the exported nodes that `names` depend on, stopping at `excluded`."""
        pending, seen = [*names], {*names}
        while pending:
            producer = self.exported.producer.get(pending.pop())
            if producer is not None and producer not in excluded:
                yield producer
                pending += [name for name in producer.reads if name not in seen]
                seen.update(producer.reads)

    @cached_property
    def _producers(self) -> Mapping[str, list[Node]]:
        """The compiled nodes that compute each exported value, possibly with another layout, shape or type."""
        producers: dict[str, list[Node]] = {}
        for node in self.compiled.nodes:
            for name in node.outputs:
                producers.setdefault(self._exported_name(name), []).append(node)
        return producers

    @cached_property
    def _no_op_outputs(self) -> frozenset[str]:
        nodes = (self._by_name[name] for name in self.redundant.no_ops)
        return frozenset(name for node in nodes for name in node.outputs)

    @cached_property
    def _boundaries(self) -> frozenset[str]:
        """The exported values at which the search for the exported nodes of a compiled node stops."""
        names = set(self.surviving | self.redundant.input_independent)
        for node in self.exported.nodes:  # no-ops and duplicates have the values of other nodes
            input_name = self.redundant.no_ops.get(node.name)
            duplicated = self.redundant.duplicates.get(node.name)
            if input_name in names or (duplicated is not None and {*duplicated.outputs} <= names):
                names.update(node.outputs)
        return frozenset(names)

    def _cone_of(self, name: str) -> tuple[Node, ...]:
        """Return the exported nodes between a surviving value and the boundaries before it, without no-ops."""
        producer = self.exported.producer.get(name)
        while producer is not None and self._is_renamed(producer):
            name = self.redundant.no_ops[producer.name]
            producer = self.exported.producer.get(name)
        nodes = self.exported.cone([name], self._boundaries)
        return tuple(node for node in nodes if node is producer or node.name not in self.redundant.no_ops)

    def _is_renamed(self, node: Node) -> bool:
        """Whether a no-op was removed and the node before it now computes the value of the no-op's name."""
        source = self.redundant.no_ops.get(node.name)
        return source is not None and source not in self.surviving and source in self.exported.producer

    def _survives(self, name: str) -> bool:
        return self._exported_name(name) in self.surviving

    def unmapped_reason(self, name: str) -> str:
        """Return why the exported graph has no such value, and the next nodes that can be judged; `""` if it has."""
        if self._survives(name):
            return ""
        nodes = ", ".join(dict.fromkeys(self.compiled.producer[end].name for end in self._nearest_surviving(name)))
        return f"the exported graph has no such value: see {nodes}" if nodes else "the exported graph has no such value"

    def _nearest_surviving(self, name: str) -> Iterable[str]:
        """Return a compiled value itself if it survives, else the nearest surviving values that depend on it."""
        if self._survives(name):
            return [name]
        return self._dependents.get(name) or self._find_dependents(name, self._dependents)

    @cached_property
    def _dependents(self) -> Mapping[str, tuple[str, ...]]:
        """Map each value of a compiled node that does not survive to the nearest surviving values that depend on it."""
        after: dict[str, tuple[str, ...]] = {}
        for node in reversed(self.compiled.nodes):
            for name in node.outputs:
                if name and not self._survives(name):
                    after[name] = self._find_dependents(name, after)
        return after

    def _find_dependents(self, name: str, after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Return the nearest surviving values that depend on a value; `after` has those of the values after it."""
        outputs = [output for user in self.compiled.consumers.get(name, ()) for output in user.outputs if output]
        ends = [(output,) if self._survives(output) else after.get(output, ()) for output in outputs]
        return ends[0] if len(ends) == 1 else tuple(dict.fromkeys(end for part in ends for end in part))
