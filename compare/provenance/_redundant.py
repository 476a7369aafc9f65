"""Exported nodes whose numbers are had without them: they change nothing, or do again what was done before."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from filch.export import Graph, Node

_SHAPES = frozenset(
    {"Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten", "Tile", "Pad", "Slice", "Cast", "CastLike"}
)
_OF_ONE = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
_OF_SHAPES = frozenset({"Shape", "Size"})


class Redundant:
    """What in a graph can be left out, as far as the graph alone tells."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The values that do not depend on the inputs: constants, known shapes, and what is made of these alone."""
        found = set(self._graph.constant_values)
        for node in self._graph.nodes:
            of_shape = node.op in _OF_SHAPES and self._is_static(node.inputs[0])
            if of_shape or (all(name in found for name in node.reads) and not node.op.startswith("Random")):
                found.update(node.outputs)
        return frozenset(found)

    @cached_property
    def unchanged(self) -> Mapping[str, str]:
        """By the name of a node that changes nothing, the value that it hands on."""
        return {node.name: node.inputs[0] for node in self._graph.nodes if self._changes_nothing(node)}

    @cached_property
    def again(self) -> Mapping[str, Node]:
        """By the name of a node that computes what another one before it does, that node."""
        first: dict[Any, Node] = {}
        stands_for: dict[str, str] = {}
        found: dict[str, Node] = {}
        for node in self._graph.nodes:
            if node.name in self.unchanged:
                source = self.unchanged[node.name]
                stands_for[node.outputs[0]] = stands_for.get(source, source)
            if (key := _key(node, stands_for)) is None:
                continue
            before = first.setdefault(key, node)
            if before is not node:
                found[node.name] = before
                stands_for |= {a: stands_for.get(b, b) for a, b in zip(node.outputs, before.outputs, strict=True)}
        return found

    def _is_static(self, name: str) -> bool:
        held = self._graph.values.get(name)
        return held is not None and held.shape is not None and all(isinstance(dim, int) for dim in held.shape)

    def _changes_nothing(self, node: Node) -> bool:
        if node.op == "Identity":
            return True
        if node.op == "Dropout":
            return len(node.inputs) < 3 or bool(self.number(node.inputs[2]) == 0)
        if not node.inputs or not self._keeps_type(node):
            return False
        if node.op == "Transpose":
            perm = list(node.attributes.get("perm", ()))
            return bool(perm) and perm == sorted(perm)
        if node.op == "Slice":
            return len(node.inputs) < 5 or bool(self.number(node.inputs[4]) == 1)
        if node.op in _NEUTRAL:
            return bool(self.number(node.inputs[1]) == _NEUTRAL[node.op])
        return node.op in _SHAPES or (node.op in _OF_ONE and len(node.inputs) == 1)

    def _keeps_type(self, node: Node) -> bool:
        before, after = (self._graph.values.get(name) for name in (node.inputs[0], node.outputs[0]))
        if before is None or after is None or before.dtype is None or before.shape is None or after.shape is None:
            return False
        known = None not in before.shape
        return known and before.dtype == after.dtype and before.shape == after.shape

    def number(self, name: str) -> float | None:
        """The number that a constant holds; None if it holds several or is none."""
        node = self._graph.producer.get(name)
        if node is None or node.op != "Constant":
            return None
        (held,) = node.attributes.values()
        while isinstance(held, list) and len(held) == 1:
            held = held[0]
        return held if isinstance(held, int | float) else None


def _key(node: Node, stands_for: Mapping[str, str]) -> Any:
    """What two nodes have in common that compute the same; None if that can't be told."""
    attributes = tuple((name, repr(value)) for name, value in sorted(node.attributes.items()))
    untold = any(value.startswith("'<") for _, value in attributes)
    if untold or node.captured or node.op.startswith(("Random", "Multinomial", "Bernoulli")):
        return None
    return (node.op, attributes, len(node.outputs), tuple(stands_for.get(name, name) for name in node.inputs))
