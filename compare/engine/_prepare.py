"""Compile a program for each stage, and prepare what does not change from call to call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch

from filch.export import BackendError, Graph, Node, Program
from filch.export.backends import Backend, Compiled, Stage
from filch.steal import Records

from ..float64 import Float64Evaluator
from ..metrics._limits import Limits
from ..provenance._provenance import NodeProvenance
from ..references._references import References
from ..results._rows import NodeOutcome
from ._lower_precision import Lowered
from ._node_outcomes import node_outcomes
from ._options import CompareOptions
from ._run import Run

T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """A program on a backend, ready to be compared with one call of the model after the other.

    Attributes:
        records: the capture or dump.
        program: the program.
        backend: what runs it.
        options: how it is compared.
        compiled: what the backend made of the program, by stage.
        lowered: by stage, what stands for the model's values where a lower precision is allowed; else None.
        wanted: by stage, the names of the exported values that its rows are about.
        limits: the tolerance of each value.
        references: where reference values come from.
        float64: what evaluates the program in float64; None where the tolerance judges.
        provenance: which exported nodes a compiled node computes; None without a compiled graph.
        failed: why a stage is missing.
    """

    records: Records
    program: Program
    backend: Backend
    options: CompareOptions
    compiled: Mapping[Stage, Compiled]
    lowered: Mapping[Stage, Lowered | None]
    wanted: Mapping[Stage, frozenset[str]]
    limits: Limits
    references: References
    float64: Float64Evaluator | None
    provenance: NodeProvenance | None
    failed: tuple[str, ...]

    @cached_property
    def graphs(self) -> dict[Stage, Graph]:
        """The graphs that run, by stage; the nodes of the compiled one name those that they compute."""
        made: dict[Stage, Graph] = {stage: compiled.graph for stage, compiled in self.compiled.items()}
        return made if self.provenance is None else {**made, "compiled": self.provenance.annotated()}

    @cached_property
    def outcomes(self) -> tuple[NodeOutcome, ...]:
        """What became of the exported nodes in the compiled graph."""
        return () if self.provenance is None else node_outcomes(self.provenance)

    def provenance_of(self, stage: Stage) -> NodeProvenance | None:
        """Which exported nodes the nodes of a stage compute; None for the exported graph itself."""
        return self.provenance if stage == "compiled" else None

    def computes(self, stage: Stage) -> Callable[[Node], Sequence[Node]]:
        """What gives the exported nodes that a node of a stage's graph computes."""
        provenance = self.provenance_of(stage)
        return (lambda node: (node,)) if provenance is None else provenance.of

    def constant(self, name: str) -> torch.Tensor | None:
        """Return a constant of the exported graph by its name; None for any other value."""
        tensor = self.program.constant(name)
        number = None if tensor is not None or self.provenance is None else self.provenance.redundant.number(name)
        return tensor if number is None else torch.tensor(float(number))


def prepare(records: Records, program: Program, backend: Backend, options: CompareOptions) -> Prepared:
    """Compile a program for each stage.

    Raises:
        BackendError: the backend can compile it for no stage.
        CompareError: the backend can't do what the options ask for, or the exported program is missing.
    """
    options.check_backend(backend)
    compiled: dict[Stage, Compiled] = {}
    failed: list[str] = []
    for stage in options.stages:
        compile_stage = partial(backend.compile, program, optimize=stage == "compiled")
        made = attempt(compile_stage, failed, required=not compiled)
        if made is not None:
            compiled[stage] = made
    lower = options.lower_precision
    lowered: dict[Stage, Lowered | None] = {}
    wanted: dict[Stage, frozenset[str]] = {}
    for stage, made in compiled.items():
        lowered[stage] = Lowered.of(made.graph, program) if lower else None
        wanted[stage] = _wanted(Run(0, stage, made, {}, {}, lowered=lowered[stage]))
    every = frozenset[str]().union(*wanted.values())
    return Prepared(
        records,
        program,
        backend,
        options,
        compiled,
        lowered,
        wanted,
        Limits(program.graph, options.tolerance, lower_precision=lower),
        References(records, program, wanted=every, buffer=options.buffer, lower_precision=lower),
        None if options.truth is None else Float64Evaluator(program),
        NodeProvenance(program.graph, compiled["compiled"]) if "compiled" in compiled else None,
        tuple(failed),
    )


def attempt(run: Callable[[], T], failed: list[str], *, required: bool) -> T | None:
    """Return what `run` returns; where the backend refuses, note why in `failed` unless it is `required`."""
    try:
        return run()
    except BackendError as error:
        if required:
            raise
        failed.append(str(error))
        return None


def _wanted(run: Run) -> frozenset[str]:
    """The values that a graph's rows are about, by their exported names.

    Not its constants: an optimiser's folded weights would have every multiplication by them derived.
    """
    return frozenset(map(run.exported_name, (*run.graph.producer, *run.graph.outputs)))
