"""`Correspondence`: which values of two executions are the same, and what shows it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch

from filch.export import Node

from ..layouts._numbers import TensorNumbers
from ..layouts._solve import solve
from ..runs._execution import Execution, Output, Tensors, moved_value
from ._outputs import JudgedOutput, JudgedOutputs, judge_outputs
from ._values import Matches, ValueSide, equal_values, match_values, matched_values
from ._weight_map import WeightMap, WeightPart

Evidence = Literal["proved", "anchored", "by value", "ambiguous", "uncovered"]


@dataclass(frozen=True)
class Anchor:
    """Two operations that read the same weight.

    Attributes:
        node: the operation of B.
        reference: that of A.
        weight: the weight of B.
        operand: what the operation of B reads besides weights, as it is read.
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
        owners: dict[str, set[str]] = {}
        for name, matches in self.from_reference.items():
            owners.setdefault(name, set()).update(match.source for match in matches)
        for name, matches in self.from_actual.items():
            for match in matches:
                owners.setdefault(match.source, set()).add(name)
        for weight in self.weights.matches:
            exact = {part.weight for part in weight.parts if not part.factor}
            owners.setdefault(weight.weight, set()).update(exact, weight.others if exact else ())
        reference, actual = self.reference.execution, self.actual.execution
        for name in actual.graph.inputs:
            same = (item for item in reference.graph.inputs if _equal(reference.values[item], actual.values[name]))
            owners.setdefault(name, set()).update(same)
        for name, value in self._outputs_of_reference.items():
            if value in reference.values and name not in self.actual.recognizable:
                owners.setdefault(name, set()).add(value)
        return {name: frozenset(items) for name, items in owners.items()}

    @cached_property
    def found_in_reference(self) -> frozenset[str]:
        """The values of B whose numbers are all numbers of A, or would be with a bias that A adds in one operation."""
        found = frozenset(self.from_reference) | _covered(self.from_actual, self.reference, self.actual)
        remaining = {name: numbers for name, numbers in self.actual.recognizable.items() if name not in found}
        return found | self.without_bias(remaining).keys() | self._outputs_of_reference.keys()

    @cached_property
    def _outputs_of_reference(self) -> Mapping[str, str]:
        """The values of B that are whole outputs of A, with those of A."""
        reference, actual, found = self.reference.execution, self.actual.execution, dict[str, str]()
        for item in self.outputs.judged:
            if item.actual is not None and not item.problem:
                name = actual.roots.get(item.actual.result.value, "")
                value = reference.roots.get(item.reference.result.value, "")
                if name in actual.values and actual.values[name].numel() == item.actual.tensor.numel():
                    found[name] = value
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
        for match in (match for matches in self.from_actual.values() for match in matches):
            name, layout = match.source, match.layout
            if name not in made_up or layout is None or 0 in layout.strides:
                continue
            if reference[match.value].numel() == layout.numel and layout.last < actual[name].numel():
                whole = exact.setdefault(name, actual[name].clone().contiguous())
                layout.select(whole).copy_(reference[match.value].reshape(layout.sizes))
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
        """Return an output that B does not return, with the value of B that has its numbers."""
        root = self.reference.execution.roots.get(item.reference.result.value, "")
        matches = self.from_actual.get(root, ())
        inner = next((match.source for match in matches if match.layout is not None), "")
        is_inside = item.actual is None and item.has_name and inner
        return replace(item, inner=inner, problem="") if is_inside else item

    @cached_property
    def plain_outputs(self) -> Mapping[str, torch.Tensor]:
        """The values of B that are outputs and can't be recognized by their numbers, with the numbers of A's output."""
        actual, found = self.actual, dict[str, torch.Tensor]()
        for item in (item for item in self.outputs.judged if item.actual is not None):
            output = item.actual or item.reference
            name = actual.execution.roots.get(output.result.value, "")
            sizes = output.tensor.numel(), item.reference.tensor.numel()
            is_plain = name in actual.execution.values and name not in actual.recognizable
            if is_plain and sizes == (actual.execution.values[name].numel(),) * 2:
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
        uses = _uses(self.reference.execution), _uses(self.actual.execution)
        found = []
        for weight, nodes in uses[1].items():
            match = self.weights.by_weight.get(weight)
            parts = match.parts if match is not None else ()
            for part in parts:
                whole = len(parts) == 1 and part.arrangement in ("same", "moved")
                readers = nodes
                if part.arrangement == "holds":  # of layers whose weights were stacked, say
                    execution = self.actual.execution
                    readers = [node for node in nodes if part.layout.offset in _view_of(execution, node, weight)]
                for node, reference in self._pairs(readers, uses[0].get(part.weight, []), part):
                    operand = data_operand(self.actual.execution, node)
                    reference_operand = data_operand(self.reference.execution, reference)
                    if operand is not None and reference_operand is not None:
                        operands = operand, reference_operand
                        found.append(Anchor(node, reference, weight, *operands, whole, bool(part.factor)))
        order = self.actual.execution.graph.node_indices
        return tuple(sorted(found, key=lambda anchor: order[anchor.node.name]))

    def _pairs(
        self, nodes: Sequence[Node], candidates: Sequence[Node], part: WeightPart
    ) -> Iterator[tuple[Node, Node]]:
        """Yield the operations of B that read a weight, with those of A that read the same numbers."""
        if part.arrangement == "part":  # of several parts of a weight of A
            views = {node.name: _view_of(self.reference.execution, node, part.weight) for node in candidates}
            candidates = [node for node in candidates if part.layout.offset in views[node.name]]
        count = max(len(nodes), len(candidates))
        if len(nodes) != len(candidates) and 1 not in (len(nodes), len(candidates)):
            return
        for index in range(count if nodes and candidates else 0):
            node, reference = nodes[min(index, len(nodes) - 1)], candidates[min(index, len(candidates) - 1)]
            are_linear = node.operator.is_linear and reference.operator.is_linear
            if are_linear or node.operator.kind == reference.operator.kind:
                yield node, reference

    def without_bias(self, values: Mapping[str, TensorNumbers]) -> dict[str, Anchor]:
        """Return the values of B to which the result of an operation of A is equal but for a bias, with the anchors.

        Only sums read such a value: where there is none, B lacks the bias, and likewise where B adds another one.

        Args:
            values: values of B by name.
        """
        found = {}
        for anchor in self.anchors:
            name = anchor.node.outputs[0]
            if name not in self._summands or _bias_of(self.actual.execution, anchor.node) is not None:
                continue
            before_bias = _before_bias(self.reference.execution, anchor.reference) if name in values else None
            if before_bias is not None and solve(values[name], TensorNumbers(before_bias)) is not None:
                found[name] = anchor
        return found

    @cached_property
    def _summands(self) -> frozenset[str]:
        """The values of B that only sums read."""
        execution = self.actual.execution
        sums: set[str] = set()
        read_otherwise: set[str] = set()
        for node in execution.graph.nodes:
            if moved_value(node) is None:
                (sums if node.operator.rounding == "addition" else read_otherwise).update(
                    execution.roots[read] for read in node.reads
                )
        return frozenset(sums - read_otherwise)

    @cached_property
    def proved(self) -> frozenset[tuple[str, str]]:
        """Pairs of values (B, A) computed by the same operators from pairs of values: they are equal for all inputs."""
        reference, actual = self.reference.execution, self.actual.execution
        sources = (*actual.graph.inputs, *actual.graph.constants)
        sure = {(name, item) for name in sources for item in self.owners.get(name, ())}
        proved = set()
        for node in actual.graph.nodes:
            for name in node.outputs:
                for item in self.owners.get(name, ()) if name in self.actual.recognizable else ():
                    producer = reference.graph.producer.get(item)
                    if producer is None or producer.operator.kind != node.operator.kind:
                        continue
                    needed = [root for root in map(reference.roots.__getitem__, producer.reads) if self._matters(root)]
                    given = [actual.roots[read] for read in node.reads]
                    if needed and all(any((read, root) in sure for read in given) for root in needed):
                        proved.add((name, item))
                        sure.add((name, item))
        return frozenset(proved)

    def _matters(self, name: str) -> bool:
        """Whether a value of A has to be in B: a recognizable one, an input or a weight."""
        run = self.reference.execution
        return name in self.reference.recognizable or name in run.graph.inputs or name in run.weights

    @cached_property
    def anchored(self) -> frozenset[tuple[str, str]]:
        """Pairs of values (B, A) that operations compute from the same weight."""
        pairs = ((anchor.node.outputs[0], anchor.reference.outputs[0]) for anchor in self.anchors)
        return frozenset((name, item) for name, item in pairs if item in self.owners.get(name, ()))

    def evidence(self, value: str) -> tuple[Evidence, tuple[str, ...]]:
        """Return what shows where a value of A is in B, and the values of B.

        Args:
            value: a computed value of A.
        """
        names = self._by_owner.get(value, ())
        proved = [name for name in names if (name, value) in self.proved]
        if proved:
            return "proved", tuple(proved)
        anchored = [name for name in names if (name, value) in self.anchored]
        if anchored:
            return "anchored", tuple(anchored)
        if not names:
            return "uncovered", ()
        count = self.reference.execution.values[value].numel()
        sizes = {name: abs(self.actual.execution.values[name].numel() - count) for name in names}
        nearest = tuple(name for name in names if sizes[name] == min(sizes.values()))
        return ("by value" if len(nearest) == 1 else "ambiguous"), nearest

    @cached_property
    def _by_owner(self) -> Mapping[str, Sequence[str]]:
        """The values of B that have numbers of each value of A, by its name."""
        found: dict[str, list[str]] = {}
        for name, items in self.owners.items():
            for item in items if name in self.actual.execution.values else ():
                found.setdefault(item, []).append(name)
        return found


def data_operand(execution: Execution, node: Node) -> str | None:
    """Return the largest value that a node reads and that is no weight; None if there is none."""
    reads = [read for read in node.reads if execution.roots[read] not in execution.weights]
    sizes = {read: size_of(execution, read) for read in reads}
    return max((read for read in reads if sizes[read] > 1), key=lambda read: sizes[read], default=None)


def size_of(execution: Execution, name: str) -> int:
    """Return the number of elements of a value, as far as its shape is known."""
    size = 1
    value = execution.graph.values.get(name)
    for dim in (value.shape or ()) if value is not None else ():
        size *= dim if isinstance(dim, int) else 1
    return size


def _before_bias(execution: Execution, node: Node) -> torch.Tensor | None:
    """Return the result of a matrix product or a convolution without the bias; None if it has none."""
    name = _bias_of(execution, node)
    result, shape = execution.values.get(node.outputs[0]), execution.graph.values[node.outputs[0]].shape
    if name is None or result is None or shape is None:
        return None
    bias = execution.weights[name].double()
    shaped = result.reshape([dim for dim in shape if isinstance(dim, int)])
    if node.operator.kind == "matmul":
        return shaped - bias if shaped.shape[-1] == len(bias) else None
    return shaped - bias.reshape(-1, *(1 for _ in shaped.shape[2:])) if shaped.shape[1] == len(bias) else None


def _bias_of(execution: Execution, node: Node) -> str | None:
    """Return the bias that a matrix product or a convolution adds; None if it has none."""
    roots = [execution.roots[read] for read in node.reads]
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
    while name not in execution.offsets and (producer := execution.graph.producer.get(name)) is not None:
        moved = moved_value(producer)
        if moved is None:
            break
        name = moved
    return name


def _uses(execution: Execution) -> dict[str, list[Node]]:
    """Return the operations that compute something from each weight, by its name."""
    uses: dict[str, list[Node]] = {}
    for node in execution.graph.nodes:
        if node.operator.weight is not None and execution.roots.get(node.outputs[0]) == node.outputs[0]:
            for root in dict.fromkeys(execution.roots[read] for read in node.reads):
                if root in execution.weights and (execution.weights[root].dim() > 1 or node.operator.kind != "matmul"):
                    uses.setdefault(root, []).append(node)
    return uses


def _covered(matches: Matches, side: ValueSide, sources: ValueSide) -> frozenset[str]:
    """Return the values of `sources` whose numbers are all in matches of values of `side`, each number counted once."""
    parts: dict[str, dict[object, int]] = {}
    for name, found in matches.items():
        for match in found:
            layout = None if match.layout is None else match.layout.without_repeats
            size = side.recognizable[name].tensor.numel() if layout is None else layout.numel
            parts.setdefault(match.source, {})[layout or name] = size
    return frozenset(
        name for name, sizes in parts.items() if sum(sizes.values()) >= sources.recognizable[name].tensor.numel()
    )


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.numel() == second.numel() and torch.equal(first.double().reshape(-1), second.double().reshape(-1))
