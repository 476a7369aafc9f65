"""What became of each exported node in the compiled graph."""

from collections.abc import Iterable

from filch.export import Node

from ..provenance._provenance import NodeProvenance
from ..results._rows import NodeOutcome, OutcomeKind


def node_outcomes(origins: NodeProvenance) -> tuple[NodeOutcome, ...]:
    """Return what became of every exported node, in order."""
    return _Fates(origins).found


class _Fates:
    def __init__(self, origins: NodeProvenance) -> None:
        self._origins = origins
        self._redundant = origins.redundant
        self._graph = origins.exported
        self._needed = self._names_before(frozenset())
        self._live = self._names_before(self._redundant.fixed)
        self._constant = self._redundant.fixed.union(origins.compiled.constants)
        self._into: dict[str, list[Node]] = {}
        for node in origins.compiled.nodes:
            if not origins.is_inserted(node):
                for item in origins.of(node):
                    self._into.setdefault(item.name, []).append(node)
        self._takes: dict[str, list[Node]] = {}
        for node in reversed(self._graph.nodes):
            users = [user for name in node.outputs for user in self._graph.consumers.get(name, ())]
            taken = {item.name: item for user in users for item in self._takes[user.name]}  # once, by however many ways
            self._takes[node.name] = self._into.get(node.name) or list(taken.values())
        self.found = tuple(map(self._fate, self._graph.nodes))

    def _names_before(self, stop: frozenset[str]) -> frozenset[str]:
        return frozenset(node.name for node in self._graph.cone(self._graph.outputs, stop))

    def _fate(self, node: Node) -> NodeOutcome:
        how, into, note = self._judged(node)
        return NodeOutcome(node.name, node.op, how, tuple(dict.fromkeys(item.name for item in into)), note, node.module)

    def _judged(self, node: Node) -> tuple[OutcomeKind, Iterable[Node], str]:
        if into := self._into.get(node.name):
            alone = [item for item in into if len(self._origins.of(item)) == 1]
            return ("survives", alone, "") if alone else ("fused", into, "")
        if node.name not in self._needed:
            return "removed", (), "dead: no result depends on it"
        if self._constant.issuperset(node.outputs):
            return "folded", self._takes[node.name], ""
        if node.name not in self._live:
            return "removed", (), "dead: its shape alone is read, and known"
        return "removed", (), self._why(node)

    def _why(self, node: Node) -> str:
        if node.name in self._redundant.unchanged:
            return f"no-op: it hands on {self._redundant.unchanged[node.name]}"
        if node.name in self._redundant.again:
            return f"duplicate: {self._redundant.again[node.name].name} computes the same"
        return "unused: what reads it was replaced"
