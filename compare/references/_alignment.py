"""Find the values of one ONNX program that are those of another one.

A value of the second program is the value of the first one that

1. has the same name and similar numbers;
2. is computed by the same operator from the same values and constants, if its numbers are similar;
3. has nearly the same numbers.

The values that are left have other numbers in the two programs. Each is either wrong, or not a value of the first
program, as in a graph of other operators. It is taken for wrong, and compared, only if an output depends on it other
than through values that were found to be similar, or if its operator, what it reads and its name or attributes are
the same. Then it is the value of the first program of the same name, if most names have kept their operators; else
the one that is computed by the same operator from the same values, or that is read in the same place by the same
operator, or that has the same name and is computed from the same values.

At last, what a node reshapes has the numbers of its result, and the result those of what it reshapes: runtimes reshape
the operands of a matrix multiplication, for example.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal

import torch

from filch.export import Graph, Node

from ..metrics._metrics import bytes_of, compare_tensors
from ..metrics._nearest import Nearest
from ..metrics._tolerance import Tolerance

Basis = Literal["name", "operands", "numbers"]
Key = tuple[Hashable, ...]
_SIMILAR = Tolerance(1e-2, 0.1, 0.05)  # unrelated numbers differ by more, and rounding by less
_MOST_NAMES = 0.9  # of the shared names that have to be of the same operator
_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_COMMUTATIVE = frozenset({"Add", "And", "Equal", "Max", "Min", "Mul", "Or", "Sum", "Xor"})


@dataclass(frozen=True, eq=False)
class Observed:
    """A program and the values of one run of it.

    Attributes:
        graph: the graph.
        values: its inputs and the values that its nodes have computed, by name.
        weight: returns a weight by its name.
    """

    graph: Graph
    values: Mapping[str, torch.Tensor]
    weight: Callable[[str], torch.Tensor | None]

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return a value or weight by its name; None if it is not known."""
        return self.values[name] if name in self.values else self.weight(name)

    @cached_property
    def constants(self) -> Mapping[str, Hashable]:
        """What identifies each value that does not depend on the inputs, by its name: dtype, shape and numbers."""
        return {name: self._content(name) for name in self.graph.known & self.graph.constant_values}

    def _content(self, name: str) -> Hashable:
        tensor = self.tensor(name)
        if tensor is None:
            return name
        return tensor.dtype, tensor.shape, hashlib.sha256(bytes_of(tensor).cpu().numpy().tobytes()).digest()

    def source(self, name: str) -> str:
        """Return the value whose numbers a value has, without casts of floating-point numbers and `Identity`."""
        while (node := self.graph.producer.get(name)) is not None and self._only_casts(node):
            name = node.inputs[0]
        return name

    def _only_casts(self, node: Node) -> bool:
        tensors = [self.tensor(name) for name in (*node.inputs, *node.outputs)]
        floats = all(tensor is not None and tensor.is_floating_point() for tensor in tensors)
        return node.op == "Identity" or (node.op == "Cast" and floats)

    def attributes(self, node: Node) -> Mapping[str, object]:
        """Return the attributes of a node that tell it from other ones of the same operator."""
        return {name: value for name, value in node.attributes.items() if name != "to"}


@dataclass(frozen=True)
class ProgramAlignment:
    """The values of a program that are those of another one.

    Attributes:
        names: the name of the other program's value, by the name of the value.
        bases: what shows that they are the same.
        shapes: the shape of each value that has the numbers of the other program's value in another shape, by name.
    """

    names: Mapping[str, str]
    bases: Mapping[str, Basis]
    shapes: Mapping[str, torch.Size]

    def reference(self, name: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the reference of a value, from those of the other program."""
        tensor = values[self.names[name]]
        return tensor.reshape(self.shapes[name]) if name in self.shapes else tensor


def align(
    actual: Observed, expected: Observed, known: Mapping[str, str], *, reshaped: bool = False
) -> ProgramAlignment:
    """Return the values of `actual` that are those of `expected`, from a run of each on the same inputs.

    Args:
        actual: the program to judge.
        expected: the reference.
        known: the inputs and outputs, by their names in `actual`.
        reshaped: also align values in another shape, which is that of this run.
    """
    aligner = _Aligner(actual, expected, dict(known))
    aligner.align_constants()
    aligner.align_similar()
    aligner.align_different()
    if reshaped:
        aligner.align_reshaped()
    bases: dict[str, Basis] = {**dict.fromkeys(aligner.names, "name"), **aligner.bases}
    return ProgramAlignment(aligner.names, bases, aligner.shapes)


@dataclass
class _Aligner:
    """The state of `align`; see there."""

    actual: Observed
    expected: Observed
    names: dict[str, str]
    bases: dict[str, Basis] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)  # the values of `expected` that were found by similar numbers
    shapes: dict[str, torch.Size] = field(default_factory=dict)  # see `ProgramAlignment`

    def __post_init__(self) -> None:
        self._exact: dict[Key, list[Node]] = {}
        self._relaxed: dict[Key, list[Node]] = {}
        for node in self.expected.graph.nodes:
            operands = [self._operand(self.expected, name, name) for name in node.reads]
            self._exact.setdefault(_key(node, operands), []).append(node)
            self._relaxed.setdefault(_key(node, map(_any_constant, operands)), []).append(node)
        self._nearest = cache(self._values_of_kind)

    def align_constants(self) -> None:
        """Align values that do not depend on the inputs: with an equal one, else with that of the same name."""
        by_content = {content: name for name, content in self.expected.constants.items()}
        for name, content in self.actual.constants.items():
            if name in self.actual.graph.producer:
                same = self.expected.constants.get(name) == content
                found = name if same else by_content.get(content, name if name in self.expected.constants else None)
                if found is not None:
                    self._add(name, found, "name")

    def align_similar(self) -> None:
        """Align the values with similar numbers: by name first, as other values may have the same numbers."""
        for name in self.actual.graph.producer:
            found = self.names.get(name, name)
            if found in self.expected.graph.known and name not in self.bases and self._similar(name, found):
                self._claim(name, found, "name")
        for node, index, name in self._unaligned():
            if self._names_are_kept and name in self.expected.graph.producer:
                continue
            if (candidate := self._similar_candidate(node, index, name)) is not None:
                self._claim(name, candidate, "operands")
            elif node.op != "Identity" and (nearest := self._nearest_value(name)) is not None:
                self._claim(name, nearest, "numbers")

    def align_different(self) -> None:
        """Align the values with other numbers that must be wrong if the outputs are."""
        harmless = self._harmless()
        self._align_forwards(harmless)
        self._align_backwards(harmless)
        self._align_forwards(harmless)
        for _, _, name in self._unaligned():  # what replaces a wrong value by an earlier one has the numbers of that
            if (nearest := self._nearest_value(name)) is not None:
                self._add(name, nearest, "numbers")

    def align_reshaped(self) -> None:
        """Align values in another shape: what a node reshapes, and the result unless it may be a wrong one."""
        harmless = self._harmless()
        nodes = [node for node in self.actual.graph.nodes if node.op in _RESHAPES]
        for node in reversed(nodes):
            if node.inputs[0] in self.actual.graph.producer and self._have_same_shape(node.outputs[0]):
                self._add_reshaped(node.inputs[0], node.outputs[0])
        for node in nodes:
            if node.outputs[0] in harmless:
                self._add_reshaped(node.outputs[0], node.inputs[0])

    def _add_reshaped(self, name: str, same_numbers: str) -> None:
        """Align a value with that of another one, which has the same numbers."""
        tensor = self.actual.values.get(name)
        if tensor is not None and name not in self.names and same_numbers in self.names:
            self._add(name, self.names[same_numbers], self.bases.get(same_numbers, "name"))
            self.shapes[name] = tensor.shape

    def _align_forwards(self, harmless: Collection[str]) -> None:
        """Align values by what they are computed from."""
        for node, index, name in self._unaligned():
            if (found := self._same_node(node, index, name)) is not None:
                self._add(name, found, "operands")
            elif name not in harmless and (found := self._counterpart(node, index, name)) is not None:
                self._add(name, found, "name" if found == name else "operands")

    def _align_backwards(self, harmless: Collection[str]) -> None:
        """Align what a node reads with what the node reads that computes its value in `expected`."""
        for node in reversed(self.actual.graph.nodes):
            for name in node.outputs:
                other = self.expected.graph.producer.get(self.names.get(name, ""))
                if other is not None and name not in harmless and _is_like(node, other):
                    for read, found in self._paired_reads(node, other):
                        if read not in harmless and self._have_same_shape(read, found):
                            self._claim(read, found, "operands")

    def _paired_reads(self, node: Node, other: Node) -> list[tuple[str, str]]:
        """Return the values that a node reads and that are not aligned, with those in their places in `expected`."""
        aligned = {self.expected.source(self.names[name]) for name in node.reads if name in self.names}
        reads = [name for name in node.reads if name not in self.names]
        found = [name for name in other.reads if self.expected.source(name) not in aligned]
        if node.op not in _COMMUTATIVE or len(reads) != len(found):
            reads, found = [*node.reads], [*other.reads]
        pairs = zip(reads, found, strict=True)
        return [
            (read, name)
            for read, name in pairs
            if read in self.actual.graph.producer and read not in self.names and self._is_free(name)
        ]

    def _is_free(self, name: str) -> bool:
        """Whether a value of `expected` is computed by a node and not claimed by another value."""
        return name in self.expected.graph.producer and name not in self.claimed

    def _have_same_shape(self, actual: str, expected: str | None = None) -> bool:
        """Whether two values have the same shape; None is the value that `actual` is aligned with."""
        expected = self.names.get(actual, "") if expected is None else expected
        first, second = self.actual.tensor(actual), self.expected.tensor(expected)
        return first is not None and second is not None and first.shape == second.shape

    def _have_same_kind(self, actual: str, expected: str) -> bool:
        """Whether two values are both floating-point numbers or both not: quantized integers are other numbers."""
        first, second = self.actual.tensor(actual), self.expected.tensor(expected)
        if first is None or second is None:
            return False
        return first.is_floating_point() == second.is_floating_point()

    def _claim(self, name: str, found: str, basis: Basis) -> None:
        """Align a value; no other one is aligned with the same value without need."""
        self._add(name, found, basis)
        self.claimed.add(found)

    def _add(self, name: str, found: str, basis: Basis) -> None:
        self.names[name], self.bases[name] = found, basis

    def _unaligned(self) -> Iterator[tuple[Node, int, str]]:
        """Yield each value to align, with its node and its place among the node's outputs, in order."""
        for node in self.actual.graph.nodes:
            for index, name in enumerate(node.outputs):
                if name and name not in self.names and name in self.actual.values:
                    yield node, index, name

    def _operand(self, side: Observed, name: str, aligned: str | None) -> Hashable:
        """Return what identifies a value that a node reads; `aligned` is its name in `expected`."""
        if name in side.constants:
            return "constant", side.constants[name]
        return None if aligned is None else ("value", self.expected.source(aligned))

    def _operands(self, node: Node) -> list[Hashable]:
        names = [name if name in self.names else self.actual.source(name) for name in node.reads]
        return [self._operand(self.actual, name, self.names.get(name)) for name in names]

    def _candidates(self, node: Node) -> list[Node]:
        """Return the nodes of `expected` with the same operator that read the same values, equal constants first."""
        if node.op == "Constant" or (node.op == "Identity" and self._is_other(node.outputs[0])):
            return []  # all constants read the same, and a copy may stand where a value was computed
        operands = self._operands(node)
        if None in operands:
            return []
        exact = self._exact.get(_key(node, operands), [])
        relaxed = self._relaxed.get(_key(node, map(_any_constant, operands)), [])
        return [*exact, *(item for item in relaxed if item not in exact)]

    def _is_other(self, name: str) -> bool:
        """Whether `expected` computes a value of this name and shape, with other numbers."""
        return (
            name in self.expected.graph.producer and self._have_same_shape(name, name) and not self._similar(name, name)
        )

    def _similar_candidate(self, node: Node, index: int, name: str) -> str | None:
        found = (item.outputs[index] for item in self._candidates(node) if index < len(item.outputs))
        return next((item for item in found if item and self._similar(name, item)), None)

    def _similar(self, actual: str, expected: str) -> bool:
        tensors = self.actual.tensor(actual), self.expected.tensor(expected)
        return compare_tensors(*tensors, tolerance=_SIMILAR, lower_precision=True).close

    def _nearest_value(self, name: str) -> str | None:
        tensor = self.actual.values[name]
        nearest = self._nearest(tensor.dtype, tensor.shape)
        return None if nearest is None else nearest.find(tensor)

    def _values_of_kind(self, dtype: torch.dtype, shape: torch.Size) -> Nearest | None:
        names = self.expected.graph.producer.keys() - self.expected.constants.keys()
        tensors = {name: self.expected.values[name] for name in names if name in self.expected.values}
        found = {name: tensor for name, tensor in tensors.items() if (tensor.dtype, tensor.shape) == (dtype, shape)}
        return Nearest(found) if found else None

    def _same_node(self, node: Node, index: int, name: str) -> str | None:
        """Return the output of the same node: operator, operands, and name or attributes are the same."""
        for item in self._candidates(node):
            found = item.outputs[index] if index < len(item.outputs) else ""
            if not self._have_same_kind(name, found):
                continue
            exact = self.actual.attributes(node) == self.expected.attributes(item) and self._reads_equal(node, item)
            if found and (found == name or exact):
                return found
        return None

    def _reads_equal(self, node: Node, other: Node) -> bool:
        """Whether the constants that two nodes read are equal."""
        sides = ((self.actual, node), (self.expected, other))
        first, second = ([side.constants.get(name) for name in item.reads] for side, item in sides)
        return first == second

    def _counterpart(self, node: Node, index: int, name: str) -> str | None:
        """Return the value that `name` should have been: of the same operator and operands, or of the same name."""
        if self._names_are_kept and name in self.expected.graph.producer:
            return name
        candidates = [item.outputs[index] for item in self._candidates(node) if index < len(item.outputs)]
        candidates = [item for item in candidates if self._is_free(item) and self._have_same_kind(name, item)]
        if candidates:
            chosen = name if name in candidates else candidates[0]
            self.claimed.add(chosen)
            return chosen
        return name if self._is_free(name) and self._computed_from_same(name) else None

    @cached_property
    def _names_are_kept(self) -> bool:
        """Whether one program was made from the other: most values of the same name have the same operator."""
        producers = self.expected.graph.producer, self.actual.graph.producer
        shared = (producers[0].keys() & producers[1].keys()) - {*self.actual.graph.outputs}
        same = [name for name in shared if name in self.bases or len({item[name].op for item in producers}) == 1]
        return 2 * len(shared) >= len(producers[1]) and len(same) >= _MOST_NAMES * len(shared)

    def _computed_from_same(self, name: str) -> bool:
        """Whether what a value is computed from in `actual` is all that the value of this name depends on."""
        graph = self.actual.graph
        aligned = [item for item in self.names if item != name]
        reads = {read for node in graph.cone([name], {*aligned}) for read in node.reads}
        sources = {self.names[read] for read in reads if read in self.names}
        cone = self.expected.graph.cone([name], sources)
        inputs = {*self.expected.graph.inputs}
        return all(read in sources for node in cone for read in node.reads if read in inputs)

    def _harmless(self) -> frozenset[str]:
        """Return the values whose numbers do not matter: outputs depend on them only through similar values."""
        graph, outputs = self.actual.graph, {*self.actual.graph.outputs}
        harmless: set[str] = set()
        for node in reversed(graph.nodes):
            for name in node.outputs:
                users = (output for user in graph.consumers.get(name, ()) for output in user.outputs if output)
                if name not in outputs and all(user in self.bases or user in harmless for user in users):
                    harmless.add(name)
        return frozenset(harmless)


def _key(node: Node, operands: Iterable[Hashable]) -> Key:
    listed = [*operands]
    return node.op, len(listed), *(sorted(listed, key=repr) if node.op in _COMMUTATIVE else listed)


def _is_like(node: Node, other: Node) -> bool:
    """Whether two nodes have the same operator and number of operands."""
    return node.op == other.op and len(node.reads) == len(other.reads)


def _any_constant(operand: Hashable) -> Hashable:
    return "constant" if isinstance(operand, tuple) and operand[0] == "constant" else operand
