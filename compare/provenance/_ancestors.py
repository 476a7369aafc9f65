"""What values of a graph are made of."""

import heapq
from collections.abc import Iterable

from filch.export import Graph, Node


class Ancestors:
    """The nodes that some values depend on.

    They are found from the last to the first, and only as far as they are asked for: two nodes that are compared mostly
    stand close to each other in a large graph.

    Args:
        graph: the graph.
        names: names of its values.
    """

    def __init__(self, graph: Graph, names: Iterable[str]) -> None:
        self._graph = graph
        self._found: set[int] = set()
        self._pending: list[int] = []  # negative places: the last node comes first
        self._add(names)

    def __contains__(self, node: Node) -> bool:
        place = self._graph.places[node.name]
        while place not in self._found and self._pending and -self._pending[0] > place:
            self._add(self._graph.nodes[-heapq.heappop(self._pending)].reads)
        return place in self._found

    def _add(self, names: Iterable[str]) -> None:
        for name in names:
            node = self._graph.producer.get(name)
            if node is not None and (place := self._graph.places[node.name]) not in self._found:
                self._found.add(place)
                heapq.heappush(self._pending, -place)
