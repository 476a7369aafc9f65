"""The nodes that a part of a graph needs, and its neighbours."""

from collections.abc import Collection

from filch.export import Graph, Node


def closed(graph: Graph, names: Collection[str], known: Collection[str]) -> list[Node] | None:
    """Return the nodes of these names and the producers of inputs that are not `known`, in the order of the graph.

    Producers of constants are included in any case, since optimisers fuse constants into the nodes that read them.

    Returns:
        the nodes; None if they need a value that is neither known nor computed.
    """
    wanted = {*names}
    pending = [node for node in graph.nodes if node.name in wanted]
    while pending:
        for name in pending.pop().reads:
            node = graph.producer.get(name)
            if node is None:
                if name not in known and name not in graph.constants:
                    return None
            elif node.name not in wanted and (name in graph.constant_values or name not in known):
                wanted.add(node.name)
                pending.append(node)
    return [node for node in graph.nodes if node.name in wanted]


def ends(graph: Graph, nodes: Collection[Node], asked: Collection[str]) -> list[str]:
    """Return the outputs of a part: values read by other nodes, by none, or that are graph outputs.

    Constants are excluded unless their nodes are in `asked`.
    """
    inside = {node.name for node in nodes}
    chosen = [node for node in nodes if node.name in asked or not graph.constant_values.issuperset(node.outputs)]
    made = [name for node in chosen for name in node.outputs if name]
    users = {name: {user.name for user in graph.consumers.get(name, ())} for name in made}
    return [name for name in made if name in graph.outputs or not users[name] or users[name] - inside]


def grown(graph: Graph, names: Collection[str]) -> frozenset[str]:
    """Return the nodes of these names, their direct neighbours, and the other nodes of the same torch operations."""
    grown_names = {*names}
    targets = {node.target for node in graph.nodes if node.name in names and node.target}
    for node in graph.nodes:
        if node.target in targets and not graph.constant_values.issuperset(node.outputs):
            grown_names.add(node.name)
        if node.name in names:
            producers = (graph.producer.get(name) for name in node.reads if name not in graph.constant_values)
            grown_names |= {producer.name for producer in producers if producer is not None}
            grown_names |= {user.name for name in node.outputs for user in graph.consumers.get(name, ())}
    return frozenset(grown_names)
