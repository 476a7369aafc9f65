"""Find redundant nodes: no-ops, duplicates and constant expressions."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from filch.export import Graph, Node


class RedundantNodes:
    """The nodes that an optimizer may remove from a graph, found without running it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @cached_property
    def input_independent(self) -> frozenset[str]:
        """The values that do not depend on the inputs: constants, static shapes and what is computed from them."""
        names = set(self._graph.constant_values)
        for node in self._graph.nodes:
            static_shape = node.operator.reads_shape and self._is_static(node.inputs[0])
            if static_shape or (all(name in names for name in node.reads) and not node.operator.random):
                names.update(node.outputs)
        return frozenset(names)

    @cached_property
    def no_ops(self) -> Mapping[str, str]:
        """Map the name of each node that does not change its input to the name of that input."""
        return {node.name: node.inputs[0] for node in self._graph.nodes if self._is_no_op(node)}

    @cached_property
    def duplicates(self) -> Mapping[str, Node]:
        """Map the name of each node that repeats an earlier computation to the earlier node."""
        first: dict[Any, Node] = {}
        aliases: dict[str, str] = {}
        duplicates: dict[str, Node] = {}
        for node in self._graph.nodes:
            if node.name in self.no_ops:
                source = self.no_ops[node.name]
                aliases[node.outputs[0]] = aliases.get(source, source)
            if (key := _computation_key(node, aliases)) is None:
                continue
            earlier = first.setdefault(key, node)
            if earlier is not node:
                duplicates[node.name] = earlier
                aliases |= {a: aliases.get(b, b) for a, b in zip(node.outputs, earlier.outputs, strict=True)}
        return duplicates

    def _is_static(self, name: str) -> bool:
        value = self._graph.values.get(name)
        return value is not None and value.shape is not None and all(isinstance(dim, int) for dim in value.shape)

    def _is_no_op(self, node: Node) -> bool:
        if node.op == "Identity":
            return True
        if node.op == "Dropout":
            return len(node.inputs) < 3 or bool(self.number(node.inputs[2]) == 0)  # not in training
        if not node.inputs or not self._keeps_type(node):
            return False
        if node.operator.movement == "permute":
            perm = list(node.attributes.get("perm", ()))
            return bool(perm) and perm == sorted(perm)
        if node.op == "Slice":
            return len(node.inputs) < 5 or bool(self.number(node.inputs[4]) == 1)  # steps of 1, in the same shape
        if node.operator.neutral is not None:
            return len(node.inputs) > 1 and bool(self.number(node.inputs[1]) == node.operator.neutral)
        return (node.operator.keeps and not self._has_writes) or (node.operator.variadic and len(node.inputs) == 1)

    @cached_property
    def _has_writes(self) -> bool:
        """Whether a node writes to what another one computes, as PyTorch's can: a copy is then another value."""
        return any(node.op.endswith("_") for node in self._graph.nodes)

    def _keeps_type(self, node: Node) -> bool:
        """Whether the first output is known to have the dtype and the shape of the first input."""
        before, after = (self._graph.values.get(name) for name in (node.inputs[0], node.outputs[0]))
        if before is None or after is None or before.dtype is None or before.shape is None or after.shape is None:
            return False
        known = None not in before.shape
        return known and before.dtype == after.dtype and before.shape == after.shape

    def number(self, name: str) -> float | None:
        """Return the number in a constant of one element; None for any other value."""
        node = self._graph.producer.get(name)
        if node is None or node.op != "Constant":
            return None
        (number,) = node.attributes.values()
        while isinstance(number, list) and len(number) == 1:
            number = number[0]
        return number if isinstance(number, int | float) else None


def _computation_key(node: Node, aliases: Mapping[str, str]) -> Any:
    """Return a key that nodes with equal results share; None for random nodes, subgraphs and abbreviated attributes."""
    attributes = tuple((name, repr(value)) for name, value in sorted(node.attributes.items()))
    abbreviated = any(value.startswith("'<") for _, value in attributes)
    if abbreviated or node.captured or node.operator.random:
        return None
    return (node.op, attributes, len(node.outputs), tuple(aliases.get(name, name) for name in node.inputs))
