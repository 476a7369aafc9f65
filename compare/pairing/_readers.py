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
            reference = pairing.reference.graph.producer.get(pairing.source(name) or "")
            if reference is None or not _is_like(node, reference):
                continue
            harmless = pairing.settled if pairing.have_same_weight(node, reference) else pairing.harmless
            if name not in harmless:
                for read, source in [*_in_same_places(pairing, node, reference)]:
                    if read not in harmless and pairing.have_same_shape(read, source):
                        pairing.add(PairedValue(read, (source,), "operands"))


def _in_same_places(pairing: Pairing, node: Node, reference: Node) -> Iterator[tuple[str, str]]:
    """Yield the values that a node reads and that are not paired, with those in their places in the reference."""
    source, actual = pairing.reference.source, pairing.actual
    paired = {source(item) for read in node.reads if (item := pairing.source(read)) is not None}
    reads = [name for name in node.reads if pairing.source(name) is None]
    reference_reads = [name for name in reference.reads if source(name) not in paired]
    if node.op in PRODUCT:
        reads, reference_reads = [*node.inputs[:1]], [*reference.inputs[:1]]
    elif not node.operator.commutes or len(reads) != len(reference_reads):
        reads, reference_reads = [*node.reads], [*reference.reads]
    for read, name in zip(reads, reference_reads, strict=True):
        is_open = read in actual.graph.producer and pairing.source(read) is None and pairing.is_free(name)
        if is_open and (read not in actual.constants or actual.values[read].is_floating_point()):  # shapes may have -1
            yield read, name


def _is_like(node: Node, reference: Node) -> bool:
    """Whether two nodes have the same operator and number of operands."""
    return PRODUCT.get(node.op) == reference.op or (node.op == reference.op and len(node.reads) == len(reference.reads))
