"""The nodes that a part of a graph needs, and its neighbors."""

from collections.abc import Collection

from filch.export import Graph, Node


def runnable_part(
    graph: Graph, names: Collection[str], known: Collection[str], weights: Collection[str] = ()
) -> tuple[list[Node], tuple[str, ...]] | None:
    """Extend some nodes to a part of the graph that can run alone.

    The producers of inputs that are neither `known` nor `weights` are added, and all producers of constants, since
    optimizers fuse constants into the nodes that read them.

    Args:
        graph: the graph.
        names: the names of the nodes.
        known: the names of the values with a reference.
        weights: the names of weights that are not constants of the graph.

    Returns:
        the nodes in the order of the graph, and the names of the known values that other nodes read, that no node reads
        or that the graph returns (constants only if their nodes are in `names`). None if there is no such value, or the
        nodes need a value that is neither known nor computed.
    """
    inputs, selected = {*known, *weights}, {*names}
    pending = [node for node in graph.nodes if node.name in selected]
    while pending:
        for name in pending.pop().reads:
            node = graph.producer.get(name)
            if node is None:
                if name not in inputs and name not in graph.constants:
                    return None
            elif node.name not in selected and (name in graph.constant_values or name not in inputs):
                selected.add(node.name)
                pending.append(node)
    nodes = [node for node in graph.nodes if node.name in selected]

    def is_output(name: str) -> bool:
        users = {user.name for user in graph.consumers.get(name, ())}
        return name in known and bool(name in graph.outputs or not users or users - selected)

    sources = (item for item in nodes if item.name in names or not graph.constant_values.issuperset(item.outputs))
    outputs = tuple(name for item in sources for name in item.outputs if is_output(name))
    return (nodes, outputs) if outputs else None


def with_neighbors(graph: Graph, names: Collection[str]) -> frozenset[str]:
    """Return the names of nodes, of their direct neighbors, and of the other nodes of the same torch operations."""
    selected = {*names}
    # An ONNX node's target is the torch operation that it was translated from.
    targets = {node.target for node in graph.nodes if node.name in names and node.target}
    for node in graph.nodes:
        if node.target in targets and not graph.constant_values.issuperset(node.outputs):
            selected.add(node.name)
        if node.name in names:
            producers = (graph.producer.get(name) for name in node.reads if name not in graph.constant_values)
            selected |= {producer.name for producer in producers if producer is not None}
            selected |= {user.name for name in node.outputs for user in graph.consumers.get(name, ())}
    return frozenset(selected)
