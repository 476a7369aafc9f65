"""Find the nodes that compute something wrong from right values, and tell which values are computed from wrong ones.

An error is inherited if something that its node reads is wrong. If nothing is, the node introduces it.

Of the values of a graph, some are judged: they are right or wrong. Others, such as steps that only one of two
implementations takes, can't be judged by themselves: what is wrong behind them may be so because of any of them. A
value that was replaced by the reference's numbers counts as right for the nodes that read it.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from types import MappingProxyType

from filch.export import Graph, Node


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


def inherited(nodes: Iterable[Node], wrong: Collection[str], right: Container[str] = ()) -> frozenset[str]:
    """Return the names of the values that nodes compute from wrong ones, right or wrong themselves.

    Args:
        nodes: the nodes, in the order of execution.
        wrong: the values that are wrong, whether or not the nodes compute them.
        right: the values that are right. Between these and the wrong ones, values inherit what their nodes read.
    """

    def start_of(name: str, inherited_start: int | None) -> int | None:
        return 0 if name in wrong else None if name in right else inherited_start

    starts = inherited_starts(nodes, start_of, dict.fromkeys(wrong, 0))
    return frozenset(name for name, start in starts.items() if start is not None)


def inherited_starts(
    nodes: Iterable[Node],
    start_of: Callable[[str, int | None], int | None],
    given: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int | None]:
    """Return from which position on something is wrong that the node of each value reads; None if nothing is.

    Args:
        nodes: the nodes, in the order of execution.
        start_of: returns from which position on a value itself is wrong, None if it is right, by its name and the
            position from which on something is wrong that its node reads.
        given: the positions from which on values are wrong that no node computes, by name.
    """
    starts, found = dict(given), dict[str, int | None]()
    for node in nodes:
        inherited_start = min((starts[name] for name in node.reads if name in starts), default=None)
        for name in node.outputs:
            found[name] = inherited_start
            if (start := start_of(name, inherited_start)) is not None:
                starts[name] = start
    return found
