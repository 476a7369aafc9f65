"""How many dimensions and elements the results of ONNX operators have at most, by what is known of their inputs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownInputs:
    """What is known of a node's inputs, by position; two more stand for those that are left out.

    Attributes:
        ranks: the largest number of dimensions of each.
        counts: the largest number of elements of each; None if it is not known.
        content: returns upper bounds for the elements of one; empty if they are not known.
        last: the last dimension of each; None if it is not known.
        length: returns the largest number of elements of one that is a shape; 0 if it is not known.
        most: the largest number of dimensions of all, and of the results of subgraphs.
        axes: the attribute of this name; None if there is none.
        keeps: whether a reduction keeps its dimensions, with size 1.
    """

    ranks: Sequence[int]
    counts: Sequence[int | None]
    content: Callable[[int], Sequence[int]]
    last: Sequence[int | None]
    length: Callable[[int], int]
    most: int
    axes: Sequence[int] | None
    keeps: bool

    @property
    def axes_read(self) -> Sequence[int]:
        """The axes of the node, from the attribute or the second input."""
        return self.content(1) if self.axes is None else self.axes


def most_dimensions(op: str, known: KnownInputs) -> int:
    """Return the largest number of dimensions of the outputs of an operator."""
    if op in _RANKS:
        return _RANKS[op](known)
    if op.startswith("Reduce") and not known.keeps:
        return _without_axes(known)
    return known.most + (op in _ONE_MORE)


def most_elements(op: str, known: KnownInputs, rank: int) -> int | None:
    """Return the largest number of elements of the outputs of an operator; None if it is not known.

    Args:
        op: the operator.
        known: what is known of its inputs, of which there is at least one.
        rank: the largest number of dimensions of the outputs.
    """
    counts = known.counts[:-2]  # without those that stand for inputs that are left out
    if op in _COUNTS:
        return _COUNTS[op](known)
    if op in _AS_MANY:
        return counts[0]
    numbers = [count for count in counts if count is not None]
    if len(numbers) == len(counts):
        if op == "Concat":
            return sum(numbers)
        if op == "Gather" and len(numbers) > 1:
            return numbers[1] if known.ranks[0] <= 1 else numbers[0] * numbers[1]  # a vector: a number per index
        if op in _BY_ELEMENT and rank <= 1:
            return max(numbers)
    return _from_constants(op, known)


def _without_axes(known: KnownInputs) -> int:
    """Return the number of dimensions that are left; a negative axis may be equal to one of the others."""
    axes = known.axes_read
    distinct = max(len({axis for axis in axes if axis >= 0}), len({axis for axis in axes if axis < 0}))
    return max(known.most - distinct, 0)


def _of_index(known: KnownInputs) -> int:
    return known.most if known.keeps else max(known.most - 1, 0)  # one axis is reduced


def _of_tuples(known: KnownInputs) -> int:
    last = known.last[1]  # how many dimensions each tuple of indices addresses; the bound is larger if it is not known
    return max(known.ranks[0] + known.ranks[1] - (1 + last if last is not None else 0), 0)


def _with_axes(known: KnownInputs) -> int:
    return known.ranks[0] + (known.length(1) if known.axes is None else len(known.axes))


_RANKS: Mapping[str, Callable[[KnownInputs], int]] = {
    "Shape": lambda _: 1,
    "Size": lambda _: 1,
    "Reshape": lambda known: known.length(1),
    "Expand": lambda known: max(known.length(1), known.ranks[0]),
    "ConstantOfShape": lambda known: known.length(0),
    "Gather": lambda known: max(known.ranks[0] + known.ranks[1] - 1, 0),
    "GatherND": _of_tuples,
    "Unsqueeze": _with_axes,
    "Squeeze": _without_axes,
    "ArgMax": _of_index,
    "ArgMin": _of_index,
}
_COUNTS: Mapping[str, Callable[[KnownInputs], int | None]] = {
    "Shape": lambda known: known.ranks[0],
    "Size": lambda _: 1,
}
_ONE_MORE = frozenset(  # operators whose output may have one dimension more than their inputs
    {"OneHot", "LSTM", "GRU", "RNN", "AffineGrid", "ConcatFromSequence", "STFT", "StringSplit", "Scan", "Loop"}
)
_AS_MANY = frozenset(  # operators whose output has at most as many elements as their first input
    (
        *("Abs", "Cast", "CastLike", "Ceil", "Floor", "Flatten", "Identity", "Neg", "Not", "Reshape", "Round", "Slice"),
        *("Squeeze", "Transpose", "Unsqueeze", "Split", "TopK", "Compress", "CumSum", "Clip", "ReduceProd"),
        *("ReduceMax", "ReduceMin", "ReduceSum", "ArgMax", "ArgMin", "ScatterElements", "ScatterND"),
    )
)
_BY_ELEMENT = frozenset(  # operators that compute each number from numbers at the same place
    {"Add", "And", "Div", "Equal", "Greater", "Less", "Max", "Min", "Mod", "Mul", "Or", "Sub", "Where"}
)


def _from_constants(op: str, known: KnownInputs) -> int | None:
    """Return the number of elements of a node's output if constant inputs determine it; else None."""
    first, count = known.counts[0], len(known.counts) - 2
    if op == "ConstantOfShape":
        return math.prod(shape) if (shape := known.content(0)) else None
    if op == "Range":
        numbers = [known.content(index) for index in range(count)]
        return _in_range(*(item[0] for item in numbers)) if count == 3 and all(numbers) else None
    if op not in _BY_SECOND or first is None or count < 2 or not (second := known.content(1)):
        return None
    return _BY_SECOND[op](first, second, known.ranks[0])


def _in_range(start: int, stop: int, step: int) -> int:
    return max(0, (stop - start) // (step or 1) + 1)


# From the number of elements of the first input, the elements of the second one and the dimensions of the first one.
_BY_SECOND: Mapping[str, Callable[[int, Sequence[int], int], int | None]] = {
    "Expand": lambda first, shape, _: first * max(1, math.prod(shape)),
    "Pad": lambda first, pads, rank: first + sum(pads) if rank <= 1 else None,
    "Tile": lambda first, repeats, _: first * math.prod(repeats),
}
