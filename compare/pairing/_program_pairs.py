"""Find the values of one ONNX program that are those of another one.

Ways to find them are tried in order. At first only values with similar numbers are paired: those of the same name, then
for each that is left the value that the same operator computes from the same values and constants, that is computed
from the same weight, or that has nearly the same numbers. A value may also be several values of the reference, joined
along the last dimension: one product computes queries, keys and values, for example. A product with a quantized weight
counts as one with the weight that it stands for.

The values that are left have other numbers in the two programs. Each is either wrong, or not a value of the reference,
as in a graph of other operators. It is taken for wrong, and paired, only if an output depends on it other than through
values that were found to be similar (else it is harmless), or if its operator, what it reads and its name or attributes
are the same.

What is computed from a wrong value is similar to nothing. So the nodes of the program run once more, each on the values
of the reference as far as they are known, and what they compute then is paired likewise.

At last, what a node reshapes has the numbers of its result, and the result those of what it reshapes: runtimes reshape
the operands of a matrix multiplication, for example.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from filch.export import Node

from ..metrics._metrics import compare_tensors
from ._names import SameName
from ._numbers import SameNumbers
from ._observed import Observed
from ._operands import SameOperands
from ._paired_value import PairedValue, Pairs
from ._pairing import ComputedValue, Pairing, Way
from ._quantized import GATHER, PRODUCT
from ._weights import SameWeight

Rerun = Callable[[Callable[[str], torch.Tensor | None]], Mapping[str, torch.Tensor]]


def pair_values(
    actual: Observed,
    reference: Observed,
    given: Mapping[str, str],
    *,
    reshaped: bool = False,
    rerun: Rerun | None = None,
) -> Pairs:
    """Return the values of `actual` that are those of `reference`, from a run of each on the same inputs.

    Args:
        actual: the program to judge.
        reference: the reference.
        given: the inputs and outputs, by their names in `actual`.
        reshaped: also pair values of another shape, which is that of this run.
        rerun: runs the nodes of `actual`, each on what a function returns for the values that it reads; None leaves out
            the values that are computed from wrong ones.
    """
    values = {**actual.values}  # of the last run
    pairs = {name: PairedValue(name, (source,), "given") for name, source in given.items()}
    ways = _Ways(Pairing(replace(actual, values=values), reference, pairs, reshaped))
    pairing = ways.pairing
    _pair_constants(pairing)
    guessed = ways.pair_all()
    while rerun is not None and _is_cut_off(pairing):
        count = len(pairing.pairs)
        values.update(rerun(pairing.references.get))
        for name in guessed:  # their numbers differed; now they may have those of others
            if ways.numbers.find(values[name]) not in {None, pairing.source(name)}:
                pairing.forget(name)
        guessed = ways.pair_all()
        if len(pairing.pairs) == count:
            break
    if reshaped:
        _pair_reshaped(pairing)
    quantized = [node for node in actual.graph.nodes if node.op in {*PRODUCT, GATHER}]
    same_weights = frozenset(node.name for node in quantized if ways.weights.has_same_numbers(node))
    return Pairs(pairing.pairs, same_weights)


class _Ways:
    """The ways to find the values of the reference, in order."""

    def __init__(self, pairing: Pairing) -> None:
        self.pairing = pairing
        operands, self.weights = SameOperands(pairing), SameWeight(pairing)
        self.numbers = SameNumbers(pairing, operands)
        self._names = SameName(pairing, self.numbers)
        self._similar = operands.similar, self.weights.similar, self.numbers.similar
        self._wrong = (
            operands.exact,
            operands.joined,
            self._names.kept,
            operands.wrong,
            self._names.with_same_origin,
            self.weights.wrong,
        )

    def pair_all(self) -> Collection[str]:
        """Pair the values that depend on the inputs; return those that were paired although their numbers differ."""
        self._names.pair_similar()
        for value in self.pairing.unpaired():
            self._add_first((self._names.later,) if self._names.is_kept(value.name) else self._similar, value)
        self.numbers.confirm_by_weight()
        similar = self.pairing.found
        self._pair(self._wrong)
        _pair_by_readers(self.pairing)
        self._pair(self._wrong)
        self._pair([self.numbers.joined])
        self._pair([self.numbers.whole])
        return self.pairing.found - similar

    def _pair(self, ways: Sequence[Way]) -> None:
        """Pair each value that is left in the first way that finds one of the reference."""
        for value in self.pairing.unpaired():
            self._add_first(ways, value)

    def _add_first(self, ways: Sequence[Way], value: ComputedValue) -> None:
        """Pair a value in the first way that finds one of the reference, if one does."""
        pair = next((found for way in ways if (found := way(value)) is not None), None)
        if pair is not None:
            self.pairing.add(pair)


def _pair_by_readers(pairing: Pairing) -> None:
    """Pair what a node reads with what the node of the reference reads that computes its value, if that is wrong.

    Nodes are visited from the last one, so that what is paired here leads to what was read before it.

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
    """Yield the values that a node reads and that are not paired, with those in their places in the reference.

    Of a commutative operator, they correspond in their order among those that are not paired.
    """
    source, actual = pairing.reference.source, pairing.actual
    reads, reference_reads = [*node.reads], [*reference.reads]
    if node.op in PRODUCT:  # a quantized weight is several operands
        reads, reference_reads = [*node.inputs[:1]], [*reference.inputs[:1]]
    elif node.operator.commutes:
        paired = {source(item) for read in reads if (item := pairing.source(read)) is not None}
        unpaired = [name for name in reads if pairing.source(name) is None]
        reference_unpaired = [name for name in reference_reads if source(name) not in paired]
        if len(unpaired) == len(reference_unpaired):
            reads, reference_reads = unpaired, reference_unpaired
    for read, name in zip(reads, reference_reads, strict=True):
        is_open = read in actual.graph.producer and pairing.source(read) is None and pairing.is_free(name)
        if is_open and (read not in actual.constants or actual.values[read].is_floating_point()):  # shapes may have -1
            yield read, name


def _is_like(node: Node, reference: Node) -> bool:
    """Whether two nodes have the same operator and number of operands."""
    return PRODUCT.get(node.op) == reference.op or (node.op == reference.op and len(node.reads) == len(reference.reads))


def _pair_constants(pairing: Pairing) -> None:
    """Pair values that do not depend on the inputs: with an equal one, else with that of the same name."""
    constants = pairing.reference.constants
    by_content = {content: name for name, content in constants.items()}
    for name, content in pairing.actual.constants.items():
        if name in pairing.actual.graph.producer:
            is_same = constants.get(name) == content
            source = name if is_same else by_content.get(content, name)
            if source in constants:
                pairing.add(PairedValue(name, (source,), "name"))


def _is_cut_off(pairing: Pairing) -> bool:
    """Whether values are left to pair, and a paired value is wrong: what is computed from it is similar to nothing."""
    if next(pairing.unpaired(), None) is None:
        return False
    references = pairing.references.items()
    return any(not compare_tensors(pairing.actual.tensor(name), tensor).close for name, tensor in references)


def _pair_reshaped(pairing: Pairing) -> None:
    """Pair values that have another shape than their source, by the values that they are reshaped to or from.

    What a node reshapes has the source of the result, if that has the shape of the source: the other program computes
    it in this shape at once. A result has the source of what is reshaped if its numbers are similar to some of the
    other program (`harmless`); one that must be wrong is left for ways that judge it. The former from the last node,
    the latter from the first one, as several nodes may reshape one after the other.
    """
    harmless, graph = pairing.harmless, pairing.actual.graph
    nodes = [node for node in graph.nodes if node.operator.movement == "reshape"]
    for node in reversed(nodes):
        is_computed = node.inputs[0] in graph.producer
        if is_computed and pairing.have_same_shape(node.outputs[0], pairing.source(node.outputs[0])):
            _pair_like(pairing, node.inputs[0], node.outputs[0])
    for node in nodes:
        if node.outputs[0] in harmless:
            _pair_like(pairing, node.outputs[0], node.inputs[0])


def _pair_like(pairing: Pairing, name: str, same_numbers: str) -> None:
    """Pair a value, if it is computed and not paired, with the source of another one that has the same numbers."""
    tensor, pair = pairing.actual.values.get(name), pairing.pairs.get(same_numbers)
    if tensor is not None and name not in pairing.pairs and pair is not None and pair.source is not None:
        pairing.pairs[name] = replace(pair, value=name, shape=tensor.shape)
