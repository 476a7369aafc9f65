"""A program on a backend, ready to be held against one call of the model after the other."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch

from filch.export import BackendError, Graph, Node, Program, value_sizes
from filch.export.backends import Backend, Compiled, Observes, Profiles, Refers, Should, Stage, isolate
from filch.steal import Records

from ..common._complex import complex_as_real
from ..common._errors import CompareError
from ..float64 import Float64Evaluator, Float64Values
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import Tolerance
from ..provenance._provenance import NodeProvenance
from ..references._inputs import CapturedCall, cast_inputs, cast_notes
from ..references._references import Reference, ReferenceResolver, References, captured_tensors, without_random
from ..results._rows import ModuleRow, NodeOutcome, Operator, Row
from ._allowances import Allowances
from ._float64_checker import Float64Checker
from ._interface import exchanged_output
from ._isolated_nodes import IsolatedInputs, IsolatedNodes
from ._lower_precision import Lowered
from ._modules import Modules, result_references
from ._node_outcomes import node_outcomes
from ._operators import operators_of
from ._random import Draws
from ._run import Run
from ._value_comparator import ValueComparator, allowances_of, in_order, with_covered

T = TypeVar("T")
_UNEXPLAINED = "run undisturbed, the {} graph gives other results (by up to {}): its rows do not explain these"
_COPIES = 4  # float64 takes twice the room, and each value is had with noise, too
Observed = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class CompareOptions:
    """How a comparison is made: see `compare`."""

    stages: tuple[Stage, ...]
    tolerance: float | Tolerance | None
    lower_precision: bool
    profile: bool
    statistics: bool
    buffer: int
    truth: bool = False
    repeats: int = 1


@dataclass(frozen=True)
class CallResult:
    """What there is to say of one call."""

    rows: list[Row]
    modules: list[ModuleRow]
    operators: tuple[Operator, ...]
    observer_effect: Difference | None


class Comparison:
    """Compiles a program for each stage, and compares what it computes call by call.

    Attributes:
        failed: what is missing from the comparison.
        exchanged: what the numbers of a foreign program's outputs say of their order, if it is wrong.
    """

    def __init__(self, held: Records, given: Program, engine: Backend, how: CompareOptions) -> None:
        if how.profile and not isinstance(engine, Profiles):
            raise CompareError(f"backend {engine.name!r} can't say how long a node takes")
        self._held = held
        self._given = given
        self._graph = given.graph
        self._engine = engine
        self._how = how
        self._limits = Limits(self._graph, how.tolerance, lower_precision=how.lower_precision)
        self.failed: list[str] = []
        self.exchanged: dict[str, None] = {}
        self._cast: dict[str, None] = {}
        self._noted: dict[str, None] = {}
        self._made: dict[Stage, Compiled] = {}
        for stage in how.stages:
            made = self._tried(partial(engine.compile, given, optimize=stage == "compiled"), needed=not self._made)
            if made is not None:
                self._made[stage] = made
        self._lowered = {
            stage: Lowered.of(made.graph, given) if how.lower_precision else None for stage, made in self._made.items()
        }
        still = (Run(0, stage, made, {}, {}, lowered=self._lowered[stage]) for stage, made in self._made.items())
        self._asked = {run.stage: _asked(run) for run in still}
        asked = frozenset().union(*self._asked.values())
        self._references = References(held, given, wanted=asked, buffer=how.buffer, lower_precision=how.lower_precision)
        self._truths = Float64Evaluator(given) if how.truth else None
        compiled = self._made.get("compiled")
        self._origins = None if compiled is None else NodeProvenance(self._graph, compiled)

    @property
    def notes(self) -> list[str]:
        """What came up on the way."""
        allowed = ["values of a lower precision were allowed"] if self._how.lower_precision else []
        return [
            *allowed,
            *self._noted,
            *self._references.notes,
            *self._cast,
            *(note for made in self._made.values() for note in made.notes),
        ]

    @property
    def made(self) -> Mapping[Stage, Compiled]:
        """What the backend made of the program, by stage."""
        return self._made

    @cached_property
    def graphs(self) -> dict[Stage, Graph]:
        """The graphs that ran, by stage."""
        made: dict[Stage, Graph] = {stage: compiled.graph for stage, compiled in self._made.items()}
        return made if self._origins is None else {**made, "compiled": self._origins.drawn()}

    @cached_property
    def outcomes(self) -> tuple[NodeOutcome, ...]:
        """What became of the exported nodes in the compiled graph."""
        return () if self._origins is None else node_outcomes(self._origins)

    def of(self, call: CapturedCall) -> CallResult:
        """Run the program on what one call was given, and judge every value."""
        self._count_results(call)
        modules = Modules(self._held, self._given, call, self._limits)
        rows: list[Row] = []
        effects: list[Difference | None] = []
        sources = self._sources(call, *self._made)
        truth = self._truth(call, *self._made)
        for stage in self._made:
            sources = sources if sources.fully_cached else self._sources(call, stage)
            truth = truth if truth is None or truth.fully_cached else self._truth(call, stage)
            judged = self._tried(partial(self._judged, stage, call, sources, modules, truth), needed=not rows)
            if judged is not None:
                rows += judged[0]
                effects.append(judged[1])
                if judged[1] is not None and stage != [*self._made][-1]:
                    self._noted[_UNEXPLAINED.format(stage, judged[1].problem or f"{judged[1].error_max:.1e}")] = None
        # What the observer does to the graph that really runs is what counts: where there is one, it comes last.
        return CallResult(rows, modules.rows, operators_of(self._given, call, rows), effects[-1])

    def _judged(
        self,
        stage: Stage,
        call: CapturedCall,
        sources: ReferenceResolver,
        modules: Modules,
        truth: Float64Values | None,
    ) -> tuple[list[Row], Difference | None]:
        spreads: dict[str, torch.Tensor] = {}
        run = self._run(stage, call, spreads)
        self._check_order(call, run)
        draws = self._draws(run)
        observed = self._repeated(partial(self._observed, run, draws, sources), spreads)
        if not modules.is_resolved:  # which values are modules' has to be known before any is judged
            values = dict(observed)
            modules.infer({**call.inputs, **values})
            observed = values.items()
        sources.set_preferred(without_random(modules.references(), self._given.unpredictable))
        rounding = None if truth is None else self._rounding(run, truth)
        judge = ValueComparator(
            run, sources, self._origins_of(stage), self._limits, modules, rounding, self._allowances(run), draws
        )
        rows = judge.rows(observed)
        self._note_problem(rounding)
        if self._truths is not None:
            fed = IsolatedInputs(run, rows, sources if sources.fully_cached else self._sources(call, stage))
            rounding = self._rounding(run, self._truths.alone(run.inputs, fed.known), fed.cut)
            computes = self._computes(stage)
            local = IsolatedNodes(
                run, rows, fed, rounding, self._allowances(run), self._measure, computes, draws.unjudged
            )
            rows = self._with_local(local, run, rows, fed, spreads)
            self._note_problem(rounding)
        origins = self._origins_of(stage)
        return rows if origins is None else with_covered(rows, run.graph, origins), judge.observer_effect

    def _with_local(
        self, local: IsolatedNodes, run: Run, rows: list[Row], fed: IsolatedInputs, spreads: dict[str, torch.Tensor]
    ) -> list[Row]:
        """The rows, with what each node makes of what it should be given."""
        try:
            return local.rows(self._repeated(partial(self._isolated, run, fed.given), spreads))
        except BackendError as error:
            self._noted[f"{run.stage} nodes were not run by themselves: {error}"] = None
            return rows

    def _isolated(self, run: Run, given: Should) -> Observed:
        optimize = run.stage == "compiled"
        return isolate(
            self._engine, self._given, run.made, run.inputs, given, optimize=optimize, buffer=self._how.buffer
        )

    def _draws(self, run: Run) -> Draws:
        return Draws(run, self._given.unpredictable, self._computes(run.stage))

    def _note_problem(self, rounding: Float64Checker | None) -> None:
        if rounding is not None and rounding.problem:
            self._noted[f"the tolerance judges where float64 does not: {rounding.problem}"] = None

    def _measure(self, row: Row, expected: torch.Tensor, actual: torch.Tensor, magnitude: float) -> Difference:
        tolerance = None if row.difference is None else row.difference.tolerance
        return compare_tensors(expected, actual, tolerance=tolerance, magnitude=magnitude)

    def _allowances(self, run: Run) -> Allowances:
        return allowances_of(run, self._origins_of(run.stage), self._constant)

    def _computes(self, stage: Stage) -> Callable[[Node], Sequence[Node]]:
        """Gives the exported nodes that a node of a stage's graph computes."""
        origins = self._origins_of(stage)
        return (lambda node: (node,)) if origins is None else origins.of

    def _rounding(self, run: Run, truth: Float64Values, cut: Collection[str] = frozenset()) -> Float64Checker:
        # What runs may be another program than the one that was given.
        graph = run.graph if self._origins_of(run.stage) is None else self._graph
        lower = self._how.lower_precision
        return Float64Checker(truth, run, self._computes(run.stage), graph, lower_precision=lower, cut=cut)

    def _constant(self, name: str) -> torch.Tensor | None:
        """The numbers of a value that does not depend on the inputs, as far as the exported graph holds it."""
        held = self._given.constant(name)
        number = None if held is not None or self._origins is None else self._origins.redundant.number(name)
        return held if number is None else torch.tensor(float(number))

    def _origins_of(self, stage: Stage) -> NodeProvenance | None:
        return self._origins if stage == "compiled" else None

    def _repeated(self, observe: Callable[[], Observed], spreads: dict[str, torch.Tensor]) -> Observed:
        """The values of a run; while each is looked at, `spreads` has how far it is from itself in further runs."""
        first, *others = (observe() for _ in range(self._how.repeats))
        for (name, tensor), *again in zip(first, *others, strict=True):
            if again:
                spreads[name] = _spread(tensor, [other for _, other in again])
            yield name, tensor
            spreads.pop(name, None)

    def _run(self, stage: Stage, call: CapturedCall, spreads: Mapping[str, torch.Tensor]) -> Run:
        made = self._made[stage]
        inputs = self._fed(made, call)
        outputs = {name: complex_as_real(tensor) for name, tensor in self._engine.run(made, inputs).items()}
        seconds = self._seconds(made, inputs)
        lowered, statistics = self._lowered[stage], self._how.statistics
        return Run(call.index, stage, made, inputs, outputs, seconds, lowered, statistics, spreads)

    def _fed(self, made: Compiled, call: CapturedCall) -> Mapping[str, torch.Tensor]:
        if not self._how.lower_precision:
            return call.inputs
        self._cast |= dict.fromkeys(cast_notes(made.graph, call.inputs))
        return cast_inputs(made.graph, call.inputs)

    def _seconds(self, made: Compiled, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
        if not (self._how.profile and isinstance(self._engine, Profiles)):
            return {}
        return self._engine.profile(made, inputs)

    def _observed(self, run: Run, draws: Draws, sources: ReferenceResolver) -> Observed:
        def should(name: str) -> torch.Tensor | None:
            held = sources.get(name)
            return None if held is None else held.tensor

        if draws.any_drawn and self._given.original is not None:
            try:
                return self._isolated(run, lambda name: draws.given(name, should))
            except BackendError as error:
                self._noted[f"the {run.stage} graph can't be given the reference's random numbers: {error}"] = None
        if isinstance(self._engine, Observes):
            return self._engine.observe(run.made, run.inputs, buffer=self._how.buffer)
        return in_order(run.graph, self._engine.run(run.made, run.inputs, run.graph.producer))

    def _sources(self, call: CapturedCall, *stages: Stage) -> ReferenceResolver:
        sources = self._references.of(call, frozenset().union(*(self._asked[stage] for stage in stages)))
        known = {**self._backend_references(call), **result_references(self._held, self._graph, call)}
        sources.set_fallback(without_random(known, self._given.unpredictable))
        return sources

    def _truth(self, call: CapturedCall, *stages: Stage) -> Float64Values | None:
        if self._truths is None:
            return None
        size = _COPIES * sum(value_sizes(self._graph, call.inputs).values())
        asked = frozenset().union(*(self._asked[stage] for stage in stages))
        return self._truths.of(call.inputs, asked, keep=len(stages) > 1 and size <= self._how.buffer)

    def _backend_references(self, call: CapturedCall) -> dict[str, Reference]:
        """What a backend itself says of the values that only its compiled graph has."""
        if "compiled" not in self._made or not isinstance(self._engine, Refers):
            return {}
        compiled = self._made["compiled"]
        said = self._engine.reference(compiled, self._fed(compiled, call))
        random = self._random_in(compiled.graph)  # it was computed from other random numbers than these would be
        return {
            name: Reference(complex_as_real(tensor), "derived") for name, tensor in said.items() if name not in random
        }

    def _random_in(self, graph: Graph) -> frozenset[str]:
        """The values of a compiled graph that are computed from random numbers."""
        known, random = self._made["compiled"].same, self._given.unpredictable.random
        return graph.computed_from(name for name in graph.known if known.get(name, name) in random)

    def _check_order(self, call: CapturedCall, run: Run) -> None:
        _, given = captured_tensors(self._held, call.keys["", 0])
        if self._given.is_foreign and not self._how.lower_precision and len(given) == len(run.graph.outputs):
            results = [complex_as_real(tensor) for tensor in given.values()]
            if problem := exchanged_output(run.graph.outputs, results, run.outputs):
                self.exchanged[problem] = None

    def _count_results(self, call: CapturedCall) -> None:
        noted = self._given.outputs
        if noted and len(noted) != len(self._graph.outputs):
            return  # which of them are missing or added is said of the interface
        _, given = captured_tensors(self._held, call.keys["", 0])
        if len(given) != len(self._graph.outputs):
            self.failed.append(
                f"the model gives {len(given)} tensors, the graph has {len(self._graph.outputs)} outputs"
            )

    def _tried(self, run: Callable[[], T], *, needed: bool) -> T | None:
        """What a stage gives; if the backend refuses one of two, the other is judged all the same."""
        try:
            return run()
        except BackendError as error:
            if needed:
                raise
            self.failed.append(str(error))
            return None


def _spread(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> torch.Tensor:
    """How far each element is from itself in other runs, at the most, in float64; inf if it is finite in some alone."""
    first = complex_as_real(tensor).double()
    found = torch.zeros_like(first)
    for other in others:
        again = complex_as_real(other).double()
        alike = (again == first) | (again.isnan() & first.isnan())
        distance = (again - first).abs().nan_to_num(nan=math.inf)
        found = torch.maximum(found, torch.where(alike, 0.0, distance))
    return found


def _asked(run: Run) -> frozenset[str]:
    """The values that a graph's rows are about, by their exported names.

    Not its constants: an optimiser's folded weights would have every multiplication by them derived.
    """
    return frozenset(map(run.exported_name, (*run.graph.producer, *run.graph.outputs)))
