"""Determine what became of each exported node in the compiled graph."""

from collections.abc import Iterable

from filch.export import Node

from ..provenance._provenance import NodeProvenance
from ..results._rows import NodeOutcome, OutcomeKind


def node_outcomes(provenance: NodeProvenance) -> tuple[NodeOutcome, ...]:
    """Return what became of every exported node, in order."""
    return _Outcomes(provenance).outcomes


class _Outcomes:
    def __init__(self, provenance: NodeProvenance) -> None:
        self._provenance = provenance
        self._redundant = provenance.redundant
        self._graph = provenance.exported
        self._needed = self._ancestor_names(frozenset())
        self._live = self._ancestor_names(self._redundant.input_independent)
        self._constant = self._redundant.input_independent.union(provenance.compiled.constants)
        self._computed_by: dict[str, list[Node]] = {}
        for node in provenance.compiled.nodes:
            if not provenance.is_inserted(node):
                for item in provenance.of(node):
                    self._computed_by.setdefault(item.name, []).append(node)
        self._next_compiled: dict[str, list[Node]] = {}
        for node in reversed(self._graph.nodes):
            users = [user for name in node.outputs for user in self._graph.consumers.get(name, ())]
            nodes = {item.name: item for user in users for item in self._next_compiled[user.name]}  # each node once
            self._next_compiled[node.name] = self._computed_by.get(node.name) or list(nodes.values())
        self.outcomes = tuple(map(self._outcome, self._graph.nodes))

    def _ancestor_names(self, stop: frozenset[str]) -> frozenset[str]:
        return frozenset(node.name for node in self._graph.cone(self._graph.outputs, stop))

    def _outcome(self, node: Node) -> NodeOutcome:
        kind, into, note = self._classify(node)
        names = tuple(dict.fromkeys(item.name for item in into))
        return NodeOutcome(node.name, node.op, kind, names, note, node.module)

    def _classify(self, node: Node) -> tuple[OutcomeKind, Iterable[Node], str]:
        if into := self._computed_by.get(node.name):
            alone = [item for item in into if len(self._provenance.of(item)) == 1]
            return ("survives", alone, "") if alone else ("fused", into, "")
        if node.name not in self._needed:
            return "removed", (), "dead: no output depends on it"
        if self._constant.issuperset(node.outputs):
            return "folded", self._next_compiled[node.name], ""
        if node.name not in self._live:
            return "removed", (), "dead: only its shape is read, which is static"
        return "removed", (), self._removal_reason(node)

    def _removal_reason(self, node: Node) -> str:
        if node.name in self._redundant.no_ops:
            return f"no-op: its output equals {self._redundant.no_ops[node.name]}"
        if node.name in self._redundant.duplicates:
            return f"duplicate: {self._redundant.duplicates[node.name].name} computes the same"
        return "unused: its consumers were replaced"
