"""Compile a program for each stage, and prepare what does not change from call to call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch

from filch.export import BackendError, Graph, Node, Program
from filch.export.backends import Backend, Compiled, Stage
from filch.export.backends._unrolled import with_inlined
from filch.steal import Records, phase

from ..common._errors import CompareError
from ..judging._lower_precision import Lowered
from ..judging._run import Run
from ..metrics._limits import Limits
from ..provenance._provenance import NodeProvenance
from ..references._references import References
from ..references._renamed import RenamedOriginal
from ..results._rows import NodeOutcome
from ..runs._evaluation import Float64Evaluator
from ._node_outcomes import node_outcomes
from ._options import CompareOptions

T = TypeVar("T")


@dataclass(frozen=True)
class Prepared:
    """A compiled program, ready to be compared with calls of the model.

    Attributes:
        records: the capture or dump.
        program: the program.
        written: the program as it was before its graphs in graphs were unrolled; what the backend optimizes.
        backend: the backend that runs it.
        options: the options of the comparison.
        compiled: the compiled program of each stage.
        lowered: for each stage, the values that correspond to the model's if lower precision is allowed; else None.
        wanted: for each stage, the exported names of the values that have rows.
        limits: the tolerance of each value.
        references: the source of references.
        float64: evaluates the program in float64; None if values are judged by tolerance.
        provenance: the exported nodes that a compiled node computes; None without a compiled graph.
        failed: why stages are missing.
    """

    records: Records
    program: Program
    written: Program
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
        """The graph of each stage; the nodes of the compiled graph have their origins."""
        graphs: dict[Stage, Graph] = {stage: compiled.graph for stage, compiled in self.compiled.items()}
        return graphs if self.provenance is None else {**graphs, "compiled": self.provenance.annotated()}

    @cached_property
    def outcomes(self) -> tuple[NodeOutcome, ...]:
        """The outcomes of the exported nodes in the compiled graph."""
        return () if self.provenance is None else node_outcomes(self.provenance)

    def program_of(self, stage: Stage) -> Program:
        """Return the program that a stage was compiled from."""
        return self.written if stage == "compiled" else self.program

    def provenance_of(self, stage: Stage) -> NodeProvenance | None:
        """Return the exported nodes that the nodes of a stage compute; None for the exported graph itself."""
        return self.provenance if stage == "compiled" else None

    def computes(self, stage: Stage) -> Callable[[Node], Sequence[Node]]:
        """Return the function from a node of a stage's graph to the exported nodes that it computes."""
        provenance = self.provenance_of(stage)
        return (lambda node: (node,)) if provenance is None else provenance.of

    def constant(self, name: str) -> torch.Tensor | None:
        """Return a constant of the exported graph by its name; None for any other value."""
        tensor = self.program.constant(name)
        # What a node `Constant` returns is a constant, too.
        number = None if tensor is not None or self.provenance is None else self.provenance.redundant.number(name)
        return tensor if number is None else torch.tensor(float(number))


def prepare(
    records: Records, program: Program, backend: Backend, options: CompareOptions, *, written: Program | None = None
) -> Prepared:
    """Compile a program for each stage.

    Args:
        records: see `Prepared`.
        program: see `Prepared`.
        backend: see `Prepared`.
        options: see `Prepared`.
        written: see `Prepared`; None is `program`.

    Raises:
        BackendError: the backend can compile it for no stage.
        CompareError: the backend does not support the options, or the exported program is missing.
    """
    options.check_backend(backend)
    compiled: dict[Stage, Compiled] = {}
    failed: list[str] = []
    written = written or program
    for stage in options.stages:
        optimize = stage == "compiled"
        compile_stage = partial(backend.compile, written if optimize else program, optimize=optimize)
        with phase(f"{stage} graph: compiling"):
            compiled_stage = attempt(compile_stage, failed, required=not compiled)
        if compiled_stage is not None:
            inlines = optimize and written is not program
            compiled[stage] = with_inlined(compiled_stage, program.graph) if inlines else compiled_stage
    lower = options.lower_precision
    lowered: dict[Stage, Lowered | None] = {}
    wanted: dict[Stage, frozenset[str]] = {}
    for stage, item in compiled.items():
        lowered[stage] = Lowered.of(item.graph, program) if lower else None
        run = Run(0, stage, item, {}, {}, lowered=lowered[stage])
        # Constants have no rows: with folded weights among them, every multiplication by a weight would be replayed.
        wanted[stage] = frozenset(map(run.exported_name, (*run.graph.producer, *run.graph.outputs)))
    every = frozenset[str]().union(*wanted.values())
    return Prepared(
        records,
        program,
        written,
        backend,
        options,
        compiled,
        lowered,
        wanted,
        Limits(program.graph, options.tolerance, lower_precision=lower, same_weights=_same_weights(program)),
        References(records, program, wanted=every, buffer=options.buffer, lower_precision=lower),
        _float64_evaluator(program, options),
        NodeProvenance(program.graph, compiled["compiled"]) if "compiled" in compiled else None,
        tuple(failed),
    )


def _same_weights(program: Program) -> frozenset[str]:
    """Return the names of the weights that are known to be those of the reference, of a program from another tool."""
    original = program.original
    return original.same_weights if isinstance(original, RenamedOriginal) else frozenset()


def _float64_evaluator(program: Program, options: CompareOptions) -> Float64Evaluator | None:
    """Return what evaluates the program in float64; None if a tolerance was given or the exported program is missing.

    Raises:
        CompareError: it is missing, although `every_node` requires it.
    """
    if options.by_tolerance:
        return None
    try:
        return Float64Evaluator(program)
    except CompareError:
        if options.every_node:
            raise
        return None


def attempt(run: Callable[[], T], failed: list[str], *, required: bool) -> T | None:
    """Return the result of `run`; append a `BackendError` to `failed` and return None unless `required`."""
    try:
        return run()
    except BackendError as error:
        if required:
            raise
        failed.append(str(error))
        return None
