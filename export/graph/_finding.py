"""`Finding`: the result of comparing one value, for views to display."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from filch.steal import Statistics


@dataclass(frozen=True)
class Histogram:
    """The distributions of the finite elements of a tensor and of its reference, over the same bins.

    Attributes:
        low: the smallest element of both.
        high: the largest element of both.
        expected: the number of the reference's elements in each bin; bins are equally wide.
        actual: the number of the tensor's elements in each bin.
    """

    low: float
    high: float
    expected: tuple[int, ...]
    actual: tuple[int, ...]


@dataclass(frozen=True)
class PositionErrors:
    """How far a value of sequences of tokens is from its reference at each position.

    Attributes:
        errors: the largest difference at each position, relative to the root mean square of the value.
        wrong: the positions at which the value is wrong, in order.
    """

    errors: tuple[float, ...]
    wrong: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finding:
    """The result of comparing one value with its reference.

    Attributes:
        status: `same`, `different`, `shape or dtype differs`, `no value` or `not mapped`. Of a value of one of two
            implementations (`Graph.reference_graph`): the evidence for its places, or what else was found.
        call: which call of the model.
        kind: the role of the value in its graph: `node`, `fused`, `inserted`, `constant` or `output`.
        error: the largest harmonic error; None if there is none.
        first: whether this is the first value that diverged.
        text: the difference from the reference in words, or why there is none.
        evidence: where the reference comes from; `""` if there is none.
        measures: further measures of the difference, by name.
        seconds: the run time of the node; None if it was not measured.
        reference: statistics of the reference; None if they were not computed.
        actual: statistics of the value; None if they were not computed.
        histogram: the distributions of both; None if they were not computed.
        places: the names of the values of the other implementation that have its numbers, and how their elements are
            arranged, `""` if in the same order.
        positions: the same by position; None if the value was not compared by position.
    """

    status: str
    call: int = 0
    kind: str = "node"
    error: float | None = None
    first: bool = False
    text: str = ""
    evidence: str = ""
    measures: Mapping[str, float | int] = field(default_factory=dict)
    seconds: float | None = None
    reference: Statistics | None = None
    actual: Statistics | None = None
    histogram: Histogram | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    positions: PositionErrors | None = None

    @property
    def judged(self) -> bool:
        """Whether the value was compared with a reference."""
        return self.status not in ("no value", "not mapped")

    @property
    def diverged(self) -> bool:
        """Whether the value differs from its reference."""
        # The last three are of values of one of two implementations.
        return self.status in ("different", "shape or dtype differs", "leaves A", "not in B", "contradicted")

    @property
    def weight(self) -> tuple[bool, bool, float]:
        """The sort key of the worst finding: diverged first, then not compared, then the largest error."""
        error = 0.0 if self.error is None else math.inf if math.isnan(self.error) else self.error
        return self.diverged, not self.judged, error
