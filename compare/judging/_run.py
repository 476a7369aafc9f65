"""One run of a graph, and the program that it computes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from filch.export import Graph, Node
from filch.export.backends import Compiled, Stage
from filch.steal._tf32 import Product

from ._lower_precision import Lowered
from ._pair import TensorLookup

# The name of a value, its tensor, and the largest difference of each element between repeated runs; None for one run.
ObservedValue = tuple[str, torch.Tensor, torch.Tensor | None]


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
        lowered: the values that correspond to the model's, if lower precision is allowed; else None.
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
    on_row: Callable[..., None] | None = None

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


@dataclass(frozen=True)
class JudgedProgram:
    """The exported program that a run computes.

    Attributes:
        exported: the exported graph.
        computes: returns the nodes of the exported graph that a node of the run computes.
        constant: returns a constant of the exported graph by its name; None for any other value.
        original: the graph as the model was exported, if it may have been changed since; else None.
        lower_precision: whether lower precision is allowed.
        model_tf32: the products whose factors the model may have rounded to TF32.
        shapes: the shapes of values in the call, by their exported names; those of the run are added. A file need not
            declare them, and sums that long may round more.
    """

    exported: Graph
    computes: Callable[[Node], Sequence[Node]] = lambda node: (node,)
    constant: TensorLookup = lambda _: None
    original: Graph | None = None
    lower_precision: bool = False
    model_tf32: Collection[Product] = frozenset()
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
