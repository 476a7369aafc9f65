"""One run of a graph, whose values are judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from filch.export import Graph
from filch.export.backends import Compiled, Stage

from ._lower_precision import Lowered

# A value's name and tensor, and how far its elements are from themselves in further runs; None if there are none.
ObservedValue = tuple[str, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class Run:
    """One observed run of a graph.

    Attributes:
        call: which call of the model.
        stage: which of its graphs.
        made: what ran.
        inputs: what it was given, by name.
        outputs: the outputs of the undisturbed run, by name.
        seconds: how long each node takes, by its name, where that was asked for.
        lowered: what has the model's values in another precision, where that is allowed.
        statistics: whether to say what each value and its reference are like.
    """

    call: int
    stage: Stage
    made: Compiled
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    seconds: Mapping[str, float] = field(default_factory=dict)
    lowered: Lowered | None = None
    statistics: bool = False

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.made.graph

    def exported_name(self, name: str) -> str:
        """The name that a value has in the exported graph."""
        lowered = self.lowered.same if self.lowered is not None else {}
        return self.made.value_aliases.get(name, lowered.get(name, name))
