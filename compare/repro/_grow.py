"""Which nodes a part of a graph needs, and which stand around it."""

from collections.abc import Collection

from filch.export import Graph, Node


def closed(graph: Graph, names: Collection[str], known: Collection[str]) -> list[Node] | None:
    """The nodes of these names, and those that make what they read and nothing else tells, in the order of the graph.

    What does not depend on the inputs goes with what reads it: optimisers fuse what stands beside constants.

    Returns:
        the nodes; None if they need something that nothing tells.
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
    """The values that some nodes make for others, and those that nobody reads.

    Not what does not depend on the inputs, but of the nodes that were asked for by name.
    """
    inside = {node.name for node in nodes}
    chosen = [node for node in nodes if node.name in asked or not graph.constant_values.issuperset(node.outputs)]
    made = [name for node in chosen for name in node.outputs if name]
    users = {name: {user.name for user in graph.consumers.get(name, ())} for name in made}
    return [name for name in made if name in graph.outputs or not users[name] or users[name] - inside]


def grown(graph: Graph, names: Collection[str]) -> frozenset[str]:
    """The nodes of these names, those just before and behind them, and the rest of what they are translations of."""
    found = {*names}
    targets = {node.target for node in graph.nodes if node.name in names and node.target}
    for node in graph.nodes:
        if node.target in targets and not graph.constant_values.issuperset(node.outputs):
            found.add(node.name)
        if node.name in names:
            made = (graph.producer.get(name) for name in node.reads if name not in graph.constant_values)
            found |= {before.name for before in made if before is not None}
            found |= {user.name for name in node.outputs for user in graph.consumers.get(name, ())}
    return frozenset(found)
