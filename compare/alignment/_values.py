"""Find which values of two executions are the same numbers, on two different inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..common._operators import operator_name
from ._execution import Execution
from ._index import TensorIndex
from ._layout import RELATIVE, Layout, Numbers, has_columns, have_same_rows, solve

_GATHERS = frozenset(
    {"GatherElements", "GatherND", "TopK", "index", "index_add", "index_put", "scatter", "sort", "topk"}
)
_SECOND = 2 * RELATIVE  # on the second input


@dataclass(frozen=True)
class ValueMatch:
    """A value whose numbers are all in a value of the other execution.

    Attributes:
        value: its name.
        source: the name of the other value.
        layout: where its elements are in the other value; None if it has the same rows, or columns of them, in an
            irregular order, as values of routed tokens have.
        whole: whether the two have the same number of elements, each once.
    """

    value: str
    source: str
    layout: Layout | None
    whole: bool


Matches = Mapping[str, tuple[ValueMatch, ...]]


class Side:
    """The values of one execution that can be recognized by their numbers.

    Args:
        execution: the execution.
        second: the execution on other inputs, with the same operations; None if there is none.
    """

    def __init__(self, execution: Execution, second: Execution | None = None) -> None:
        self.execution = execution
        self.second = second if second is not None and _same_operations(execution, second) else None
        numbers = {name: Numbers(value) for name, value in execution.values.items() if value.is_floating_point()}
        self.recognizable = {name: item for name, item in numbers.items() if is_recognizable(item)}

    def numbers(self, name: str) -> Numbers:
        """Return the numbers of a value, recognizable or not."""
        return self.recognizable[name] if name in self.recognizable else Numbers(self.execution.values[name])

    @cached_property
    def gathers(self) -> bool:
        """Whether tokens are routed, so that rows may be in any order."""
        return any(operator_name(node.op) in _GATHERS for node in self.execution.graph.nodes)

    @cached_property
    def index(self) -> TensorIndex:
        """Finds values by their numbers."""
        return TensorIndex(self.recognizable)


def _same_operations(first: Execution, second: Execution) -> bool:
    return [(node.name, node.op) for node in first.graph.nodes] == [(node.name, node.op) for node in second.graph.nodes]


def is_recognizable(numbers: Numbers) -> bool:
    """Whether a value has enough different numbers to be recognized by them."""
    return numbers.tensor.numel() > 1 and numbers.bounds[0] < numbers.bounds[1]


def match_values(
    side: Side, other: Side, numbers: Mapping[str, Numbers] | None = None
) -> dict[str, tuple[ValueMatch, ...]]:
    """Return where the values of an execution are in another one, on both inputs.

    Args:
        side: the execution whose values are looked for.
        other: the execution in which they are looked for.
        numbers: the values to look for, by name; None for all recognizable ones of `side`, which are checked on the
            second input, too.
    """
    found = {}
    for name, value in (side.recognizable if numbers is None else numbers).items():
        matches = [
            match
            for match in _candidates(name, value, other)
            if numbers is not None or _holds_again(match, side, other)
        ]
        if matches:
            found[name] = tuple(matches)
    return found


def _candidates(name: str, value: Numbers, other: Side) -> list[ValueMatch]:
    found = []
    for candidate in other.index.equal_sized(value):
        if (layout := solve(value, other.recognizable[candidate])) is not None:
            found.append(ValueMatch(name, candidate, layout, whole=True))
        elif other.gathers and have_same_rows(value, other.recognizable[candidate]):
            found.append(ValueMatch(name, candidate, None, whole=True))
    same = [match for match in found if match.layout is not None and match.layout.is_contiguous]
    found = same or found
    # A value may also be a part of another one, from which the equal one was moved or joined.
    sources = {match.source for match in found}
    for candidate in other.index.holders(value):
        source = other.recognizable[candidate]
        layout = None if candidate in sources else solve(value, source)
        if layout is not None or (candidate not in sources and other.gathers and has_columns(value, source)):
            found.append(ValueMatch(name, candidate, layout, whole=False))
    return found


def _holds_again(match: ValueMatch, side: Side, other: Side) -> bool:
    """Whether a match holds on the second input; one whose shape depends on the input can't be checked there."""
    if side.second is None or other.second is None:
        return True
    value, source = Numbers(side.second.values[match.value]), Numbers(other.second.values[match.source])
    if match.layout is None:
        if len(value.tensor) != len(source.tensor):
            return True
        return (have_same_rows if match.whole else has_columns)(value, source, _SECOND)
    if (
        value.tensor.numel() != match.layout.numel
        or source.tensor.numel() != other.recognizable[match.source].tensor.numel()
    ):
        return True
    if match.layout.holds(value, source, _SECOND):
        return True
    return match.whole and other.gathers and have_same_rows(value, source, _SECOND)  # other tokens, in another order
