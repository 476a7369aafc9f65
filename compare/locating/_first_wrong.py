"""Find the nodes that compute something wrong from right values.

Of the values of a graph, some are judged: they are right or wrong. Others, such as steps that only one of two
implementations takes, can't be judged by themselves: what is wrong behind them may be so because of any of them. A
value that was replaced by the reference's numbers counts as right for the nodes that read it.
"""

from collections.abc import Collection, Iterable

from filch.export import Graph, Node

from ._inherited import inherited


def first_wrong(graph: Graph, wrong: Iterable[str], *, judged: Collection[str], right: Collection[str]) -> list[Node]:
    """Return the nodes that introduce the errors of wrong values, in order.

    A node does if it computes a judged value that is not right and on which a wrong one depends, and inherits nothing
    from another such value.

    Args:
        graph: the graph.
        wrong: the values whose errors are to be explained; one of them may also be right for those who read it.
        judged: the values that can be judged.
        right: those that are right, and those that were replaced by right ones for the nodes that read them.
    """
    reached = leading_to(graph, wrong, right, with_constants=False)
    differing = reached.intersection(judged)
    inherits = inherited(graph.nodes, differing.difference(right), {*right, *judged} - differing)
    introduced = differing - inherits
    return [node for node in graph.nodes if not introduced.isdisjoint(node.outputs)]


def leading_to(
    graph: Graph, names: Iterable[str], right: Collection[str], *, with_constants: bool = True
) -> frozenset[str]:
    """Return values, and all that they are computed from; the search backwards stops before right values.

    Args:
        graph: the graph.
        names: the values to start from.
        right: the values at which the search stops; they are not returned.
        with_constants: whether to follow constants that a node reads beside values that depend on inputs and are not
            right; constants are followed in any case if the node reads nothing else that is not right.
    """
    found = {*names}
    for node in reversed(graph.nodes):
        if not found.isdisjoint(node.outputs):
            reads = [name for name in node.reads if name not in right]
            varying = reads if with_constants else [name for name in reads if name not in graph.constant_values]
            found.update(varying or reads)
    return frozenset(found)
