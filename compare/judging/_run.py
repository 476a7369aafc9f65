"""One run of a graph, the program that it computes, and a value of it to judge."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from filch.export import Graph, Node
from filch.export.backends import Compiled, Stage
from filch.steal._tf32 import Product

from ..float64._verdict import Float64Value, RoundingVerdict
from ..metrics._metrics import Difference
from ..metrics._tolerance import Tolerance
from ._lower_precision import Lowered

TensorLookup = Callable[[str], torch.Tensor | None]
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


@dataclass(frozen=True)
class Pair:
    """A value of a run and what it should be.

    Attributes:
        name: its name in the run.
        exported_name: its name in the exported graph.
        node: the node of the run that computes it.
        tensor: the actual tensor.
        reference: the expected tensor; None is the float64 value, rounded.
        exact: the value in float64; None if there is none.
        spread: the largest difference of each element between repeated runs.
        inputs: returns what the node has read, by name; None for a weight and what is not known.
        observed: whether the value is of the same run as the other ones, or equal to that; a run without
            instrumentation may make other decisions.
        differs: whether the value exceeds the tolerance.
        tolerance: the tolerance of the value.
        measure: returns how far the value of a pair is from a reference, if the tolerance judges values without a
            float64 value; None leaves that to the caller.
        whole: for a node in isolation, the verdict on its value in the whole run.
        is_decision: whether the value may be a decision (see `Decisions`).
        is_rounded: whether the node may round its operands; else the units of the model's dtypes judge it.
        is_hypothetical: whether a rule tries another `exact` and `reference`, which only the rules that compare numbers
            judge.
    """

    name: str
    exported_name: str
    node: Node
    tensor: torch.Tensor
    reference: torch.Tensor | None
    exact: Float64Value | None
    spread: torch.Tensor | None = None
    inputs: TensorLookup = lambda _: None
    observed: bool = True
    differs: bool = False
    tolerance: float | Tolerance | None = None
    measure: Callable[["Pair", torch.Tensor], Difference] | None = None
    whole: RoundingVerdict | None = None
    is_decision: bool = False
    is_rounded: bool = True
    is_hypothetical: bool = False

    @property
    def expected(self) -> torch.Tensor | None:
        """The reference, or the float64 value in the dtype of the value; None if neither is known."""
        if self.reference is not None:
            return self.reference
        if self.exact is None or self.exact.value.is_floating_point() != self.tensor.is_floating_point():
            return None
        return self.exact.value.to(self.tensor.dtype)

    def rounded(self, exact: Float64Value) -> torch.Tensor:
        """Return a float64 value in the model's dtype, because a mask is the lowest number of its dtype."""
        return exact.value.to((self.tensor if self.reference is None else self.reference).dtype)

    def hypothetical(self, exact: Float64Value | None, reference: torch.Tensor | None) -> "Pair":
        """Return the value with another float64 value and reference, to try whether it is right compared with these."""
        return replace(self, exact=exact, reference=reference, is_hypothetical=True)
