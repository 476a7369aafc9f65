"""`Correspondence`: which values and operations of two executions correspond.

A value is recognizable if it has enough different numbers. The owners of a value of B are the values, inputs and
weights of A that have numbers of it; it is found if they have all of them. The root of a value is the one from which
it was only moved, by a reshape or a transpose, say (see `Execution.roots`). Anchors are pairs of operations that read
the same weight.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from filch.export import Node

from ..layouts._numbers import TensorNumbers
from ..layouts._solve import solve
from ..runs._execution import Execution, Output, Tensors, moved_value
from ._outputs import JudgedOutput, JudgedOutputs, judge_outputs
from ._values import Matches, ValueSide, equal_values, match_values, matched_values
from ._weight_map import WeightMap, WeightMatch, WeightPart


@dataclass(frozen=True)
class Anchor:
    """Two operations that read the same weight.

    Attributes:
        node: the operation of B.
        reference: that of A.
        weight: the weight of B.
        operand: the value that the operation of B reads besides weights, as it is read, not its root.
        reference_operand: likewise of A.
        whole: whether the two read the whole weight, or one of them a weight that was joined with others.
        folded: whether the weight of B also has a factor that A applies elsewhere.
    """

    node: Node
    reference: Node
    weight: str
    operand: str
    reference_operand: str
    whole: bool
    folded: bool


class Correspondence:
    """The values of two executions that are the same numbers.

    Args:
        reference: the values of implementation A.
        actual: the values of implementation B.
        weights: which weights correspond.
        known: the values that are known to correspond, in runs whose numbers are the same but for rounding.

    Attributes:
        from_reference: where the values of B are in values of A, by the names of those of B.
        from_actual: where the values of A are in values of B, by the names of those of A.
    """

    def __init__(
        self, reference: ValueSide, actual: ValueSide, weights: WeightMap, known: "Correspondence | None" = None
    ) -> None:
        self.reference, self.actual, self.weights = reference, actual, weights
        before: tuple[Matches, Matches] = ({}, {}) if known is None else (known.from_reference, known.from_actual)
        self.from_reference: Matches = match_values(actual, reference, known=before[0])
        self.from_actual: Matches = match_values(reference, actual, known=before[1])

    @cached_property
    def owners(self) -> Mapping[str, frozenset[str]]:
        """The values of A that have numbers of each value of B, by its name; also weights and inputs."""
        owners: dict[str, set[str]] = defaultdict(set)
        for match in itertools.chain(*self.from_reference.values()):
            owners[match.value].add(match.source)
        for match in itertools.chain(*self.from_actual.values()):
            owners[match.source].add(match.value)
        for weight in self.weights.matches:
            exact = {part.weight for part in weight.parts if not part.factor}  # a factor makes other numbers
            owners[weight.weight].update(exact, weight.others if exact else ())
        reference, actual = self.reference.execution, self.actual.execution
        for name, item in itertools.product(actual.graph.inputs, reference.graph.inputs):
            if _equal(reference.values[item], actual.values[name]):
                owners[name].add(item)
        for name, value in self._outputs_of_reference.items():
            if value in reference.values and name not in self.actual.recognizable:
                owners[name].add(value)
        return {name: frozenset(items) for name, items in owners.items()}

    @cached_property
    def owned(self) -> Mapping[str, Sequence[str]]:
        """The computed values and inputs of B that have numbers of each value of A, by its name."""
        owned: dict[str, list[str]] = defaultdict(list)
        for name, owners in self.owners.items():
            for owner in owners if name in self.actual.execution.values else ():
                owned[owner].append(name)
        return dict(owned)

    @cached_property
    def found_in_reference(self) -> frozenset[str]:
        """The values of B whose numbers are all numbers of A, or would be with a bias that A adds in one operation."""
        found = frozenset(self.from_reference) | _covered(self.from_actual, self.reference, self.actual)
        remaining = {name: numbers for name, numbers in self.actual.recognizable.items() if name not in found}
        return found | self.without_bias(remaining).keys() | self._outputs_of_reference.keys()

    @cached_property
    def _outputs_of_reference(self) -> Mapping[str, str]:
        """The roots of B's outputs that are right and whole, with the roots of those of A; `""` if A has no root."""
        reference, actual, found = self.reference.execution, self.actual.execution, dict[str, str]()
        for item in self.outputs.judged:
            if item.actual is not None and not item.problem:
                name = actual.roots.get(item.actual.result.value, "")
                if name in actual.values and actual.values[name].numel() == item.actual.tensor.numel():
                    found[name] = reference.roots.get(item.reference.result.value, "")
        return found

    @cached_property
    def found_in_actual(self) -> frozenset[str]:
        """The values of A whose numbers are all numbers of B."""
        return frozenset(self.from_actual) | _covered(self.from_reference, self.actual, self.reference)

    def exact_values(self, reference: Tensors, actual: Tensors) -> dict[str, torch.Tensor]:
        """Return the values of B that are values of A, or made up of those, with the numbers of A.

        Args:
            reference: the values of A, on the same inputs or on others.
            actual: those of B, on the same inputs.
        """
        exact = dict(matched_values(self.from_reference, reference))
        made_up = self.found_in_reference - self.from_reference.keys()
        for match in itertools.chain(*self.from_actual.values()):
            layout = match.layout
            if (
                match.source not in made_up or layout is None or 0 in layout.strides
            ):  # a repeated value has no one place
                continue
            part, whole = reference[match.value], actual[match.source]
            if part.numel() == layout.numel and layout.last < whole.numel():  # else other inputs select other rows
                made = exact.setdefault(match.source, whole.clone().contiguous())
                layout.select(made).copy_(part.reshape(layout.sizes))
        return equal_values(exact, actual)

    @cached_property
    def outputs(self) -> JudgedOutputs:
        """What is said of the outputs of B.

        Models of transformers also return values on the way, by name. A port that returns one tensor has them inside.
        """
        reference, actual = self.reference, self.actual
        judged = judge_outputs(reference.execution, actual.execution, reference.second, actual.second)
        returned = [item.result.path for item in actual.execution.outputs if item.result.kind == "returned"]
        if returned != [""]:
            return judged
        return replace(judged, judged=tuple(map(self._if_inside, judged.judged)))

    def _if_inside(self, item: JudgedOutput) -> JudgedOutput:
        """Return an output with the value inside of B that has its numbers, if B does not return it, by name."""
        root = self.reference.execution.roots.get(item.reference.result.value, "")
        matches = self.from_actual.get(root, ())
        inner = next((match.source for match in matches if match.layout is not None), "")
        is_inside = item.actual is None and item.has_name and inner
        return replace(item, inner=inner, problem="") if is_inside else item

    @cached_property
    def plain_outputs(self) -> Mapping[str, torch.Tensor]:
        """The values of B that are outputs and can't be recognized by their numbers, with the numbers of A's output."""
        values, found = self.actual.execution.values, dict[str, torch.Tensor]()
        for item in self.outputs.judged:
            name = "" if item.actual is None else self.actual.execution.roots.get(item.actual.result.value, "")
            if item.actual is not None and name in values and name not in self.actual.recognizable:
                sizes = {item.actual.tensor.numel(), item.reference.tensor.numel(), values[name].numel()}
                if len(sizes) == 1:
                    found[name] = item.reference.tensor.reshape(-1)
        return found

    @cached_property
    def wrong_outputs(self) -> tuple[str, ...]:
        """The values of B that are outputs, and whose numbers are not those of A."""
        names = (self.actual.execution.roots.get(item.result.value, "") for item in self.outputs.wrong)
        return tuple(name for name in dict.fromkeys(names) if name and name not in self.found_in_reference)

    @cached_property
    def misplaced_outputs(self) -> tuple[Output, ...]:
        """The outputs of B that are no outputs of A, although they have numbers of A."""
        roots = self.actual.execution.roots
        return tuple(item for item in self.outputs.wrong if roots.get(item.result.value, "") in self.found_in_reference)

    @cached_property
    def unfinished_outputs(self) -> tuple[str, ...]:
        """The values of B that are outputs, and have all numbers of a value of A that is no output."""
        reference, actual = self.reference.execution, self.actual.execution
        roots = (actual.roots[item.result.value] for item in self.misplaced_outputs)
        outputs = {reference.roots.get(item.result.value) for item in reference.outputs}
        return tuple(name for name in dict.fromkeys(roots) if not self.owners.get(name, frozenset()) & outputs)

    @cached_property
    def anchors(self) -> tuple[Anchor, ...]:
        """The operations of B, each with that of A that reads the same weight, in the order of B."""
        reference_uses, matches = _uses(self.reference.execution), self.weights.by_weight
        found = [
            anchor
            for weight, nodes in _uses(self.actual.execution).items()
            for part in (matches[weight].parts if weight in matches else ())
            for anchor in self._anchors_of(matches[weight], part, nodes, reference_uses.get(part.weight, ()))
        ]
        order = self.actual.execution.graph.node_indices
        return tuple(sorted(found, key=lambda anchor: order[anchor.node.name]))

    def _anchors_of(
        self, match: WeightMatch, part: WeightPart, nodes: Sequence[Node], references: Sequence[Node]
    ) -> Iterator[Anchor]:
        """Yield the anchors of a weight of B and one of those of A that it is made of.

        Args:
            match: the weight of B.
            part: what it has of the weight of A.
            nodes: the operations that read the weight of B.
            references: those that read the weight of A.
        """
        reference, actual = self.reference.execution, self.actual.execution
        if part.arrangement == "holds":  # of layers whose weights were stacked, say
            nodes = [node for node in nodes if part.layout.offset in _view_of(actual, node, match.weight)]
        if part.arrangement == "part":  # of several parts of a weight of A
            references = [node for node in references if part.layout.offset in _view_of(reference, node, part.weight)]
        whole = len(match.parts) == 1 and part.arrangement in ("same", "moved")
        for node, other in _pairs_of_readers(nodes, references):
            operand, other_operand = data_operand(actual, node), data_operand(reference, other)
            if operand is not None and other_operand is not None:
                yield Anchor(node, other, match.weight, operand, other_operand, whole, bool(part.factor))

    def without_bias(self, values: Mapping[str, TensorNumbers]) -> dict[str, Anchor]:
        """Return the values of B to which the result of an operation of A is equal but for a bias, with the anchors.

        Only sums read such a value: where there is none, B lacks the bias, and likewise where B adds another one.

        Args:
            values: values of B by name.
        """
        found = {}
        for anchor in self.anchors:
            name = anchor.node.outputs[0]
            is_judged = name in values and name in self._summands
            if not is_judged or _bias_of(self.actual.execution, anchor.node) is not None:
                continue
            before_bias = _before_bias(self.reference.execution, anchor.reference)
            if before_bias is not None and solve(values[name], TensorNumbers(before_bias)) is not None:
                found[name] = anchor
        return found

    @cached_property
    def _summands(self) -> frozenset[str]:
        """The values of B that only sums read."""
        execution = self.actual.execution
        read_by_sums: set[str] = set()
        read_otherwise: set[str] = set()
        for node in execution.graph.nodes:
            if moved_value(node) is None:
                reads = read_by_sums if node.operator.rounding == "addition" else read_otherwise
                reads.update(execution.roots_read_by(node))
        return frozenset(read_by_sums - read_otherwise)


def _pairs_of_readers(nodes: Sequence[Node], references: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Yield the operations of B that read a weight, with those of A that read the same numbers, if they are alike.

    They correspond in their order; a single one of either corresponds to all of the other. None do if their numbers
    differ otherwise.
    """
    nodes = [*nodes] * len(references) if len(nodes) == 1 else nodes
    references = [*references] * len(nodes) if len(references) == 1 else references
    for node, reference in zip(nodes, references, strict=True) if len(nodes) == len(references) else ():
        are_linear = node.operator.is_linear and reference.operator.is_linear
        if are_linear or node.operator.kind == reference.operator.kind:
            yield node, reference


def data_operand(execution: Execution, node: Node) -> str | None:
    """Return the largest value that a node reads and that is no weight or single number; None if there is none."""
    reads = [read for read in node.reads if execution.roots[read] not in execution.weights]
    sizes = {read: size_of(execution, read) for read in reads}
    return max((read for read in reads if sizes[read] > 1), key=lambda read: sizes[read], default=None)


def size_of(execution: Execution, name: str) -> int:
    """Return the number of elements of a value, as far as its shape is known."""
    value = execution.graph.values.get(name)
    shape = (value.shape or ()) if value is not None else ()
    return math.prod(dim for dim in shape if isinstance(dim, int))


def _before_bias(execution: Execution, node: Node) -> torch.Tensor | None:
    """Return the result of a matrix product or a convolution without the bias; None if it has none."""
    name = _bias_of(execution, node)
    result, shape = execution.values.get(node.outputs[0]), execution.graph.values[node.outputs[0]].shape
    if name is None or result is None or shape is None:
        return None
    bias = execution.weights[name].double()
    shaped = result.reshape([dim for dim in shape if isinstance(dim, int)])
    channels = shaped.dim() - 1 if node.operator.kind == "matmul" else 1  # the dimension along which the bias lies
    if shaped.shape[channels] != len(bias):
        return None
    return shaped - bias.reshape(-1, *(1 for _ in shaped.shape[channels + 1 :]))


def _bias_of(execution: Execution, node: Node) -> str | None:
    """Return the bias that a matrix product or a convolution adds; None if it has none."""
    roots = execution.roots_read_by(node)
    biases = [root for root in roots if root in execution.weights and execution.weights[root].dim() == 1]
    return biases[0] if len(biases) == 1 and node.operator.is_linear else None


def _view_of(execution: Execution, node: Node, weight: str) -> range:
    """Return the indices of the elements of a weight that a node reads, as the range that they are in."""
    for read in node.reads:
        if execution.roots[read] == weight:
            start = execution.offsets.get(_before_copy(execution, read), 0)
            return range(start, start + max(size_of(execution, read), 1))
    return range(0)


def _before_copy(execution: Execution, name: str) -> str:
    """Return the view of a weight from which a tensor was moved to other memory; the tensor itself if it is a view."""
    producers = execution.graph.producer
    while name not in execution.offsets and name in producers and (moved := moved_value(producers[name])) is not None:
        name = moved
    return name


def _uses(execution: Execution) -> dict[str, list[Node]]:
    """Return the operations that compute something from each weight, by its name.

    A vector that a matrix product reads is its bias, and does not count.
    """
    uses: dict[str, list[Node]] = {}
    for node in execution.graph.nodes:
        if node.operator.weight is not None and execution.roots.get(node.outputs[0]) == node.outputs[0]:
            for root in execution.roots_read_by(node):
                if root in execution.weights and (execution.weights[root].dim() > 1 or node.operator.kind != "matmul"):
                    uses.setdefault(root, []).append(node)
    return uses


def _covered(matches: Matches, side: ValueSide, sources: ValueSide) -> frozenset[str]:
    """Return the values of `sources` whose numbers are all in matches of values of `side`.

    A match without a layout has all numbers of its value. Matches in the same places count once. Others do not overlap:
    they are parts of what is split.
    """
    sizes: dict[str, dict[object, int]] = {}  # of the matches in each value, by where they are: once if they are equal
    for match in itertools.chain(*matches.values()):
        layout = None if match.layout is None else match.layout.without_repeats
        size = side.recognizable[match.value].tensor.numel() if layout is None else layout.numel
        sizes.setdefault(match.source, {})[layout or match.value] = size
    totals = {name: sum(items.values()) for name, items in sizes.items()}
    return frozenset(name for name, total in totals.items() if total >= sources.recognizable[name].tensor.numel())


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same numbers in the same order, in whatever shapes and dtypes."""
    return first.numel() == second.numel() and torch.equal(first.double().reshape(-1), second.double().reshape(-1))
