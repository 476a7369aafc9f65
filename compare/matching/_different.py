"""Match the values that have other numbers in the second program, and must be wrong if its outputs are."""

from filch.export import Node

from ._matches import Matches
from ._numbers import ProgramNumbers
from ._operations import ReferenceOperations
from ._quantized import PRODUCT


class DifferentValues:
    """Match values with other numbers: by what they are computed from, or by what is computed from them.

    Args:
        matches: the values that were found so far; more are added.
        operations: the nodes of the reference.
        numbers: the values of the reference.
        reshaped: whether values in another shape count.
    """

    def __init__(
        self, matches: Matches, operations: ReferenceOperations, numbers: ProgramNumbers, *, reshaped: bool
    ) -> None:
        self._matches, self._operations, self._numbers, self._reshaped = matches, operations, numbers, reshaped
        self._actual, self._expected = matches.actual, matches.expected

    def align(self) -> None:
        """Align the values that must be wrong if the outputs are."""
        for align in (self._align_forwards, self._align_backwards, self._align_forwards):
            align()
        for _, _, name in self._matches.unaligned():
            if parts := self._numbers.parts(self._actual.values[name]):
                self._matches.join(name, parts, "numbers")
        for _, _, name in self._matches.unaligned():  # what replaces a wrong value by an earlier one has its numbers
            if (nearest := self._numbers.nearest(self._actual.values[name])) is not None:
                self._matches.add(name, nearest, "numbers")

    def _align_forwards(self) -> None:
        """Align values by what they are computed from."""
        matches = self._matches
        for node, index, name in matches.unaligned():
            if (found := self._same_node(node, index, name)) is not None:
                matches.add(name, found, "operands")
            elif name not in matches.harmless and (parts := self._operations.parts(node, name)):
                matches.join(name, parts, "operands")
            elif name not in matches.harmless and (found := self._counterpart(node, index, name)) is not None:
                matches.add(name, found, "name" if found == name else "operands")
            elif name not in matches.settled and not index and (found := self._by_weight(node, name)) is not None:
                matches.claim(name, found, "operands")

    def _align_backwards(self) -> None:
        """Align what a node reads with what the node reads that computes its value in the reference."""
        matches = self._matches
        for node in reversed(self._actual.graph.nodes):
            for name in node.outputs:
                other = self._expected.graph.producer.get(matches.names.get(name, ""))
                if other is None or not _is_like(node, other):
                    continue
                harmless = matches.settled if matches.have_same_weight(node, other) else matches.harmless
                if name not in harmless:
                    for read, found in self._paired_reads(node, other):
                        if read not in harmless and matches.have_same_shape(read, found):
                            matches.claim(read, found, "operands")

    def _paired_reads(self, node: Node, other: Node) -> list[tuple[str, str]]:
        """Return the values that a node reads and that are not aligned, with those in their places in the reference."""
        names, source = self._matches.names, self._expected.source
        aligned = {source(names[name]) for name in node.reads if name in names}
        reads = [name for name in node.reads if name not in names]
        found = [name for name in other.reads if source(name) not in aligned]
        if node.op in PRODUCT:
            reads, found = [*node.inputs[:1]], [*other.inputs[:1]]
        elif not node.operator.commutes or len(reads) != len(found):
            reads, found = [*node.reads], [*other.reads]
        pairs = zip(reads, found, strict=True)
        return [
            (read, name)
            for read, name in pairs
            if read in self._actual.graph.producer and read not in names and self._matches.is_free(name)
            if read not in self._actual.constants or self._actual.values[read].is_floating_point()  # shapes may have -1
        ]

    def _same_node(self, node: Node, index: int, name: str) -> str | None:
        """Return the output of the same node: operator, operands, and name or attributes are the same."""
        for item in self._operations.candidates(node):
            found = item.outputs[index] if index < len(item.outputs) else ""
            if not self._matches.have_same_kind(name, found):
                continue
            exact = self._actual.attributes(node) == self._expected.attributes(item) and self._reads_equal(node, item)
            if found and (found == name or exact):
                return found
        return None

    def _reads_equal(self, node: Node, other: Node) -> bool:
        """Whether the constants that two nodes read are equal."""
        sides = ((self._actual, node), (self._expected, other))
        first, second = ([side.constants.get(name) for name in item.reads] for side, item in sides)
        return first == second

    def _counterpart(self, node: Node, index: int, name: str) -> str | None:
        """Return the value that `name` should have been: of the same operator and operands, or of the same name."""
        matches = self._matches
        if matches.names_are_kept and name in self._expected.graph.producer:
            return name
        candidates = [item.outputs[index] for item in self._operations.candidates(node) if index < len(item.outputs)]
        candidates = [item for item in candidates if matches.is_free(item) and matches.have_same_kind(name, item)]
        if candidates:
            chosen = name if name in candidates else candidates[0]
            matches.claimed.add(chosen)
            return chosen
        return name if matches.is_free(name) and self._computed_from_same(name) else None

    def _computed_from_same(self, name: str) -> bool:
        """Whether what a value is computed from in `actual` is all that the value of this name depends on."""
        graph, names = self._actual.graph, self._matches.names
        aligned = [item for item in names if item != name]
        reads = {read for node in graph.cone([name], {*aligned}) for read in node.reads}
        sources = {names[read] for read in reads if read in names}
        cone = self._expected.graph.cone([name], sources)
        inputs = {*self._expected.graph.inputs}
        return all(read in sources for node in cone for read in node.reads if read in inputs)

    def _by_weight(self, node: Node, name: str) -> str | None:
        """Return the value that is computed from the same weight, or nearly the same one, unless another one is it."""
        matches, values = self._matches, self._expected.values
        readers = self._operations.readers_of_weight(node) or self._operations.readers_of_similar_weight(node)
        outputs = [item.outputs[0] for item in readers]
        size = self._actual.values[name].numel()
        found = [item for item in outputs if matches.is_free(item) and item in values and values[item].numel() == size]
        if not found or not (self._reshaped or matches.have_same_shape(name, found[0])):
            return None
        if not matches.have_same_shape(name, found[0]):
            matches.shapes[name] = self._actual.values[name].shape
        return found[0]


def _is_like(node: Node, other: Node) -> bool:
    """Whether two nodes have the same operator and number of operands."""
    return PRODUCT.get(node.op) == other.op or (node.op == other.op and len(node.reads) == len(other.reads))
