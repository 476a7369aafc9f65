"""`Finding`: what a comparison says of one value, as far as a picture shows it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from filch.steal import Statistics


@dataclass(frozen=True)
class Histogram:
    """How the finite numbers of a tensor and of its reference are spread, over the same bins.

    Attributes:
        low: the least of all.
        high: the largest.
        expected: how many elements of the reference are in each of the bins, which are equally wide.
        actual: likewise, of the tensor.
    """

    low: float
    high: float
    expected: tuple[int, ...]
    actual: tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """What a comparison says of one value.

    Attributes:
        status: `same`, `different`, `shape or dtype differs`, `no value` or `not mapped`.
        call: which call of the model.
        kind: what the value is to its graph: `node`, `fused`, `inserted`, `constant` or `output`.
        error: the largest harmonic error; None if there is none.
        first: whether it is the first that is not what it should be.
        text: how far it is from its reference, or why that is not known, in words.
        evidence: where the reference is from; `""` if there is none.
        measures: all that was measured, by name.
        seconds: how long the node takes; None if that was not asked for.
        expected: what the reference is like; None if that was not asked for.
        actual: what the value is like; likewise.
        histogram: how both are spread; likewise.
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
    expected: Statistics | None = None
    actual: Statistics | None = None
    histogram: Histogram | None = None

    @property
    def judged(self) -> bool:
        """Whether there was something to hold it against."""
        return self.status in ("same", "different", "shape or dtype differs")

    @property
    def diverged(self) -> bool:
        """Whether it is not what it should be."""
        return self.status in ("different", "shape or dtype differs")

    @property
    def weight(self) -> tuple[bool, bool, float]:
        """The sort key for the worst of several findings. Divergence counts first, then doubt, then error."""
        error = 0.0 if self.error is None else math.inf if math.isnan(self.error) else self.error
        return self.diverged, not self.judged, error
