"""Which operations are the same in all layers."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from filch.export import Graph, Node
from filch.export.graph._nodes import split_call


def place_of(name: str) -> str:
    """Return a name without the numbers of layers, which is the same in all of them."""
    return re.sub(r"\d+", "#", name)


def code_of(node: Node) -> tuple[str, str | None]:
    """Return the module of an operation, in whichever of its calls, and its line."""
    return split_call(node.module or "")[0], node.source


def same_operations(graph: Graph) -> Mapping[str, Sequence[Node]]:
    """Return the same operations of all layers, or else of all calls of the same code, by the name of each one.

    An operation without another one that is the same has an empty list.
    """
    groups: dict[tuple[object, ...], list[Node]] = {}
    calls: Counter[tuple[object, ...]] = Counter()
    keys: dict[str, tuple[tuple[object, ...], ...]] = {}  # of each node: with its place in a layer, and without
    for node in graph.nodes:
        line = node.op, node.source
        calls[node.module, *line] += 1
        nth = *line, calls[node.module, *line]  # a line may run several times in one call of a module
        keys[node.name] = (place_of(node.module or ""), *nth), nth
        for key in keys[node.name]:
            groups.setdefault(key, []).append(node)
    return {name: next((groups[key] for key in pair if len(groups[key]) > 1), []) for name, pair in keys.items()}
