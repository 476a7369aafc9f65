"""Determine the outcome of each exported node in the compiled graph: survives, fused, folded or removed."""

from collections.abc import Iterable

from filch.export import Node

from ..provenance._provenance import NodeProvenance
from ..results._rows import NodeOutcome, OutcomeKind


def node_outcomes(provenance: NodeProvenance) -> tuple[NodeOutcome, ...]:
    """Return the outcome of every exported node, in order."""
    return _Outcomes(provenance).outcomes


class _Outcomes:
    """The outcomes of all exported nodes, from what each compiled node computes."""

    def __init__(self, provenance: NodeProvenance) -> None:
        self._provenance = provenance
        self._redundant = provenance.redundant
        self._graph = provenance.exported
        self._used = self._output_ancestors(stop=frozenset())
        self._used_at_runtime = self._output_ancestors(stop=self._redundant.input_independent)  # not by constants
        self._constant = self._redundant.input_independent.union(provenance.compiled.constants)
        self._computed_by: dict[str, list[Node]] = {}
        for node in provenance.compiled.nodes:
            if not provenance.is_inserted(node):
                for item in provenance.of(node):
                    self._computed_by.setdefault(item.name, []).append(node)
        # For nodes that no compiled node computes: the compiled nodes of their nearest consumers that have some.
        self._compiled_consumers: dict[str, list[Node]] = {}
        for node in reversed(self._graph.nodes):
            users = [user for name in node.outputs for user in self._graph.consumers.get(name, ())]
            nodes = {item.name: item for user in users for item in self._compiled_consumers[user.name]}
            self._compiled_consumers[node.name] = self._computed_by.get(node.name) or list(nodes.values())
        self.outcomes = tuple(map(self._outcome, self._graph.nodes))

    def _output_ancestors(self, stop: frozenset[str]) -> frozenset[str]:
        """Return the names of the nodes that the outputs depend on, without those behind the values in `stop`."""
        return frozenset(node.name for node in self._graph.cone(self._graph.outputs, stop))

    def _outcome(self, node: Node) -> NodeOutcome:
        """Return the outcome of an exported node."""
        kind, compiled_nodes, note = self._classify(node)
        into = tuple(dict.fromkeys(item.name for item in compiled_nodes))
        return NodeOutcome(node.name, node.op, kind, into, note, node.module)

    def _classify(self, node: Node) -> tuple[OutcomeKind, Iterable[Node], str]:
        """Return the kind of outcome, the compiled nodes that the node is part of, and why it was removed."""
        if compiled_nodes := self._computed_by.get(node.name):
            unfused = [item for item in compiled_nodes if len(self._provenance.of(item)) == 1]
            return ("survives", unfused, "") if unfused else ("fused", compiled_nodes, "")
        if node.name not in self._used:
            return "removed", (), "dead: no output depends on it"
        if self._constant.issuperset(node.outputs):
            return "folded", self._compiled_consumers[node.name], ""
        if node.name not in self._used_at_runtime:
            return "removed", (), "dead: only its shape is read, which is static"
        return "removed", (), self._removal_reason(node)

    def _removal_reason(self, node: Node) -> str:
        """Return why the compiled graph does not need a node whose value an output depends on."""
        if node.name in self._redundant.no_ops:
            return f"no-op: its output equals {self._redundant.no_ops[node.name]}"
        if node.name in self._redundant.duplicates:
            return f"duplicate: {self._redundant.duplicates[node.name].name} computes the same"
        return "unused: its consumers were replaced"
