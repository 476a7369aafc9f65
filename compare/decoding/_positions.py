"""Compare the values of two runs that compute the same sequences in different calls, by sequence and position.

A value of the first run has an axis for the sequences and, for the positions, one or two (queries and keys). The
operation with the same place in its module computes, in the other run, the same for other sequences and positions.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch

from filch.export import Node

from ..layouts._closeness import Closeness
from ..layouts._numbers import TensorNumbers
from ..runs._execution import Execution
from ._plan import Plan, PlannedCall

ROOT, RESULT = "model", "result"  # the paths of the model in a `Decoder`, and of what returns its logits
Operation = tuple[str, str]  # the path of a module, and an operator


class ValueKey(NamedTuple):
    """What identifies a value in a call of the model: it has the same place in other calls.

    Attributes:
        operation: the module and the operator that compute it.
        before: how many nodes of this operation ran before in the call.
        total: how many nodes of this operation the call has.
        output: which output of the node it is.
    """

    operation: Operation
    before: int
    total: int
    output: int


@dataclass(frozen=True)
class Mismatch:
    """A value that is not the same as in the other run.

    Attributes:
        sequence: the index of the first sequence with other numbers.
        position: its first position with other numbers.
        difference: the largest difference there, relative to the size of the number or of a typical one.
    """

    sequence: int
    position: int
    difference: float


Mismatches = Mapping[str, Mismatch | None]  # by the names of values; None if they are the same


class PositionedRun:
    """The values of one run by call and place.

    Args:
        execution: the run of a `Decoder`.
        plan: its calls.

    Attributes:
        shorter: a run with one token less in each call, whose values show which axes have a row for each token; None
            if the sizes of axes do.
    """

    def __init__(self, execution: Execution, plan: Plan) -> None:
        self.execution, self.plan = execution, plan
        self.shorter: PositionedRun | None = None

    @cached_property
    def logits(self) -> list[str]:
        """The names of the logits of each call; the path of a module ends with `@1` in its second call, and so on."""
        found = {item.module: item.value for item in self.execution.modules}
        return [found[RESULT if index == 0 else f"{RESULT}@{index}"] for index in range(len(self.plan.calls))]

    @property
    def judged_logits(self) -> list[str]:
        """The names of what the logits of the judged calls are moved from."""
        calls = zip(self.plan.calls, self.logits, strict=True)
        return [self.execution.roots[name] for call, name in calls if call.is_judged]

    @cached_property
    def values(self) -> list[Mapping[ValueKey, str]]:
        """The names of the values of each call by their places."""
        graph = self.execution.graph
        # The node that returns the logits of a call is its last one.
        ends = [graph.node_indices[graph.producer[name].name] + 1 for name in self.logits]
        return [dict(self._placed(graph.nodes[start:end])) for start, end in pairwise([0, *ends])]

    def _placed(self, nodes: Sequence[Node]) -> Iterator[tuple[ValueKey, str]]:
        """Yield the place and the name of each floating-point value that the nodes of a call compute."""
        totals = Counter(map(_operation, nodes))
        counts: Counter[Operation] = Counter()
        for node in nodes:
            operation = _operation(node)
            for index, name in enumerate(node.outputs):
                value = self.execution.values.get(name)
                if value is not None and value.is_floating_point() and value.numel():
                    yield ValueKey(operation, counts[operation], totals[operation], index), name
            counts[operation] += 1

    def fixed_axes(self, call: int, place: ValueKey) -> frozenset[int]:
        """Return the axes of a value whose size does not depend on the number of tokens, as far as that is known."""
        if self.shorter is None or (name := self.shorter.values[call].get(place)) is None:
            return frozenset()
        shape = self.execution.values[self.values[call][place]].shape
        shorter_shape = self.shorter.execution.values[name].shape
        same = (axis for axis, sizes in enumerate(zip(shape, shorter_shape, strict=False)) if len({*sizes}) == 1)
        return frozenset(same) if len(shape) == len(shorter_shape) else frozenset()

    @cached_property
    def calls_of_sequences(self) -> Mapping[int, tuple[int, int]]:
        """The index of the call that computes a whole sequence, and its row there, by the index of the sequence."""
        return {
            sequence: (index, row)
            for index, call in enumerate(self.plan.calls)
            for row, sequence in enumerate(call.sequences)
        }

    @cached_property
    def known(self) -> frozenset[str]:
        """The values without NaN, which results of operations without a kernel for float64 have."""
        return frozenset(name for name, value in self.execution.values.items() if not value.isnan().any())

    def closeness(self, name: str, relative: float) -> Closeness:
        """Return how far numbers may differ from a value."""
        if name not in self._closeness:
            self._closeness[name] = TensorNumbers(self.execution.values[name]).closeness(relative)
        return self._closeness[name]

    @cached_property
    def _closeness(self) -> dict[str, Closeness]:
        return {}


def _operation(node: Node) -> Operation:
    """Return the module that a node runs in, and its operator."""
    return module_of(node), node.operator.name


def module_of(node: Node) -> str:
    """Return the path in the model of the module that a node runs in, whichever call it is of."""
    return re.sub(r"@\d+$", "", node.module or "").removeprefix(ROOT).removeprefix(".")


def mismatches(reference: PositionedRun, actual: PositionedRun, relative: float) -> Mismatches:
    """Compare the values of a run with those of another one that computes whole sequences in one call.

    Args:
        reference: computes each sequence in one call.
        actual: the run to judge.
        relative: the largest difference, relative to each number (see `TensorNumbers.closeness`); 0 compares bits.

    Returns:
        a `Mismatch`, or None if it is the same, by the name of each value of `actual` that can be compared.
    """
    found: dict[str, Mismatch | None] = {}
    for call, values in zip(actual.plan.calls, actual.values, strict=True):
        for place, name in values.items() if call.is_judged else ():
            for rows in _equal_rows(reference, call):
                whole, _ = reference.calls_of_sequences[call.sequences[rows[0]]]
                reference_name = reference.values[whole].get(place)
                if reference_name is None or reference_name not in reference.known:
                    continue
                compared = reference.execution.values[reference_name], actual.execution.values[name]
                fixed = reference.fixed_axes(whole, place)
                pair = _common_numbers(compared, (reference.plan.calls[whole], call), rows, fixed)
                if pair is not None:
                    mismatch = _mismatch(pair, reference.closeness(reference_name, relative), call, rows)
                    found[name] = found.get(name) or mismatch
    return found


def _equal_rows(reference: PositionedRun, call: PlannedCall) -> list[list[int]]:
    """Return the rows of a call in groups that have the same positions, and whose sequences are in one other call."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, sequence in enumerate(call.sequences):
        key = (reference.calls_of_sequences[sequence][0], *call.positions[row].tolist(), *call.keys[row].tolist())
        groups.setdefault(key, []).append(row)
    return list(groups.values())


@dataclass(frozen=True)
class _ValuePair:
    """The numbers of two values that have to be the same.

    Attributes:
        reference: those of the run that computes whole sequences.
        actual: those of the run to judge, in the same shape.
        has_rows: whether the first axis is that of the sequences.
        axis: the axis of the queries; None if there is none.
        positions: those of the queries.
    """

    reference: torch.Tensor
    actual: torch.Tensor
    has_rows: bool
    axis: int | None
    positions: list[int]


def _common_numbers(
    values: tuple[torch.Tensor, torch.Tensor],
    calls: tuple[PlannedCall, PlannedCall],
    rows: Sequence[int],
    fixed: Collection[int],
) -> _ValuePair | None:
    """Return the numbers that two values share; None if their axes do not show which.

    Args:
        values: that of the reference, and the one to judge.
        calls: the calls that compute them: whole sequences, and some rows and positions of these.
        rows: the rows of the second call that are compared.
        fixed: the axes of the first value that are no axes of tokens.
    """
    whole, call = calls
    reference, actual = _with_equal_axes(*values, whole, call, fixed)
    if reference.dim() != actual.dim():
        return None
    fixed = {axis + reference.dim() - values[0].dim() for axis in fixed}  # the first axis may have become two
    count, length = whole.tokens.shape
    whole_rows = [whole.sequences.index(call.sequences[row]) for row in rows]
    chosen = _rows_of(reference, count, whole_rows), _rows_of(actual, len(call.sequences), rows)
    has_rows = None not in chosen
    if has_rows:
        reference, actual = reference[chosen[0]], actual[chosen[1]]
    elif max(count, len(call.sequences)) > 1:  # rows that can't be told apart
        return None
    first_axis = int(has_rows)
    axes = [at for at in range(first_axis, reference.dim()) if reference.shape[at] == length and at not in fixed]
    if any(reference.shape[axis] != actual.shape[axis] for axis in range(reference.dim()) if axis not in axes):
        return None
    if not axes:  # such as a state, which the last call leaves behind
        is_last = bool(call.keys[rows[0]].max() == length - 1)
        return _ValuePair(reference, actual, has_rows, None, []) if is_last or torch.equal(reference, actual) else None
    positions: list[int] = []
    for axis in reversed(axes):  # so that the positions are those of the first one, which is that of the queries
        indices, positions = _along(actual.shape[axis], call, rows[0], length)
        if not positions:
            return None
        reference = reference.index_select(axis, torch.tensor(positions, device=reference.device))
        actual = actual.index_select(axis, torch.tensor(indices, device=actual.device))
    return _ValuePair(reference, actual, has_rows, axes[0], positions)


def _rows_of(value: torch.Tensor, count: int, rows: Sequence[int]) -> list[int] | None:
    """Return the indices of some rows of a value: all 0 if it is the same for all sequences, None if it has no rows.

    Args:
        value: a value of a call.
        count: the number of sequences of the call.
        rows: the indices of sequences.
    """
    if value.dim() > 1 and value.shape[0] == 1:  # a vector of one number has an axis for tokens, or is a scalar
        return [0] * len(rows)
    return list(rows) if value.dim() and value.shape[0] == count else None


def _with_equal_axes(
    reference: torch.Tensor, actual: torch.Tensor, whole: PlannedCall, call: PlannedCall, fixed: Collection[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two values with an axis for rows and one for tokens, if they have one for both; see `_common_numbers`."""
    (count, length), (rows, queries) = whole.tokens.shape, call.tokens.shape
    if reference.dim() and reference.shape[0] == count * length and 0 not in fixed:
        reference = reference.reshape(count, length, *reference.shape[1:])
        if actual.dim() and actual.shape[0] == rows * queries:
            actual = actual.reshape(rows, queries, *actual.shape[1:])
    if reference.dim() != actual.dim() and reference.dim():  # the shape that the numbers of the call would have there
        shape = [queries if size == length else size for size in reference.shape]
        shape[0] = rows if reference.shape[0] == count else shape[0]
        actual = actual.reshape(shape) if math.prod(shape) == actual.numel() else actual
    return reference, actual


def _along(size: int, call: PlannedCall, row: int, length: int) -> tuple[list[int], list[int]]:
    """Return the indices along an axis of a value of a call that have positions, and those positions.

    The axis has the queries, or the keys: all of them, the last ones (a window), or more (the slots of a static cache).
    """
    queries, keys = call.positions[row].tolist(), call.keys[row].tolist()
    if size == len(queries):
        given = queries
    elif size in (len(keys), call.slots):
        given = keys
    else:
        given = keys[len(keys) - size :] if size < len(keys) else []
    indices = [index for index, position in enumerate(given) if 0 <= position < length]
    return indices, [given[index] for index in indices]


def _mismatch(pair: _ValuePair, closeness: Closeness, call: PlannedCall, rows: Sequence[int]) -> Mismatch | None:
    """Return the first sequence of `rows`, and its first position, with other numbers; None if all are the same."""
    reference, actual = pair.reference, pair.actual
    if closeness.holds(actual, reference):
        return None
    wrong = ~closeness.equal(actual, reference)
    distances = ((actual - reference).abs() / closeness.sizes(reference))[wrong].nan_to_num(nan=torch.inf)
    first = 0
    if pair.has_rows:
        first = int(wrong.reshape(len(rows), -1).any(-1).nonzero()[0])
        wrong = wrong[first : first + 1]
    position = int(call.keys[rows[first]].max())
    if pair.axis is not None:
        along = wrong.movedim(pair.axis, 0).reshape(len(pair.positions), -1).any(-1)
        queries = call.positions[rows[first]]
        earliest = int(queries[queries >= 0].min())  # earlier keys, too, are read for these
        position = max(pair.positions[int(along.nonzero()[0])], earliest)
    return Mismatch(call.sequences[rows[first]], position, float(distances.max()))
