"""Pair values that are read in the same place by the same operator."""

from collections.abc import Iterator

from filch.export import Node

from ._paired_value import PairedValue
from ._pairing import Pairing
from ._quantized import PRODUCT


def pair_by_readers(pairing: Pairing) -> None:
    """Pair what a node reads with what the node of the reference reads that computes its value, if that is wrong.

    Args:
        pairing: the pairs that were found so far; more are added.
    """
    for node in reversed(pairing.actual.graph.nodes):
        for name in node.outputs:
            other = pairing.reference.graph.producer.get(pairing.source(name) or "")
            if other is None or not _is_like(node, other):
                continue
            harmless = pairing.settled if pairing.have_same_weight(node, other) else pairing.harmless
            if name not in harmless:
                for read, source in [*_in_same_places(pairing, node, other)]:
                    if read not in harmless and pairing.have_same_shape(read, source):
                        pairing.add(PairedValue(read, (source,), "operands"))


def _in_same_places(pairing: Pairing, node: Node, other: Node) -> Iterator[tuple[str, str]]:
    """Yield the values that a node reads and that are not paired, with those in their places in the reference."""
    source, actual = pairing.reference.source, pairing.actual
    paired = {source(item) for read in node.reads if (item := pairing.source(read)) is not None}
    reads = [name for name in node.reads if pairing.source(name) is None]
    others = [name for name in other.reads if source(name) not in paired]
    if node.op in PRODUCT:
        reads, others = [*node.inputs[:1]], [*other.inputs[:1]]
    elif not node.operator.commutes or len(reads) != len(others):
        reads, others = [*node.reads], [*other.reads]
    for read, name in zip(reads, others, strict=True):
        is_open = read in actual.graph.producer and pairing.source(read) is None and pairing.is_free(name)
        if is_open and (read not in actual.constants or actual.values[read].is_floating_point()):  # shapes may have -1
            yield read, name


def _is_like(node: Node, other: Node) -> bool:
    """Whether two nodes have the same operator and number of operands."""
    return PRODUCT.get(node.op) == other.op or (node.op == other.op and len(node.reads) == len(other.reads))
