"""Run a prepared program on the inputs of one call of the model, and compare every value."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

import torch

from filch.export import BackendError
from filch.export.backends import Compiled, Observes, Profiles, ProvidesReferences, ReferenceLookup, Stage, isolate
from filch.export.graph._sizes import value_sizes
from filch.steal import phase

from ..common._complex import complex_as_real
from ..float64._values import Float64Values, RecordedValues
from ..float64._verdict import RoundingVerdict
from ..judging._compared_numbers import compared_values
from ..judging._facts import RunFacts
from ..judging._judge import Judge
from ..judging._run import JudgedProgram, ObservedValue, Run
from ..metrics._metrics import Difference
from ..references._inputs import CapturedCall, cast_inputs, cast_notes
from ..references._references import captured_results, result_references, without_random
from ..references._resolver import Reference, ReferenceResolver
from ..results._rows import ModelOperation, ModuleRow, Row
from ..runs._evaluation import Float64Evaluator
from ..runs._mode import float64_values
from ._interface import exchanged_output, unjudged_type
from ._isolated_nodes import IsolatedInputs, compare_isolated_nodes, isolated_verdicts
from ._modules import ModuleRows
from ._prepare import Prepared, attempt
from ._random import RandomValues
from ._value_comparator import ValueComparator, in_order
from ._work import counted, value_work

_OBSERVER_EFFECT_NOTE = (
    "without instrumentation the {} graph's outputs differ by up to {}; the rows describe the instrumented run"
)
_FLOAT64_MEMORY = 4  # times that of float32: elements are twice as large, and each value is also computed with noise


@dataclass(frozen=True)
class CallResult:
    """The results of comparing one call of the model.

    Attributes:
        rows: one row per value.
        modules: one row per tensor that a module received or returned.
        operators: the model's own operations.
        observer_effect: the difference between the outputs of the instrumented and the plain run; None if equal.
        notes: remarks for the reader of the report.
        failed: why results are missing.
        exchanged: outputs of a foreign program that are in another order than the model's.
    """

    rows: list[Row]
    modules: list[ModuleRow]
    operators: tuple[ModelOperation, ...]
    observer_effect: Difference | None
    notes: tuple[str, ...]
    failed: tuple[str, ...]
    exchanged: tuple[str, ...]


def compare_call(prepared: Prepared, call: CapturedCall) -> CallResult:
    """Run a program on the inputs of one call of the model, and compare every value with its reference.

    Raises:
        BackendError: the backend can run no stage.
    """
    return _CallComparison(prepared, call).result()


class _CallComparison:
    """Collects notes and failures while one call is compared, stage by stage."""

    def __init__(self, prepared: Prepared, call: CapturedCall) -> None:
        self._prepared, self._call = prepared, call
        self._program, self._options, self._backend = prepared.program, prepared.options, prepared.backend
        self._results = captured_results(prepared.records, call)
        self._notes: dict[str, None] = dict.fromkeys(self._program.replaced)  # as a set that keeps the order
        self._failed: list[str] = []
        self._exchanged: dict[str, None] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the values in all stages, see `JudgedProgram.shapes`

    def result(self) -> CallResult:
        """Compare all stages; if only some can be run, the result says why the others are missing."""
        self._failed += self._unreturned()
        prepared, call = self._prepared, self._call
        modules = ModuleRows(prepared.records, self._program, call, prepared.limits)
        rows: list[Row] = []
        effect: Difference | None = None
        # What is computed for all stages at once is computed again for each if it does not fit in the buffer.
        references = self._references(*prepared.compiled)
        float64 = self._float64_values(*prepared.compiled)
        last = [*prepared.compiled][-1]
        for stage in prepared.compiled:
            references = references if references.fully_cached else self._references(stage)
            float64 = float64 if float64 is None or float64.fully_cached else self._float64_values(stage)
            compare_stage = partial(self._compare_stage, stage, references, modules, float64)
            compared = attempt(compare_stage, self._failed, required=not rows)
            if compared is None:
                continue
            rows += compared[0]
            effect = compared[1]  # the last stage is the graph that runs without instrumentation
            if effect is not None and stage != last:
                self._notes[_OBSERVER_EFFECT_NOTE.format(stage, effect.problem or f"{effect.error:.1e}")] = None
        remarks = tuple(self._notes), tuple(self._failed), tuple(self._exchanged)
        return CallResult(rows, modules.rows, self._operators(rows), effect, *remarks)

    def _unreturned(self) -> list[str]:
        """Return which outputs of the program can't be compared with a result of the model, and why."""
        outputs, recorded = self._program.graph.outputs, self._program.outputs
        # If the program has other outputs than were recorded at its export, `interface_problems` reports it.
        if len(recorded) not in (0, len(outputs)):
            return []
        returned, counts = len(self._results), {len(outputs), len({*outputs})}  # an output may be listed twice
        kinds = {value.name: unjudged_type(value.type) for value in self._program.model.graph.outputs}
        unjudged = {name: kind for name, kind in kinds.items() if kind}
        if returned in counts:
            return []
        if returned + len(unjudged) not in counts:
            return [f"the model returns {returned} tensors, the graph has {len(outputs)} outputs"]
        return [f"the output {name!r} is not compared, because it is {kind}" for name, kind in unjudged.items()]

    def _operators(self, rows: Sequence[Row]) -> tuple[ModelOperation, ...]:
        """Return the model's operations, each with the row of its value."""
        by_value = {row.value: row for row in rows}
        dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in self._call.inputs.items()}
        dtypes |= {row.value: row.dtype or "" for row in rows}
        return tuple(
            ModelOperation(item.kind, item.text, by_value.get(item.value or ""), dtypes.get(item.value or "", ""))
            for item in self._program.operators
        )

    def _compare_stage(
        self, stage: Stage, references: ReferenceResolver, modules: ModuleRows, float64: Float64Values | None
    ) -> tuple[list[Row], Difference | None]:
        """Return the rows of one stage, and its observer effect.

        The stage runs without and with instrumentation. With float64, nodes whose error rounding does not explain also
        run in isolation, and those before the first value that differs if none is wrong; with `every_node`, all.
        """
        prepared = self._prepared
        run = self._run(stage)
        self._check_order(run)
        random = RandomValues(run, self._program.unpredictable, prepared.computes(stage))
        # In a foreign graph, the references of modules are found only among the values of the run.
        if self._options.on_references is not None:
            self._options.on_references(partial(_reference, run, references) if modules.is_resolved else lambda _: None)
        observed = self._repeated(partial(self._observe, run, random, references))
        if not modules.is_resolved:  # module references must be resolved before any value is judged
            observed = [*observed]
            modules.infer({**self._call.inputs, **{name: tensor for name, tensor, _ in observed}})
        references.set_preferred(without_random(modules.references(), self._program.unpredictable))
        provenance = prepared.provenance_of(stage)
        judge = None if float64 is None else Judge(self._facts(run, float64))
        comparator = ValueComparator(
            run, references, provenance, prepared.limits, modules.compare, judge, prepared.constant, random
        )
        work = value_work(run)
        with phase(f"{stage} graph: value", len(work), work=sum(work.values())) as progress:
            comparator.compare(counted(observed, progress, work))
        self._note_problem(float64)
        isolated: dict[str, RoundingVerdict] = {}
        if prepared.float64 is not None:
            isolate_nodes = partial(self._isolated, run, comparator, prepared.float64, references)
            suspects = set() if judge is None else judge.facts.suspects
            isolated = isolated_verdicts(
                comparator.values, run.graph, suspects, isolate_nodes, every_node=self._options.every_node
            )
        return comparator.rows(isolated), comparator.observer_effect

    def _isolated(
        self,
        run: Run,
        comparator: ValueComparator,
        float64: Float64Evaluator,
        references: ReferenceResolver,
        selected: Collection[str] | None,
    ) -> dict[str, RoundingVerdict]:
        """Return the verdicts on the selected nodes, or all, in isolation, by the names of their values."""
        references = references if references.fully_cached else self._references(run.stage)  # see `result`
        inputs = IsolatedInputs(run, comparator.values, references, selected)
        judge = Judge(self._facts(run, float64.isolated(run.inputs, inputs.get_exported), inputs.replaced))
        observed = self._repeated(partial(self._isolate, run, inputs.get, inputs.nodes))
        work = value_work(run)
        nodes = [node for node in run.graph.nodes if inputs.nodes is None or node.name in inputs.nodes]
        work = {name: work[name] for node in nodes for name in node.outputs[:1] if name in work}
        try:
            with phase(f"{run.stage} graph: isolated node", len(work), work=sum(work.values())) as progress:
                observed = counted(observed, progress, work)
                unjudged = comparator.random.unjudged
                return compare_isolated_nodes(
                    comparator.values, observed, inputs, judge, comparator.allowances, unjudged
                )
        except BackendError as error:
            self._notes[f"{run.stage} nodes were not run in isolation: {error}"] = None
            return {}
        finally:
            self._note_problem(judge.facts.float64)

    def _run(self, stage: Stage) -> Run:
        """Run a stage without instrumentation."""
        compiled, options = self._prepared.compiled[stage], self._options
        inputs = self._cast_inputs(compiled)
        with phase(f"{stage} graph: running"):
            outputs = {name: complex_as_real(tensor) for name, tensor in self._backend.run(compiled, inputs).items()}
        seconds: Mapping[str, float] = {}
        if options.profile and isinstance(self._backend, Profiles):
            with phase(f"{stage} graph: measuring the time of each node"):
                seconds = self._backend.profile(compiled, inputs)
        lowered = self._prepared.lowered[stage]
        return Run(
            self._call.index, stage, compiled, inputs, outputs, seconds, lowered, options.statistics, options.on_row
        )

    def _cast_inputs(self, compiled: Compiled) -> Mapping[str, torch.Tensor]:
        """Return the inputs of the call in the dtypes of a graph, of which a program of lower precision has others."""
        if not self._options.lower_precision:
            return self._call.inputs
        self._notes |= dict.fromkeys(cast_notes(compiled.graph, self._call.inputs))
        return cast_inputs(compiled.graph, self._call.inputs)

    def _observe(
        self, run: Run, random: RandomValues, references: ReferenceResolver
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Run a stage again, and return its intermediate values; random numbers are the reference's if possible."""
        if random.any_drawn and self._program.original is not None:
            try:
                return self._isolate(run, lambda name: random.replacement(name, references))
            except BackendError as error:
                self._notes[f"the {run.stage} graph can't use the reference's random numbers: {error}"] = None
        if isinstance(self._backend, Observes):
            return self._backend.observe(run.compiled, run.inputs, buffer=self._options.buffer)
        return in_order(run.graph, self._backend.run(run.compiled, run.inputs, run.graph.producer))

    def _isolate(
        self, run: Run, lookup: ReferenceLookup, nodes: Collection[str] | None = None
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Run the nodes of a stage, each on the references that `lookup` returns for its inputs (see `isolate`)."""
        return isolate(
            self._backend,
            self._prepared.program_of(run.stage),
            run.compiled,
            run.inputs,
            lookup,
            optimize=run.stage == "compiled",
            nodes=nodes,
            buffer=self._options.buffer,
        )

    def _repeated(self, observe: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> Iterable[ObservedValue]:
        """Yield the values of a run, each with the largest difference of its elements between repeated runs."""
        first, *others = (observe() for _ in range(self._options.repeats))
        for (name, tensor), *again in zip(first, *others, strict=True):
            yield name, tensor, _spread(tensor, [other for _, other in again]) if again else None

    def _references(self, *stages: Stage) -> ReferenceResolver:
        """Return the references of the values of some stages, each to be requested once per stage."""
        prepared, call = self._prepared, self._call
        references = prepared.references.of(call, self._wanted(stages))
        known = self._backend_references() | result_references(self._results, self._program.graph)
        references.set_fallback(without_random(known, self._program.unpredictable))
        return references

    def _wanted(self, stages: Iterable[Stage]) -> frozenset[str]:
        """Return the exported names of the values of some stages that have rows."""
        return frozenset[str]().union(*(self._prepared.wanted[stage] for stage in stages))

    def _backend_references(self) -> dict[str, Reference]:
        """Return the references that a backend computes for values that only its compiled graph has."""
        compiled = self._prepared.compiled.get("compiled")
        if compiled is None or not isinstance(self._backend, ProvidesReferences):
            return {}
        values = self._backend.reference(compiled, self._cast_inputs(compiled))
        graph, random_names = compiled.graph, self._program.unpredictable.random
        # The backend draws other random numbers for its references than the model did.
        random = graph.computed_from(name for name in graph.known if compiled.exported_name(name) in random_names)
        return {
            name: Reference(complex_as_real(tensor), "derived") for name, tensor in values.items() if name not in random
        }

    def _float64_values(self, *stages: Stage) -> Float64Values | None:
        """Return the float64 values of some stages, or None; those of two stages are kept if they fit in the buffer."""
        if self._prepared.float64 is None:
            return None
        inputs = self._call.inputs
        size = _FLOAT64_MEMORY * sum(value_sizes(self._program.graph, inputs).values())
        keep = len(stages) > 1 and size <= self._options.buffer
        # In a fused node, neither a decision nor what it compares has a row.
        decisions = compared_values(self._program.graph)
        compared = frozenset(chain(decisions, *decisions.values()))
        return self._prepared.float64.of(inputs, self._wanted(stages) | compared, keep=keep)

    def _facts(self, run: Run, float64: Float64Values, replaced: Collection[str] = frozenset()) -> RunFacts:
        """Return what the rules know of a run.

        Args:
            run: the run.
            float64: its values in float64.
            replaced: if each node runs in isolation, the names of the values that are replaced by references.
        """
        prepared, original = self._prepared, self._program.original
        program = JudgedProgram(
            # The backend may run another program than the one that is compared.
            run.graph if prepared.provenance_of(run.stage) is None else self._program.graph,
            prepared.computes(run.stage),
            prepared.constant,
            None if original is None else original.graph,
            self._options.lower_precision,
            frozenset().union(*(info.tf32 for info in prepared.records.modules.values())),
            self._shapes,
        )
        is_whole_run = run.stage == "compiled" and not (program.lower_precision or replaced)
        return RunFacts(
            run,
            program,
            float64,
            replaced=replaced,
            recompute=None if prepared.float64 is None else partial(prepared.float64.isolated, run.inputs),
            compiled=cache(partial(self._compiled_values, run)) if is_whole_run else None,
        )

    def _compiled_values(self, run: Run) -> Float64Values:
        """Return the float64 values of what only the compiled graph has."""
        if not isinstance(self._backend, ProvidesReferences):
            return RecordedValues({})
        values = float64_values(partial(self._backend.reference, run.compiled, run.inputs), run.graph)
        self._note_problem(values)
        return values

    def _note_problem(self, float64: Float64Values | None) -> None:
        """Note which operation could not run in float64, if there is one."""
        if float64 is not None and float64.problem:
            self._notes[f"some values were judged by tolerance, not by float64: {float64.problem}"] = None

    def _check_order(self, run: Run) -> None:
        """Note outputs of a foreign program that are in another order, ignoring random outputs."""
        names, unpredictable = run.graph.outputs, self._program.unpredictable.all
        comparable = self._program.is_foreign and not self._options.lower_precision
        if comparable and len(self._results) == len(names):
            outputs = {
                name: tensor for name, tensor in run.outputs.items() if run.exported_name(name) not in unpredictable
            }
            problem = exchanged_output(names, self._results, outputs)
            self._exchanged |= {problem: None} if problem else {}


def _reference(run: Run, references: ReferenceResolver, name: str) -> torch.Tensor | None:
    """Return the reference of a value of the graph that runs."""
    found = references.get(run.exported_name(name))
    return None if found is None else found.tensor


def _spread(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the largest difference of each element from other runs, in float64; inf if only some runs are finite."""
    first = complex_as_real(tensor).double()
    largest = torch.zeros_like(first)
    for other in others:
        repeated = complex_as_real(other).double()
        equal = (repeated == first) | (repeated.isnan() & first.isnan())
        distance = (repeated - first).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        largest = torch.maximum(largest, torch.where(equal, 0.0, distance))
    return largest
