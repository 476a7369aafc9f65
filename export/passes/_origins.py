"""Which nodes of the graph before a pass each node after it computes."""

from dataclasses import replace

from ..graph._graph import Graph
from ..graph._nodes import Node


def with_origins(graph: Graph, before: Graph) -> Graph:
    """The graph with `before` as the one that it was made of, and its nodes' origins there.

    Passes keep the names of the values that they keep. So a node computes what stands before between its results and
    the nearest values that are still there; a node whose results are new ones is told by its own name.
    """
    stops = (graph.known & before.known) | before.constant_values
    names = frozenset(node.name for node in before.nodes)
    nodes = tuple(replace(node, origins=_origins(node, before, stops, names)) for node in graph.nodes)
    return replace(graph, nodes=nodes, source_graph=before)


def _origins(node: Node, before: Graph, stops: frozenset[str], names: frozenset[str]) -> tuple[str, ...]:
    kept = [name for name in node.outputs if name in before.producer]
    if kept:
        return tuple(item.name for item in before.cone(kept, stops))
    return (node.name,) if node.name in names else ()
