"""Which exported nodes a compiled node computes."""

from functools import cache

from filch.export import Graph, Node
from filch.export.backends import Compiled


class Origins:
    """Compares a compiled graph with the graph that it was made of.

    Optimisers keep the names of the values that they keep. So the exported nodes between a surviving value and the
    nearest surviving values before it are what the compiled nodes between the same values compute.
    """

    def __init__(self, exported: Graph, made: Compiled) -> None:
        self._exported = exported
        self._compiled = made.graph
        self._said = made.origins
        self._same = made.same
        self._by_name = {node.name: node for node in exported.nodes}
        self._surviving = frozenset(map(self._known_as, made.graph.known)) & exported.known
        self._cone = cache(lambda name: exported.cone([name], self._surviving))

    def of(self, node: Node) -> tuple[Node, ...]:
        """The exported nodes that `node` computes, alone or with its neighbours; constants are not counted."""
        if node.name in self._said:
            return tuple(self._by_name[name] for name in self._said[node.name])
        found: dict[str, Node] = {}
        for name in node.outputs:
            for end in [name] if self._survives(name) else self._ends(name):
                found |= {item.name: item for item in self._cone(self._known_as(end))}
        return tuple(item for item in found.values() if not set(item.outputs) <= self._exported.fixed)

    def _known_as(self, name: str) -> str:
        return self._same.get(name, name)

    def _survives(self, name: str) -> bool:
        return self._known_as(name) in self._surviving

    def inside(self, name: str) -> str:
        """For a value that the exported graph does not have: the compiled node at whose value it can be judged."""
        if self._survives(name):
            return ""
        ends = self._ends(name)
        nodes = ", ".join(dict.fromkeys(self._compiled.producer[end].name for end in ends))
        return f"the exported graph has no such value: see {nodes}" if nodes else "the exported graph has no such value"

    def _ends(self, name: str) -> list[str]:
        """The nearest surviving values that depend on a value of the compiled graph."""
        ends, seen, pending = [], {name}, [name]
        while pending:
            for user in self._compiled.consumers.get(pending.pop(), ()):
                for output in user.outputs:
                    if self._survives(output):
                        ends.append(output)
                    elif output and output not in seen:
                        seen.add(output)
                        pending.append(output)
        return list(dict.fromkeys(ends))
