"""Which exported nodes a compiled node computes."""

from functools import cache

from filch.export import Graph, Node


class Origins:
    """Compares a compiled graph with the graph that it was made of.

    Optimisers keep the names of the values that they keep. So the exported nodes between a surviving value and the
    nearest surviving values before it are what the compiled nodes between the same values compute.
    """

    def __init__(self, exported: Graph, compiled: Graph) -> None:
        self._exported = exported
        self._compiled = compiled
        self._surviving = frozenset(exported.known & compiled.known)
        self._cone = cache(lambda name: exported.cone([name], self._surviving))

    def of(self, node: Node) -> tuple[Node, ...]:
        """The exported nodes that `node` computes, alone or with its neighbours; constants are not counted."""
        found: dict[str, Node] = {}
        for name in node.outputs:
            for end in [name] if name in self._surviving else self._ends(name):
                found |= {item.name: item for item in self._cone(end)}
        return tuple(item for item in found.values() if not set(item.outputs) <= self._exported.fixed)

    def inside(self, name: str) -> str:
        """For a value that the exported graph does not have: the compiled node at whose value it can be judged."""
        if name in self._exported.known:
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
                    if output in self._surviving:
                        ends.append(output)
                    elif output and output not in seen:
                        seen.add(output)
                        pending.append(output)
        return list(dict.fromkeys(ends))
