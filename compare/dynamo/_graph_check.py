"""Compare a compiled torch graph with the graph in eager PyTorch, on the inputs of a call."""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from filch.export import BackendError, Graph, Node, graph_from_fx
from filch.export.backends import Backend, BackwardRun, Compiled, Isolates, ProvidesReferences, ReferenceLookup, Stage
from filch.export.common._copies import copy_tensors
from filch.export.evaluation._unpredictable import Unpredictable, of_program, random_nodes, uninitialized_nodes
from filch.steal.ranks._join import is_same_bits as has_same_bits

from ..common._complex import complex_as_real
from ..common._errors import reason_of
from ..engine._value_comparator import in_order
from ..float64._values import Float64Values
from ..judging._run import Run
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import ToleranceOption, given_limits
from ..provenance._provenance import NodeProvenance
from ..references._resolver import Reference
from ..results._report import EAGER_PYTORCH, Report
from ..results._rows import ModelOperation, Row
from ..runs._mode import float64_values
from ._changed_inputs import changed_rows, copy_notes, shared_memory, shared_rows, values_after
from ._compare_values import compare_values
from ._eager_run import Writes, eager_run, is_plain, results_of, return_all_values, transformed, written
from ._fx_operators import as_returned, fx_operators
from ._node_values import NodeValues

BACKWARD = ", backward"  # suffix of the name of a graph
_TRANSFORMED = "a transform of torch.func computes it: no such tensor exists outside of it"
_SECOND = "a second compilation, which returns every value,"
_DECOMPOSED = (
    "backward kernels are compared with the backward graph after its operations were decomposed: what is wrong before "
    "that shows only in the gradients themselves, which compare_gradients compares"
)
Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
_CompareRun = Callable[..., tuple[list[Row], Difference | None]]  # see `compare_values`


@dataclass(frozen=True)
class TorchKernels:
    """The graph of kernels that a backend has compiled from a torch graph.

    Attributes:
        backend: the backend.
        compiled: what it has compiled.
    """

    backend: Backend
    compiled: Compiled

    def references(self, arguments: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """Return the references of the values that only the kernels have, computed from the inputs of the graph."""
        backend = self.backend
        return backend.reference(self.compiled, arguments) if isinstance(backend, ProvidesReferences) else {}

    def isolated(
        self, arguments: Mapping[str, Any], notes: list[str], lookup: ReferenceLookup
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name of what each kernel stores, and what it is if the kernel reads references of earlier values.

        Args:
            arguments: the inputs of the graph by name.
            notes: where an error is noted, after which no kernel runs.
            lookup: returns the reference of a value by its name; None leaves it as computed.
        """
        if not isinstance(self.backend, Isolates):
            return
        try:
            with _same_random_numbers():
                yield from self.backend.isolate(self.compiled, arguments, lookup, buffer=sys.maxsize)
        except BackendError as error:
            notes.append(f"kernels were not run in isolation: {error}")

    def rows(
        self, runs: "_Runs", eager: Mapping[str, Reference], compare_run: "_CompareRun", origins: NodeProvenance
    ) -> tuple[list[Row], Difference | None]:
        """Return the rows of what the kernels store, and how far a run that returns it is from one that does not.

        Args:
            runs: the runs of the graph.
            eager: the references of the values that the graph has as well.
            compare_run: see `GraphCheck._comparison`.
            origins: the nodes of the graph that each kernel computes.
        """
        with _same_random_numbers():
            values = self.backend.run(self.compiled, runs.arguments, self.compiled.graph.producer)
        with _same_random_numbers():
            derived = self.references(runs.arguments)
        inputs = _tensors_only(runs.arguments)
        references = {name: Reference(tensor, "given") for name, tensor in inputs.items()}
        references |= {name: Reference(complex_as_real(tensor), "derived") for name, tensor in derived.items()}
        run = Run(0, "compiled", self.compiled, inputs, runs.outputs)
        return compare_run(run, values, {**references, **eager}, origins)


@dataclass(frozen=True)
class _Runs:
    """What a graph computes from copies of the same inputs: in eager PyTorch, in float64, and compiled.

    Attributes:
        graph: the graph; its outputs are called as their references are (see `_judged_as`).
        arguments: the inputs by name, which no run has changed.
        eager: every tensor that eager PyTorch computes, by name.
        outputs: the results of the compiled graph, by the names of the graph's outputs.
        float64: the float64 values; None with a tolerance.
        eager_inputs: the inputs by name, as the run in eager PyTorch leaves them: it may write to them.
        compiled_inputs: the same of the compiled run.
        eager_memory: the inputs that each result of the run in eager PyTorch shares memory with.
        compiled_memory: the same of the compiled run.
        writes: what nodes write to in eager PyTorch (see `EagerRun`), if the results differ; else nothing.
        writers: the last node that writes to each input, by the input's name.
    """

    graph: Graph
    arguments: Mapping[str, Any]
    eager: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    float64: Float64Values | None
    eager_inputs: Mapping[str, Any]
    compiled_inputs: Mapping[str, Any]
    eager_memory: Sequence[frozenset[str]]
    compiled_memory: Sequence[frozenset[str]]
    writes: Writes
    writers: Mapping[str, Node]


@dataclass(frozen=True)
class GraphCheck:
    """The check of one graph from Dynamo.

    Attributes:
        name: the name of the graph in the report.
        module: the graph.
        run: the compiled graph that the user calls.
        compile: compiles another graph in the same way.
        backend: the compiler's name.
        kernels: what a backend of Filch has compiled the graph to; None for another compiler.
        tolerance: see `compare`.
        values: returns what the graph that the user calls computes for inputs of `module`, by the names of nodes, if it
            is not compiled from `module`; None is a second compilation of `module`, which returns every value.
        draws: the random numbers that the compiled graph draws, by the names of nodes, from which all references are
            computed; None if it draws the same ones as eager PyTorch.
    """

    name: str
    module: fx.GraphModule
    run: Callable[..., Any]
    compile: Compile
    backend: str
    kernels: TorchKernels | None = None
    tolerance: ToleranceOption = None
    values: Callable[[Sequence[Any]], Mapping[str, torch.Tensor]] | None = None
    draws: Mapping[str, torch.Tensor] | None = None

    def with_its_draws(self, inputs: Sequence[Any]) -> "GraphCheck | str":
        """Return the check with the random numbers that the compiled graph draws, or why these can't be known.

        A second compilation, which returns every value, draws the same ones from the same seed.
        """
        graph, random = self.module.graph, random_nodes(self.module.graph)
        nodes = {node.name: node for node in graph.nodes}
        live = _live(graph)
        with _same_random_numbers():
            run = eager_run(self.module, copy_tensors(inputs))
        for name in random:
            if nodes[name] not in live and name not in run.in_place:
                return f"nothing reads what {name} draws"  # only the second compilation draws it
            if not is_plain(nodes[name].meta.get("example_value")):
                return f"{name} does not return a tensor"
        values, problem = self._all_values(inputs, run.writes)
        draws = {name: values[name] for name in random if name in values}
        return problem or replace(self, values=lambda _: values, draws=draws)

    def report(self, inputs: Sequence[Any]) -> Report:
        """Run the graph in eager PyTorch, compiled, and compiled to return every value; on copies of `inputs`."""
        runs = self._run(inputs)
        graph, arguments, float64 = runs.graph, runs.arguments, runs.float64
        stage: Stage = "exported" if self.kernels is None else "compiled"
        changed = changed_rows(
            arguments,
            runs.eager_inputs,
            runs.compiled_inputs,
            stage=stage,
            tolerance=self.tolerance,
            float64=float64,
            writers=runs.writers,
        )
        references = {name: Reference(complex_as_real(tensor), "eager") for name, tensor in runs.eager.items()}
        random = random_nodes(self.module.graph)
        compare_run = self._comparison(runs, random)
        rows, effect, notes = self._compare_all_values(inputs, runs, references, compare_run)
        notes = [*problem_notes(float64), *notes, *copy_notes(graph, runs.eager_memory, runs.compiled_memory)]
        graphs: dict[Stage, Graph] = {"exported": graph}
        if self.kernels is not None:
            compiled = self.kernels.compiled
            # Outputs are called as their references are; see `_Runs.graph`.
            compiled = replace(compiled, graph=replace(compiled.graph, outputs=graph.outputs))
            kernels, origins = replace(self.kernels, compiled=compiled), NodeProvenance(graph, compiled)
            compare_kernels = partial(compare_run, isolate=partial(kernels.isolated, arguments, notes))
            kernel_rows, effect = kernels.rows(runs, references, compare_kernels, origins)
            rows = [*rows, *kernel_rows]
            graphs["compiled"] = origins.annotated()
            notes += compiled.notes
        elif random and self.draws is None:
            notes.append(f"{random[0]} draws random numbers: compiled code draws others than eager PyTorch")
        rows = [*rows, *changed, *shared_rows(graph, runs.eager_memory, runs.compiled_memory, stage=stage)]
        operators = (
            *fx_operators(self.module.graph, rows),
            *(ModelOperation("output", row.value, row) for row in changed),
        )
        return Report(
            backend=self.backend,
            reference=EAGER_PYTORCH,
            program=self.name,
            rows=tuple(rows),
            observer_effect=effect,
            notes=tuple(notes),
            operators=(operators,),
            graphs={stage: _with_weights(item, arguments) for stage, item in graphs.items()},
        )

    def _run(self, inputs: Sequence[Any]) -> _Runs:
        """Run the graph in eager PyTorch, in float64, and compiled; each on copies of `inputs`."""
        graph = graph_from_fx(self.module.graph, self.name)
        arguments = dict(zip(graph.inputs, inputs, strict=True))
        eager_inputs, compiled_inputs = copy_tensors(inputs), copy_tensors(inputs)
        with _same_random_numbers():
            run = eager_run(self.module, eager_inputs, self.draws)
        with _same_random_numbers():
            results = _node_results(self.module, self.run(*compiled_inputs))
        eager_after, compiled_after = (
            dict(zip(graph.inputs, after, strict=True)) for after in (eager_inputs, compiled_inputs)
        )
        eager = run.values
        writes: Writes = {}
        graph = replace(graph, outputs=tuple(_judged_as(name, eager) for name in graph.outputs))
        outputs = {name: _judged(result) for name, result in zip(graph.outputs, results, strict=True)}
        if run.writes and not _are_close(
            {**outputs, **values_after(compiled_after)}, {**eager, **values_after(eager_after)}
        ):
            # Copies of what is written to take memory, and a compiler may go wrong with them where it does not without.
            with _same_random_numbers():
                again = eager_run(self.module, copy_tensors(inputs), self.draws, with_written=True)
            eager, writes = again.values, run.writes
            graph = _with_writes(graph, writes)
        nodes = {node.name: node for node in graph.nodes}
        return _Runs(
            graph,
            arguments,
            eager,
            outputs,
            self._float64(graph, arguments, with_written=bool(writes)),
            eager_after,
            compiled_after,
            shared_memory(_node_results(self.module, run.returned), eager_after),
            shared_memory(results, compiled_after),
            writes,
            {name: nodes[writer] for name, writer in run.writers.items()},
        )

    def _comparison(self, runs: _Runs, random: Collection[str]) -> _CompareRun:
        """Return `compare_values` with what it takes for every run of the graph.

        Args:
            runs: the runs of the graph.
            random: the names of the nodes that draw random numbers.
        """
        inner = transformed(self.module.graph)
        return partial(
            compare_values,
            limits=Limits(runs.graph, given_limits(self.tolerance)),
            float64=runs.float64,
            node_values=None if inner else partial(NodeValues, self.module, runs.arguments),
            unpredictable=Unpredictable(
                drawn=frozenset(self.draws or ()), uninitialized=frozenset(uninitialized_nodes(self.module.graph))
            ),
            known=self.draws or (),
            drawing=random if self.draws is None else (),
            reasons=dict.fromkeys(inner, _TRANSFORMED),
        )

    def _compare_all_values(
        self, inputs: Sequence[Any], runs: _Runs, references: Mapping[str, Reference], compare_run: _CompareRun
    ) -> tuple[list[Row], Difference | None, list[str]]:
        """Compare the values of a second compilation, which returns them all.

        Returns:
            the rows of the values, the observer effect, and notes: why there are no such values, or how far the results
            of this compilation are from those of the first one.
        """
        run = Run(0, "exported", Compiled(runs.graph, None), _tensors_only(runs.arguments), runs.outputs)
        if self.values is not None:
            rows, effect = compare_run(run, self.values(copy_tensors(inputs)), references, None)
            return rows, effect, []
        values, problem = self._all_values(inputs, runs.writes)
        rows, effect = compare_run(run, values, references, None)
        if problem:
            note = f"{_SECOND} does not work, so that its values were not judged: {problem}"
        elif effect is not None:
            amount = effect.problem or f"{effect.error:.1e}"
            note = (
                f"the table of operations is of {_SECOND} and may fuse differently: its results differ from those of "
                f"the compiled graph that is used, by up to {amount}"
            )
        else:
            return rows, effect, []
        return rows, effect, [note]

    def _float64(self, graph: Graph, arguments: Mapping[str, Any], *, with_written: bool) -> Float64Values | None:
        """Return the float64 values of the graph and of those that only its kernels have; None with a tolerance."""
        if self.tolerance is not None:
            return None

        def run(decisions: Mapping[str, torch.Tensor] | None = None) -> Mapping[str, torch.Tensor]:
            """Return all values, and the inputs after the call; with decisions, without what only kernels have."""
            with _same_random_numbers():
                derived = {} if self.kernels is None or decisions else self.kernels.references(arguments)
            copied = copy_tensors(dict(arguments))
            known = {**(self.draws or {}), **(decisions or {})}
            values = eager_run(self.module, [*copied.values()], known, with_written=with_written).values
            return {**derived, **values, **values_after(copied)}

        graphs = [graph] if self.kernels is None else [self.kernels.compiled.graph, graph]
        return float64_values(run, *graphs, with_decisions=lambda decisions: partial(run, decisions))

    def _all_values(self, inputs: Sequence[Any], writes: Writes) -> tuple[dict[str, torch.Tensor], str]:
        """Return every value of the graph from a compilation that returns them all, or why there is no such one."""
        names, module = return_all_values(self.module, writes)
        try:
            compiled = self.compile(module, copy_tensors(inputs))
            with _same_random_numbers():
                values = compiled(*copy_tensors(inputs))
        except Exception as error:  # noqa: BLE001  compilers raise errors of all types, also for graphs that they know
            return {}, reason_of(error)
        return {name: complex_as_real(value.detach().cpu()) for name, value in zip(names, values, strict=True)}, ""


def problem_notes(float64: Float64Values | None) -> list[str]:
    """Return a note if some values have no float64 value, because an operation can't be computed in float64."""
    if float64 is None or not float64.problem:
        return []
    return [f"values without a float64 value were judged by tolerance: {float64.problem}"]


def _with_writes(graph: Graph, writes: Writes) -> Graph:
    """Return the graph with what nodes write to as their values, in place of None or beside what they return."""
    names = {node: written(node, owner) for node, owner in writes.items()}
    values = {names[node]: replace(graph.values[owner], name=names[node]) for node, owner in writes.items()}

    def outputs(node: Node) -> tuple[str, ...]:
        own = node.outputs if graph.values[node.outputs[0]].shape is not None else ()
        return (*own, names[node.name])

    nodes = (replace(node, outputs=outputs(node)) if node.name in names else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes), values={**graph.values, **values})


def _with_weights(graph: Graph, arguments: Mapping[str, Any]) -> Graph:
    """Return the graph with its weights as constants; in Dynamo's graph they are inputs, often hundreds."""
    weights = {name for name, item in arguments.items() if isinstance(item, nn.Parameter) or "_buffers_" in name}
    inputs = tuple(name for name in graph.inputs if name not in weights)
    return replace(graph, inputs=inputs, constants=(*graph.constants, *sorted(weights.intersection(graph.inputs))))


def backward_report(run: BackwardRun, name: str, backend: str, tolerance: ToleranceOption) -> Report:
    """Compare the kernels of a backward pass with the same pass in eager PyTorch, on the same inputs."""
    compiled = run.compiled
    inputs = {name: value for name, value in run.values.items() if name not in compiled.graph.producer}
    references = {name: Reference(tensor, "eager") for name, tensor in run.reference().items()}
    float64 = float64_values(run.reference, run.graph) if tolerance is None else None
    origins = NodeProvenance(run.graph, compiled)
    limits = Limits(run.graph, given_limits(tolerance))
    backward = Run(0, "compiled", compiled, inputs, run.outputs)
    # A branch that draws random numbers runs again; what else a backward pass draws is wrong.
    nested = of_program(run.module.graph, run.graph).nested
    rows, effect = compare_values(
        backward,
        run.values,
        references,
        origins,
        limits,
        float64=float64,
        node_values=partial(NodeValues, run.module, run.arguments),
        unpredictable=Unpredictable(nested=nested, random=nested | run.graph.computed_from(nested)),
        isolate=lambda lookup: in_order(compiled.graph, run.isolate(lookup)),
    )
    return Report(
        backend=backend,
        reference=EAGER_PYTORCH,
        program=name + BACKWARD,
        rows=tuple(rows),
        observer_effect=effect,
        notes=(_DECOMPOSED, *problem_notes(float64)),
        graphs={"exported": run.graph, "compiled": origins.annotated()},
    )


def _live(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that a result of a graph is computed from."""
    live = set(graph.output_node().all_input_nodes)
    for node in reversed(graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
    return live


def _judged_as(name: str, eager: Mapping[str, torch.Tensor]) -> str:
    """Return the name of a result's reference: its own, unless it is an input or a later node writes to it."""
    returned = as_returned(name)
    unchanged = name in eager and has_same_bits(eager[name], eager[returned])
    return name if unchanged or returned not in eager else returned


def _are_close(actual: Mapping[str, Any], expected: Mapping[str, torch.Tensor]) -> bool:
    """Return whether tensors are close to those of the same names, by the default tolerance of their dtypes."""
    return all(compare_tensors(item, expected.get(name)).close for name, item in actual.items())


def _node_results(module: fx.GraphModule, returned: Sequence[Any]) -> list[Any]:
    """Return the results that are nodes of the graph, without the constants among them."""
    return [value for value, result in zip(returned, results_of(module), strict=True) if isinstance(result, fx.Node)]


def _judged(result: Any) -> Any:
    """Return a result as it is judged: a tensor on the CPU, with real numbers."""
    return complex_as_real(result.detach().cpu()) if isinstance(result, torch.Tensor) else result


def _tensors_only(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors among the inputs of a graph, on the CPU; the others are sizes."""
    return {name: value.detach().cpu() for name, value in values.items() if isinstance(value, torch.Tensor)}


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Draw the same random numbers each time, and restore the user's random state."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
