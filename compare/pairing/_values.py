"""Find which values of two executions are the same numbers, on two different inputs.

The values of one execution, a side, are looked for in those of the other one, the sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from ..layouts._closeness import LARGEST, RELATIVE
from ..layouts._layout import Layout
from ..layouts._numbers import TensorNumbers
from ..layouts._solve import TensorIndex, has_columns, have_same_rows, holds, solve, usual_layout
from ..runs._execution import Execution, Tensors
from ._rounding import RoundingLevels

_COARSE = 2e-4  # differences above this leave too few fibers that can be told apart
_SECOND = 2 * RELATIVE  # largest difference on the second input


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


class ValueSide:
    """The values of one execution that can be recognized by their numbers.

    Args:
        execution: the execution.
        second: the execution on other inputs, with the same operations; None if there is none.
        levels: tells which numbers of the other side, of a lower precision, are values of this one; None if both ran in
            float64.
    """

    def __init__(
        self, execution: Execution, second: Execution | None = None, levels: RoundingLevels | None = None
    ) -> None:
        self.execution = execution
        self.levels = levels
        self.second = second if second is not None and _same_operations(execution, second) else None
        numbers = {name: TensorNumbers(value) for name, value in execution.values.items() if value.is_floating_point()}
        self.recognizable = {name: item for name, item in numbers.items() if is_recognizable(item)}

    @cached_property
    def gathers(self) -> bool:
        """Whether tokens are routed, so that rows may be in any order."""
        return any(node.operator.routing for node in self.execution.graph.nodes)

    @cached_property
    def index(self) -> TensorIndex:
        """Finds values by their numbers."""
        return TensorIndex(self.recognizable, exceptions=self._tolerances)

    def relative(self, name: str) -> float:
        """Return the largest difference of a number of a value, relative to it (see `TensorNumbers.closeness`)."""
        return self._tolerances.get(name, RELATIVE)

    @cached_property
    def coarsest(self) -> float:
        """The largest of these differences."""
        return max(self._tolerances.values(), default=RELATIVE)

    @cached_property
    def _tolerances(self) -> Mapping[str, float]:
        """The largest differences of values by name, where the other side has a lower precision."""
        return {} if self.levels is None else {name: self.levels.relative(name) for name in self.recognizable}


def _same_operations(first: Execution, second: Execution) -> bool:
    """Whether two runs consist of the same operations."""
    return [(node.name, node.op) for node in first.graph.nodes] == [(node.name, node.op) for node in second.graph.nodes]


def is_recognizable(numbers: TensorNumbers) -> bool:
    """Whether a value has enough different numbers to be recognized by them."""
    return numbers.tensor.numel() > 1 and numbers.bounds[0] < numbers.bounds[1]


def match_values(
    side: ValueSide,
    sources: ValueSide,
    numbers: Mapping[str, TensorNumbers] | None = None,
    known: Matches | None = None,
) -> dict[str, tuple[ValueMatch, ...]]:
    """Return where the values of an execution are in another one, on both inputs.

    Args:
        side: the execution whose values are looked for.
        sources: the execution in which they are looked for.
        numbers: the values to look for, by name; None for all recognizable ones of `side`, which are checked on the
            second input, too.
        known: matches that were found before, which are not looked for again if both values can still be recognized.
    """
    found = {}
    for name, value in (side.recognizable if numbers is None else numbers).items():
        matches = [match for match in (known or {}).get(name, ()) if match.source in sources.recognizable]
        if not matches:
            matches = [
                match
                for match in _candidates(name, value, sources, side.relative(name))
                if numbers is not None or (_holds_again(match, side, sources) and _is_rounding(match, side, sources))
            ]
        if matches:
            found[name] = tuple(matches)
    return found


def _candidates(name: str, value: TensorNumbers, sources: ValueSide, relative: float) -> list[ValueMatch]:
    """Return where a value is in others on the first input: equal values, and larger ones of which it is a part.

    Of equal values, those in the same order displace those in another one.

    Args:
        name: the name of the value.
        value: its numbers.
        sources: the values to look in.
        relative: the largest difference that precision allows the value.
    """

    def solved(source: str) -> Layout | None:
        return solve(value, sources.recognizable[source], max(relative, sources.relative(source)))

    if max(relative, sources.coarsest) > _COARSE:
        return _coarse_candidates(name, value, sources, relative)
    found = []
    for candidate in sources.index.equal_sized(value, relative):
        layout = solved(candidate)
        if layout is not None or (sources.gathers and have_same_rows(value, sources.recognizable[candidate])):
            found.append(ValueMatch(name, candidate, layout, whole=True))
    same = [match for match in found if match.layout is not None and match.layout.is_contiguous]
    found = same or found
    # A value may also be a part of another one, from which the equal one was moved or joined.
    matched = {match.source for match in found}
    for candidate in (item for item in sources.index.holders(value, relative) if item not in matched):
        layout = solved(candidate)
        if layout is not None or (sources.gathers and has_columns(value, sources.recognizable[candidate])):
            found.append(ValueMatch(name, candidate, layout, whole=False))
    return found


def _coarse_candidates(name: str, value: TensorNumbers, sources: ValueSide, relative: float) -> list[ValueMatch]:
    """Return where a value of a low precision may be: its fibers can't be told apart, so usual orders are tried."""
    found = []
    for source, numbers in sources.recognizable.items():
        layout = usual_layout(value, numbers, max(relative, sources.relative(source)))
        if layout is not None:
            found.append(ValueMatch(name, source, layout, whole=layout.numel == numbers.tensor.numel()))
    return [match for match in found if match.whole] or found


def _is_rounding(match: ValueMatch, side: ValueSide, sources: ValueSide) -> bool:
    """Whether rounding explains how far a match is from float64."""
    if match.layout is None:
        return side.levels is None and sources.levels is None
    if sources.levels is not None:
        return sources.levels.explain(match.source, match.value, match.layout, whole_array=True)
    return side.levels is None or side.levels.explain(match.value, match.source, match.layout, whole_array=False)


def _holds_again(match: ValueMatch, side: ValueSide, sources: ValueSide) -> bool:
    """Whether a match holds on the second input; one whose shape depends on the input can't be checked there."""
    if side.second is None or sources.second is None:
        return True
    value, source = TensorNumbers(side.second.values[match.value]), TensorNumbers(sources.second.values[match.source])
    have_rows = have_same_rows if match.whole else has_columns
    if match.layout is None:
        return len(value.tensor) != len(source.tensor) or have_rows(value, source, _SECOND)
    sizes = match.layout.numel, sources.recognizable[match.source].tensor.numel()
    if sizes != (value.tensor.numel(), source.tensor.numel()) or holds(match.layout, value, source, _SECOND):
        return True
    return sources.gathers and have_rows(value, source, _SECOND)  # of other tokens, in another order


def matched_values(matches: Matches, reference: Tensors) -> dict[str, torch.Tensor]:
    """Return the numbers of A at the places of matches, by the names of the values of B."""
    return {
        match.value: match.layout.select(reference[match.source])
        for found in matches.values()
        for match in found
        if match.layout is not None and match.layout.last < reference[match.source].numel()
    }


def equal_values(exact: Tensors, actual: Tensors) -> dict[str, torch.Tensor]:
    """Return numbers in the shapes of the values of B whose numbers they are but for rounding.

    Args:
        exact: the numbers by the names of values of B.
        actual: the values of B.
    """
    found = {}
    for name, item in exact.items():
        value = actual[name]
        if item.numel() == value.numel():  # else rows of other tokens
            number = item.reshape(value.shape)
            if TensorNumbers(number).closeness(2 * RELATIVE).holds(value, number):
                found[name] = torch.where(value.abs() < LARGEST, number, value)
    return found
