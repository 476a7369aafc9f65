"""Determine how many numbers an operator sums for each output element."""

from collections.abc import Mapping
from types import MappingProxyType

from filch.export import Graph, Node
from filch.export.operators._operator import Terms

ObservedShapes = Mapping[str, tuple[int, ...]]
TF32_UNIT = 2.0**-11  # half a unit in the last place, relative: TF32 has 10 mantissa bits, like float16


def reduction_length(node: Node, graph: Graph, observed: ObservedShapes = MappingProxyType({})) -> int:
    """Return the length of the longest sum in a node's operator; 1 if there is none or shapes are unknown.

    Args:
        node: a node of an exported graph or of a torch graph.
        graph: the graph.
        observed: the shapes in a run of values for which the graph declares none, by name.
    """
    return _length(node.operator.terms, node, graph, observed)


def running_length(node: Node, graph: Graph, observed: ObservedShapes = MappingProxyType({})) -> int:
    """Return how many numbers a kernel may add sequentially, as in a reduction along an axis that is not the last.

    The rounding level grows with the square root of this length.
    """
    return _length(node.operator.sequential, node, graph, observed)


def _length(terms: Terms | None, node: Node, graph: Graph, observed: ObservedShapes) -> int:
    """Return the number of terms that `terms` computes from the attributes and shapes of a node, at least 1."""
    if terms is None:
        return 1
    inputs, outputs = ([_shape(graph, name, observed) for name in names] for names in (node.inputs, node.outputs[:1]))
    try:
        return max(1, int(terms(node.attributes, [*inputs, *outputs])))
    except (IndexError, ValueError, ZeroDivisionError, TypeError):  # an unknown or omitted shape is ()
        return 1


def _shape(graph: Graph, name: str, observed: ObservedShapes) -> tuple[int, ...]:
    """Return the shape that a value has or is declared to have; () if it is not known."""
    if name in observed:
        return observed[name]
    value = graph.values.get(name)
    dims = () if value is None or value.shape is None else value.shape
    return tuple(dim for dim in dims if isinstance(dim, int)) if all(isinstance(dim, int) for dim in dims) else ()
