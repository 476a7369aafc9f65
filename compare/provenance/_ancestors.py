"""The ancestors of values in a graph."""

import heapq
from collections.abc import Iterable

from filch.export import Graph, Node


class Ancestors:
    """The nodes that some values depend on.

    The search runs backwards through the graph and stops as soon as a query is answered: nodes that are queried are
    mostly close to the values.

    Args:
        graph: the graph.
        names: the names of its values.
    """

    def __init__(self, graph: Graph, names: Iterable[str]) -> None:
        self._graph = graph
        self._found: set[int] = set()
        self._pending: list[int] = []  # a heap of negative positions: the last node comes first
        self._add(names)

    def __contains__(self, node: Node) -> bool:
        place = self._graph.node_indices[node.name]
        while place not in self._found and self._pending and -self._pending[0] > place:
            self._add(self._graph.nodes[-heapq.heappop(self._pending)].reads)
        return place in self._found

    def _add(self, names: Iterable[str]) -> None:
        for name in names:
            node = self._graph.producer.get(name)
            if node is not None and (place := self._graph.node_indices[node.name]) not in self._found:
                self._found.add(place)
                heapq.heappush(self._pending, -place)
