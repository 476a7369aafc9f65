"""One run of a graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from filch.export import Graph
from filch.export.backends import Compiled, Stage

from ..results._rows import Row
from ._lower_precision import Lowered

# The name of a value, its tensor, and the largest difference of each element between repeated runs; None for one run.
ObservedValue = tuple[str, torch.Tensor, torch.Tensor | None]
OnRow = Callable[[Row, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Run:
    """One instrumented run of a graph.

    Attributes:
        call: the index of the model's call.
        stage: the stage of the graph.
        compiled: the compiled program.
        inputs: the graph's inputs, by name.
        outputs: the outputs of the plain run, by name.
        seconds: the duration of each node by its name, if profiling is enabled.
        lowered: the values that correspond to the model's, if lower precision is allowed.
        statistics: whether rows have statistics of each value and its reference.
        on_row: see `CompareOptions`.
    """

    call: int
    stage: Stage
    compiled: Compiled
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    seconds: Mapping[str, float] = field(default_factory=dict)
    lowered: Lowered | None = None
    statistics: bool = False
    on_row: OnRow | None = None

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.compiled.graph

    def exported_name(self, name: str) -> str:
        """Return the name of the exported value that a value equals, up to rounding if lower precision is allowed."""
        exported_name = self.compiled.exported_name(name)
        return (
            exported_name if self.lowered is None or exported_name != name else self.lowered.model_names.get(name, name)
        )
