"""Tell which values are computed from wrong ones.

An error is inherited if something that its node reads is wrong. If nothing is, the node introduces it.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from types import MappingProxyType

from filch.export import Node


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
