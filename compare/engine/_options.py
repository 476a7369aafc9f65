"""The options of a comparison, checked in one place."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from filch.export.backends import Backend, Profiles, ReferenceLookup, Stage

from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..results._rows import Row


@dataclass(frozen=True)
class CompareOptions:
    """The options of a comparison; see `compare` for those that are not listed here.

    Attributes:
        tolerance: the tolerance of values that are judged by one; None depends on the dtype.
        by_tolerance: whether to judge all values by tolerance.
        on_references: called before values are observed with what returns their references, by their names in the
            graph that runs; None for one without.
        on_row: called with each row of a value that has a reference, the value and the reference.

    Raises:
        CompareError: an option is invalid, alone or in combination with others.
    """

    stages: tuple[Stage, ...]
    tolerance: float | Tolerance | None
    lower_precision: bool
    profile: bool
    statistics: bool
    buffer: int
    every_node: bool = False
    repeats: int = 1
    by_tolerance: bool = False
    on_row: Callable[[Row, torch.Tensor, torch.Tensor], None] | None = None
    on_references: Callable[[ReferenceLookup], None] | None = None

    def __post_init__(self) -> None:
        if self.every_node and self.by_tolerance:
            raise CompareError("`every_node` and `tolerance` are mutually exclusive: give one of them")
        if not isinstance(self.repeats, int) or isinstance(self.repeats, bool) or self.repeats < 1:
            raise CompareError(f"repeats must be an integer of at least 1, not {self.repeats!r}")
        if self.repeats > 1 and self.by_tolerance:
            raise CompareError("repeats requires float64 to tell unstable from wrong values: give no tolerance")
        if not isinstance(self.buffer, int) or isinstance(self.buffer, bool) or self.buffer < 1:
            raise CompareError(f"buffer must be an integer of at least 1 (bytes), not {self.buffer!r}")

    def check_backend(self, backend: Backend) -> None:
        """Check that a backend supports the options.

        Raises:
            CompareError: the backend lacks a stage, or can't profile.
        """
        missing = [stage for stage in self.stages if stage not in backend.stages]
        if missing or not self.stages:
            stages = " and ".join(backend.stages)
            raise CompareError(f"backend {backend.name!r} has no {', '.join(missing) or 'such'} graph, it has {stages}")
        if self.profile and not isinstance(backend, Profiles):
            raise CompareError(f"backend {backend.name!r} can't measure the time of a node")
