"""Find the nodes of the graph before a pass that each node after the pass computes."""

from dataclasses import replace

from ..graph._graph import Graph
from ..graph._nodes import Node


def with_origins(graph: Graph, before: Graph) -> Graph:
    """Return the graph with `before` as its source graph, and with the origins of its nodes.

    Passes keep the names of the values that they keep. So the origins of a node are the nodes of `before` between its
    outputs and the nearest values that exist in both graphs. A node with new outputs is matched by its own name.
    """
    stops = (graph.known & before.known) | before.constant_values
    names = frozenset(node.name for node in before.nodes)
    nodes = tuple(replace(node, origins=_origins(node, before, stops, names)) for node in graph.nodes)
    return replace(graph, nodes=nodes, source_graph=before)


def _origins(node: Node, before: Graph, stops: frozenset[str], names: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the nodes of `before` that a node computes; see `with_origins`."""
    kept = [name for name in node.outputs if name in before.producer]
    if kept:
        return tuple(item.name for item in before.cone(kept, stops))
    return (node.name,) if node.name in names else ()
