"""Find the values of one ONNX program that are those of another one.

A value of the second program is the value of the first one that

1. has the same name and similar numbers;
2. is computed by the same operator from the same values and constants, if its numbers are similar;
3. has nearly the same numbers.

The values that are left have other numbers in the two programs. Each is either wrong, or not a value of the first
program, as in a graph of other operators. It is taken for wrong, and compared, only if an output depends on it other
than through values that were found to be similar, or if its operator, what it reads and its name or attributes are
the same. Then it is the value of the first program of the same name, if most names have kept their operators; else
the one that is computed by the same operator from the same values, or from the same weight, or that is read in the same
place by the same operator, or that has the same name and is computed from the same values.

A value may also be several values of the first program, joined along the last dimension: one product computes queries,
keys and values, for example. A product with a quantized weight counts as one with the weight that it stands for.

What is computed from a wrong value is similar to nothing. So the nodes of the second program run once more, each on the
values of the first one as far as they are known, and what they compute then is matched likewise.

At last, what a node reshapes has the numbers of its result, and the result those of what it reshapes: runtimes reshape
the operands of a matrix multiplication, for example.
"""

import hashlib
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal

import torch

from filch.export import Graph, Node

from ..metrics._metrics import bytes_of, compare_tensors
from ..metrics._nearest import Nearest
from ..metrics._tolerance import Tolerance
from ._quantized import PRODUCT, quantized_weight

Basis = Literal["name", "operands", "numbers"]
Key = tuple[Hashable, ...]
Rerun = Callable[[Callable[[str], torch.Tensor | None]], Mapping[str, torch.Tensor]]
_SIMILAR = Tolerance(1e-2, 0.1, 0.05)  # unrelated numbers differ by more, and rounding by less
_MOST_NAMES = 0.9  # of the shared names that have to be of the same operator
_MOST_NUMBERS = 0.5  # of a quantized weight
_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_MOVES = _RESHAPES | {"Slice", "Split"}
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
        return name if tensor is None else _identity(tensor)

    @cached_property
    def weights(self) -> Mapping[str, Hashable]:
        """What identifies the weight that a node reads, a floating-point constant with several numbers, by its name."""
        found = {node.name: self.weight_of(node) for node in self.graph.nodes}
        return {name: _identity(weight) for name, weight in found.items() if weight is not None}

    def weight_of(self, node: Node) -> torch.Tensor | None:
        """Return the weight that a node reads, None if it reads none; a quantized one as what it stands for."""
        quantized = quantized_weight(node, self.tensor)
        if quantized is not None:
            return quantized.numbers
        tensors = (self.tensor(name) for name in node.reads if name in self.constants)
        return next(
            (item for item in tensors if item is not None and item.is_floating_point() and item.numel() > 1), None
        )

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
        joined: the names of the other program's values of which a value consists, along the last dimension, by name.
        same_weights: the names of the nodes with a quantized weight whose numbers the other program's weights have.
    """

    names: Mapping[str, str]
    bases: Mapping[str, Basis]
    shapes: Mapping[str, torch.Size]
    joined: Mapping[str, tuple[str, ...]]
    same_weights: frozenset[str] = frozenset()

    def references(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the references of the values, from those of the other program as far as they are known."""
        found = {name: values[source] for name, source in self.names.items() if source in values}
        found |= {name: found[name].reshape(shape) for name, shape in self.shapes.items() if name in found}
        whole = {name: parts for name, parts in self.joined.items() if all(part in values for part in parts)}
        return found | {name: torch.cat([values[part] for part in parts], -1) for name, parts in whole.items()}


def align(
    actual: Observed,
    expected: Observed,
    known: Mapping[str, str],
    *,
    reshaped: bool = False,
    rerun: Rerun | None = None,
) -> ProgramAlignment:
    """Return the values of `actual` that are those of `expected`, from a run of each on the same inputs.

    Args:
        actual: the program to judge.
        expected: the reference.
        known: the inputs and outputs, by their names in `actual`.
        reshaped: also align values in another shape, which is that of this run.
        rerun: runs the nodes of `actual`, each on what a function returns for the values that it reads; None leaves out
            the values that are computed from wrong ones.
    """
    values = {**actual.values}  # of the last run
    aligner = _Aligner(replace(actual, values=values), expected, dict(known), reshaped)
    aligner.align_constants()
    aligner.align_all()
    while rerun is not None and aligner.is_cut_off():
        count = aligner.count
        values.update(rerun(aligner.references.get))
        aligner.align_all()
        if aligner.count == count:
            break
    if reshaped:
        aligner.align_reshaped()
    return replace(aligner.result(), same_weights=aligner.same_weights())


@dataclass
class _Aligner:
    """The state of `align`; see there."""

    actual: Observed
    expected: Observed
    names: dict[str, str]
    reshaped: bool
    bases: dict[str, Basis] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)  # the values of `expected` that were found by similar numbers
    shapes: dict[str, torch.Size] = field(default_factory=dict)  # see `ProgramAlignment`, and so is this:
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    guessed: Collection[str] = ()  # the values that were aligned although their numbers differ

    def __post_init__(self) -> None:
        self._exact: dict[Key, list[Node]] = {}
        self._relaxed: dict[Key, list[Node]] = {}
        self._readers: dict[Hashable, list[Node]] = {}  # of a weight
        for node in self.expected.graph.nodes:
            operands = [self._operand(self.expected, name, name) for name in node.reads]
            self._exact.setdefault(_key(node.op, operands), []).append(node)
            self._relaxed.setdefault(_key(node.op, map(_any_constant, operands)), []).append(node)
            if node.name in self.expected.weights:
                self._readers.setdefault(self.expected.weights[node.name], []).append(node)
        self._nearest = cache(self._values_of_kind)
        self._nearest_flat = cache(self._values_of_size)
        self._sizes = cache(self._last_sizes)

    @property
    def count(self) -> int:
        """The number of aligned values."""
        return len(self.names) + len(self.joined)

    @property
    def references(self) -> Mapping[str, torch.Tensor]:
        """The reference of each aligned value."""
        return self.result().references(self.expected.values)

    def result(self) -> ProgramAlignment:
        """Return the values that were aligned."""
        bases: dict[str, Basis] = {**dict.fromkeys(self.names, "name"), **self.bases}
        return ProgramAlignment(self.names, bases, self.shapes, self.joined)

    def same_weights(self) -> frozenset[str]:
        """Return the names of the nodes with a quantized weight of which `expected` has most of the numbers."""
        nodes = [node for node in self.actual.graph.nodes if node.op in PRODUCT]
        return frozenset(node.name for node in nodes if self._has_same_weight(node))

    def _has_same_weight(self, node: Node) -> bool:
        parts = self.joined.get(node.outputs[0], (self.names.get(node.outputs[0], ""),))
        others = [self.expected.graph.producer[part] for part in parts if part in self.expected.graph.producer]
        weights = [weight for other in others if (weight := self.expected.weight_of(other)) is not None]
        own = self.actual.weight_of(node)
        if own is None or len(weights) < len(parts) or any(weight.shape[:-1] != own.shape[:-1] for weight in weights):
            return False
        joined = torch.cat(weights, -1)
        return joined.shape == own.shape and float((joined == own).float().mean()) > _MOST_NUMBERS

    def is_cut_off(self) -> bool:
        """Whether an aligned value is wrong, so that others may not have been aligned."""
        if next(self._unaligned(), None) is None:
            return False
        references = self.references.items()
        return any(not compare_tensors(self.actual.tensor(name), tensor).close for name, tensor in references)

    def align_all(self) -> None:
        """Align the values that depend on the inputs: those with similar numbers, then others.

        In further runs, a value that was aligned although its numbers differ is aligned anew if it has those of others.
        """
        for name in self.guessed:
            if self._nearest_value(name) in (None, self.names.get(name)):
                continue  # nothing tells otherwise
            self.claimed -= {self.names.pop(name, ""), *self.joined.pop(name, ())}
            self.shapes.pop(name, None)
            del self.bases[name]
        self.align_similar()
        found = {*self.bases}
        self.align_different()
        self.guessed = self.bases.keys() - found

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
            if (candidate := self._similar_candidate(node, index, name)) is not None or (
                candidate := self._similar_by_weight(node, index, name)
            ) is not None:
                self._claim(name, candidate, "operands")
            elif node.op == "Identity":
                continue  # a copy may stand where a value was computed
            elif (nearest := self._nearest_value(name)) is not None:
                self._claim(name, nearest, self._basis(node, nearest))
            elif self.reshaped and (nearest := self._nearest_reshaped(name)) is not None:
                self._claim(name, nearest, self._basis(node, nearest))
                self.shapes[name] = self.actual.values[name].shape
            elif self._in_order(parts := self._parts_by_numbers(name)):
                self._join(name, parts, "operands" if {*parts} <= {*self._same_operations(node)} else "numbers")
        self._confirm_by_weight()

    def _confirm_by_weight(self) -> None:
        """Note which values that were found by their numbers are read together with the same weight in `expected`."""
        for node in self.actual.graph.nodes:
            name = node.outputs[0]
            other = self.expected.graph.producer.get(self.names.get(name, ""))
            if other is None or self.bases.get(name) == "numbers" or not self._have_same_weight(node, other):
                continue
            read, found, values = node.inputs[0], other.inputs[0], self.expected.values
            if self.bases.get(read) == "numbers" and _equal(values.get(self.names.get(read, "")), values.get(found)):
                self.names[read], self.bases[read] = found, "operands"

    def align_different(self) -> None:
        """Align the values with other numbers that must be wrong if the outputs are."""
        for align in (self._align_forwards, self._align_backwards, self._align_forwards):
            align()
        for _, _, name in self._unaligned():
            if parts := self._parts_by_numbers(name):
                self._join(name, parts, "numbers")
        for _, _, name in self._unaligned():  # what replaces a wrong value by an earlier one has the numbers of that
            if (nearest := self._nearest_value(name)) is not None:
                self._add(name, nearest, "numbers")

    def align_reshaped(self) -> None:
        """Align values in another shape: what a node reshapes, and the result unless it may be a wrong one."""
        harmless = self._harmless
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

    def _align_forwards(self) -> None:
        """Align values by what they are computed from."""
        for node, index, name in self._unaligned():
            if (found := self._same_node(node, index, name)) is not None:
                self._add(name, found, "operands")
            elif name not in self._harmless and (parts := self._parts_by_operands(node, name)):
                self._join(name, parts, "operands")
            elif name not in self._harmless and (found := self._counterpart(node, index, name)) is not None:
                self._add(name, found, "name" if found == name else "operands")
            elif name not in self._settled and not index and (found := self._by_weight(node, name)) is not None:
                self._claim(name, found, "operands")

    def _align_backwards(self) -> None:
        """Align what a node reads with what the node reads that computes its value in `expected`."""
        for node in reversed(self.actual.graph.nodes):
            for name in node.outputs:
                other = self.expected.graph.producer.get(self.names.get(name, ""))
                if other is None or not _is_like(node, other):
                    continue
                harmless = self._settled if self._have_same_weight(node, other) else self._harmless
                if name not in harmless:
                    for read, found in self._paired_reads(node, other):
                        if read not in harmless and self._have_same_shape(read, found):
                            self._claim(read, found, "operands")

    def _paired_reads(self, node: Node, other: Node) -> list[tuple[str, str]]:
        """Return the values that a node reads and that are not aligned, with those in their places in `expected`."""
        aligned = {self.expected.source(self.names[name]) for name in node.reads if name in self.names}
        reads = [name for name in node.reads if name not in self.names]
        found = [name for name in other.reads if self.expected.source(name) not in aligned]
        if node.op in PRODUCT:
            reads, found = [*node.inputs[:1]], [*other.inputs[:1]]
        elif node.op not in _COMMUTATIVE or len(reads) != len(found):
            reads, found = [*node.reads], [*other.reads]
        pairs = zip(reads, found, strict=True)
        return [
            (read, name)
            for read, name in pairs
            if read in self.actual.graph.producer and read not in self.names and self._is_free(name)
            if read not in self.actual.constants or self.actual.values[read].is_floating_point()  # shapes may have -1
        ]

    def _is_free(self, name: str) -> bool:
        """Whether a value of `expected` is computed by a node and not claimed by another value."""
        return name in self.expected.graph.producer and name not in self.claimed

    def _have_same_shape(self, actual: str, expected: str | None = None) -> bool:
        """Whether two values have the same shape; None is the value that `actual` is aligned with."""
        expected = self.names.get(actual, "") if expected is None else expected
        first, second = self.actual.tensor(actual), self.expected.tensor(expected)
        return first is not None and second is not None and first.shape == second.shape

    def _have_same_weight(self, node: Node, other: Node) -> bool:
        """Whether two nodes read the same weight."""
        weight = self.actual.weights.get(node.name)
        return weight is not None and weight == self.expected.weights.get(other.name)

    def _have_same_kind(self, actual: str, expected: str) -> bool:
        """Whether two values are both floating-point numbers or both not: quantized integers are other numbers."""
        first, second = self.actual.tensor(actual), self.expected.tensor(expected)
        if first is None or second is None:
            return False
        return first.is_floating_point() == second.is_floating_point()

    def _claim(self, name: str, found: str, basis: Basis) -> None:
        """Align a value; no other one is aligned with the same value without need, unless it is the same one moved."""
        self._add(name, found, basis)
        if self.actual.graph.producer[name].op not in _MOVES:
            self.claimed.add(found)

    def _add(self, name: str, found: str, basis: Basis) -> None:
        self.names[name], self.bases[name] = found, basis

    def _unaligned(self) -> Iterator[tuple[Node, int, str]]:
        """Yield each value to align, with its node and its place among the node's outputs, in order."""
        for node in self.actual.graph.nodes:
            for index, name in enumerate(node.outputs):
                if name and name not in self.names and name not in self.joined and name in self.actual.values:
                    yield node, index, name

    def _operand(self, side: Observed, name: str, aligned: str | None) -> Hashable:
        """Return what identifies a value that a node reads; `aligned` is its name in `expected`."""
        if name in side.constants:
            return "constant", side.constants[name]
        return None if aligned is None else ("value", self.expected.source(aligned))

    def _operation(self, node: Node, part: str | None = None) -> tuple[str, list[Hashable]]:
        """Return the operator of a node and what identifies its operands; `part` is of a joined operand, if any."""

        def operand(name: str) -> Hashable:
            source = name if name in self.names or name in self.joined else self.actual.source(name)
            return self._operand(self.actual, source, part if source in self.joined else self.names.get(source))

        if node.op in PRODUCT and node.name in self.actual.weights:
            return PRODUCT[node.op], [operand(node.inputs[0]), ("constant", self.actual.weights[node.name])]
        return node.op, [*map(operand, node.reads)]

    def _candidates(self, node: Node, part: str | None = None) -> list[Node]:
        """Return the nodes of `expected` with the same operator that read the same values, equal constants first."""
        if node.op == "Constant" or (node.op == "Identity" and self._is_other(node.outputs[0])):
            return []  # all constants read the same, and a copy may stand where a value was computed
        op, operands = self._operation(node, part)
        if None in operands:
            return []
        exact = self._exact.get(_key(op, operands), [])
        relaxed = self._relaxed.get(_key(op, map(_any_constant, operands)), [])
        return [*exact, *(item for item in relaxed if item not in exact)]

    def _same_operations(self, node: Node) -> list[str]:
        """Return what the operator of a node computes in `expected` from the same values, or from each joined part."""
        joined = [self.joined[name] for name in node.reads if name in self.joined]
        parts = joined[0] if len(joined) == 1 else (None,)
        found = {item.outputs[0] for part in parts for item in self._candidates(node, part)}
        return [name for name in self.expected.graph.producer if name in found]

    def _parts_by_operands(self, node: Node, name: str) -> tuple[str, ...]:
        """Return the values that a value should consist of: computed by its operator from the same values."""
        found, shape, candidates = self._same_operations(node), self.actual.values[name].shape, []
        for start, end in itertools.combinations(range(len(found) + 1), 2):
            parts = tuple(found[start:end])
            sizes = [self.expected.values[part].shape for part in parts if part in self.expected.values]
            lasts = [size[-1] for size in sizes if len(size) == len(shape) and size[:-1] == shape[:-1]]
            if 1 < len(parts) == len(lasts) and sum(lasts) == shape[-1]:
                candidates.append(parts)
        return min(candidates, key=lambda parts: len(self.claimed.intersection(parts)), default=())

    def _parts_by_numbers(self, name: str) -> tuple[str, ...]:
        """Return the values of `expected` that make up a value when they are joined along the last dimension."""
        tensor = self.actual.values[name]
        rest, found = tensor, []
        while tensor.is_floating_point() and tensor.ndim > 1 and rest.numel():
            for size in self._sizes(tensor.dtype, tensor.shape[:-1]):
                nearest = self._nearest(tensor.dtype, (*tensor.shape[:-1], size))
                part = nearest.find(rest[..., :size].contiguous()) if nearest and size <= rest.shape[-1] else None
                if part is not None:
                    found.append(part)
                    rest = rest[..., size:]
                    break
            else:
                return ()
        return tuple(found)

    def _last_sizes(self, dtype: torch.dtype, shape: torch.Size) -> list[int]:
        """Return the sizes of the last dimension of the values with these other dimensions, the largest first."""
        values = self._computed.values()
        found = {item.shape[-1] for item in values if item.ndim and (item.dtype, item.shape[:-1]) == (dtype, shape)}
        return sorted(found - {0}, reverse=True)

    def _in_order(self, parts: Sequence[str]) -> bool:
        """Whether `expected` computes these values in this order."""
        places = [self.expected.graph.node_indices[self.expected.graph.producer[part].name] for part in parts]
        return len(parts) > 1 and places == sorted(places)

    def _join(self, name: str, parts: tuple[str, ...], basis: Basis) -> None:
        """Align a value with joined ones."""
        self.joined[name], self.bases[name] = parts, basis
        self.claimed.update(parts)

    def _is_other(self, name: str) -> bool:
        """Whether `expected` computes a value of this name and shape, with other numbers."""
        return (
            name in self.expected.graph.producer and self._have_same_shape(name, name) and not self._similar(name, name)
        )

    def _similar_candidate(self, node: Node, index: int, name: str) -> str | None:
        found = (item.outputs[index] for item in self._candidates(node) if index < len(item.outputs))
        return next((item for item in found if item and self._similar(name, item)), None)

    def _similar_by_weight(self, node: Node, index: int, name: str) -> str | None:
        tensor = self.actual.values[name]
        for item in self._readers_of_weight(node) if not index else ():
            value = self.expected.values.get(item.outputs[0])
            if value is None:
                continue
            is_other = value.shape != tensor.shape
            if is_other and self.reshaped and value.numel() == tensor.numel():
                value = value.reshape(tensor.shape)
            if compare_tensors(tensor, value, tolerance=_SIMILAR, lower_precision=True).close:
                self.shapes |= {name: tensor.shape} if is_other else {}
                return item.outputs[0]
        return None

    def _basis(self, node: Node, found: str) -> Basis:
        """Return what shows that a node computes a value of `expected`: also what it reads, or the numbers alone.

        It only moves the numbers of a known value, or `expected` computes the value from what the node reads alone.
        """
        sources = {self.names[name] for name in node.reads if name in self.names and self.bases.get(name) != "numbers"}
        sources |= {
            part for name in node.reads if self.bases.get(name) != "numbers" for part in self.joined.get(name, ())
        }
        values, graph = self.expected.values, self.expected.graph
        if node.op in _MOVES and any(_equal(values.get(source), values[found]) for source in sources):
            return "operands"
        read = {name for item in graph.cone([found], sources) for name in item.reads}
        return "operands" if read & sources and read & {*graph.inputs} <= sources else "numbers"

    def _readers_of_weight(self, node: Node) -> list[Node]:
        """Return the nodes of `expected` that read the same weight as a node."""
        return self._readers.get(self.actual.weights.get(node.name), [])

    def _similar(self, actual: str, expected: str) -> bool:
        tensors = self.actual.tensor(actual), self.expected.tensor(expected)
        return compare_tensors(*tensors, tolerance=_SIMILAR, lower_precision=True).close

    def _nearest_value(self, name: str) -> str | None:
        tensor = self.actual.values[name]
        nearest = self._nearest(tensor.dtype, tensor.shape)
        return None if nearest is None else nearest.find(tensor)

    def _nearest_reshaped(self, name: str) -> str | None:
        """Return the value with nearly the same floating-point numbers in another shape."""
        tensor = self.actual.values[name]
        nearest = self._nearest_flat(tensor.dtype, tensor.numel()) if tensor.is_floating_point() else None
        return None if nearest is None else nearest.find(tensor.reshape(-1))

    @cached_property
    def _computed(self) -> Mapping[str, torch.Tensor]:
        """The values of `expected` that nodes compute from the inputs."""
        names = self.expected.graph.producer.keys() - self.expected.constants.keys()
        return {name: self.expected.values[name] for name in names if name in self.expected.values}

    def _values_of_kind(self, dtype: torch.dtype, shape: torch.Size) -> Nearest | None:
        tensors = self._computed.items()
        found = {name: tensor for name, tensor in tensors if (tensor.dtype, tensor.shape) == (dtype, shape)}
        return Nearest(found) if found else None

    def _values_of_size(self, dtype: torch.dtype, size: int) -> Nearest | None:
        tensors = self._computed.items()
        found = {name: item.reshape(-1) for name, item in tensors if (item.dtype, item.numel()) == (dtype, size)}
        return Nearest(found) if size > 1 and found else None

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

    def _by_weight(self, node: Node, name: str) -> str | None:
        """Return the value that is computed from the same weight, or nearly the same one, unless another one is it."""
        readers = self._readers_of_weight(node) or self._readers_of_similar_weight(node)
        outputs = [item.outputs[0] for item in readers]
        size = self.actual.values[name].numel()
        values = self.expected.values
        found = [item for item in outputs if self._is_free(item) and item in values and values[item].numel() == size]
        if not found or not (self.reshaped or self._have_same_shape(name, found[0])):
            return None
        if not self._have_same_shape(name, found[0]):
            self.shapes[name] = self.actual.values[name].shape
        return found[0]

    def _readers_of_similar_weight(self, node: Node) -> list[Node]:
        """Return the nodes of `expected` that read a weight with most of the numbers of the one that a node reads."""
        own = self.actual.weight_of(node)
        if own is None:
            return []
        weights = [(item, self.expected.weight_of(item)) for readers in self._readers.values() for item in readers]
        same = [(item, weight) for item, weight in weights if weight is not None and weight.shape == own.shape]
        return [item for item, weight in same if float((weight == own).float().mean()) > _MOST_NUMBERS]

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

    @cached_property
    def _harmless(self) -> frozenset[str]:
        """The values whose numbers do not matter in the first run: outputs depend on them only through similar ones."""
        return self._without_effect(self.bases)

    @cached_property
    def _settled(self) -> frozenset[str]:
        """The same, only through values that are equal up to rounding."""
        references = self.references.items()
        close = {name for name, item in references if compare_tensors(self.actual.tensor(name), item).close}
        return self._without_effect(close)

    def _without_effect(self, right: Collection[str]) -> frozenset[str]:
        """Return the values on which the outputs depend only through those that are right."""
        graph, outputs = self.actual.graph, {*self.actual.graph.outputs}
        harmless: set[str] = set()
        for node in reversed(graph.nodes):
            for name in node.outputs:
                users = (output for user in graph.consumers.get(name, ()) for output in user.outputs if output)
                if name not in outputs and all(user in right or user in harmless for user in users):
                    harmless.add(name)
        return frozenset(harmless)


def _equal(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Whether two tensors have the same numbers in the same order."""
    return first is not None and second is not None and torch.equal(first.reshape(-1), second.reshape(-1))


def _identity(tensor: torch.Tensor) -> Hashable:
    """Return what identifies a tensor: dtype, shape and numbers."""
    return tensor.dtype, tensor.shape, hashlib.sha256(bytes_of(tensor).cpu().numpy().tobytes()).digest()


def _key(op: str, operands: Iterable[Hashable]) -> Key:
    listed = [*operands]
    return op, len(listed), *(sorted(listed, key=repr) if op in _COMMUTATIVE else listed)


def _is_like(node: Node, other: Node) -> bool:
    """Whether two nodes have the same operator and number of operands."""
    return PRODUCT.get(node.op) == other.op or (node.op == other.op and len(node.reads) == len(other.reads))


def _any_constant(operand: Hashable) -> Hashable:
    return "constant" if isinstance(operand, tuple) and operand[0] == "constant" else operand
