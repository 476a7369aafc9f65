"""Holds what a compiler made of a torch graph against the graph itself, on the inputs that it is called with."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from filch.export import Graph, graph_from_fx, random_nodes
from filch.export.backends import Backend, BackwardRun, Compiled, ProvidesReferences, Stage

from ..common._complex import complex_as_real
from ..engine._run import Run
from ..engine._value_comparator import judge
from ..metrics._limits import Limits
from ..metrics._metrics import Difference
from ..metrics._tolerance import Tolerance
from ..provenance._provenance import NodeProvenance
from ..references._references import Reference
from ..results._report import Report
from ..results._rows import Row
from ._fx_operators import fx_operators

BACKWARD = ", backward"  # behind the name of a graph
Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@dataclass(frozen=True)
class GraphCheck:
    """One graph that Dynamo handed over.

    Attributes:
        name: for people.
        module: the graph.
        run: what was compiled of it; what its user gets.
        compile: compiles another graph in the same way.
        backend: the compiler's name.
        engine: the backend that shows what `compiled` has inside; None if the compiler has none.
        compiled: what it made of the graph.
        tolerance: see `compare`.
    """

    name: str
    module: fx.GraphModule
    run: Callable[..., Any]
    compile: Compile
    backend: str
    engine: Backend | None = None
    compiled: Compiled | None = None
    tolerance: float | Tolerance | None = None

    def report(self, inputs: Sequence[Any]) -> Report:
        """Run the graph in eager PyTorch, compiled, and compiled with each value exposed; on copies of `inputs`."""
        graph = graph_from_fx(self.module.graph, self.name)
        given = dict(zip(graph.inputs, inputs, strict=True))
        with _same_numbers():
            known = _values(self.module, copies(inputs))
        with _same_numbers():
            outputs = dict(zip(graph.outputs, _tensors(self.module, self.run(*copies(inputs))), strict=True))
        references = {name: Reference(complex_as_real(tensor), "eager") for name, tensor in known.items()}
        limits = Limits(graph, self.tolerance)
        run = Run(0, "exported", Compiled(graph, None), _of_tensors(given), outputs)
        rows, effect = judge(run, self._exposed(inputs), references, None, limits)
        notes = _of_second(effect)
        origins = None if self.compiled is None else NodeProvenance(graph, self.compiled)
        for found, of_kernels in self._kernels(given, outputs, references, limits, origins):
            rows, effect = [*rows, *found], of_kernels
        random = random_nodes(self.module.graph)
        rows = [replace(row, random=row.node in random) for row in rows]
        return Report(
            backend=self.backend,
            reference="eager PyTorch",
            program=self.name,
            rows=tuple(rows),
            observer_effect=effect,
            notes=(*notes, *self._notes(random)),
            operators=(tuple(fx_operators(self.module.graph, rows)),),
            graphs={stage: _with_weights(drawn, given) for stage, drawn in _drawn(graph, origins).items()},
        )

    def _notes(self, random: Sequence[str]) -> tuple[str, ...]:
        if self.compiled is not None:
            return self.compiled.notes
        return (f"{random[0]} draws random numbers: compilers draw others than eager PyTorch",) if random else ()

    def _exposed(self, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Every value of the graph, compiled so that each is returned: what is fused then may differ."""
        names, module = exposed(self.module)
        compiled = self.compile(module, copies(inputs))
        with _same_numbers():
            found = compiled(*copies(inputs))
        return {name: complex_as_real(value.detach()) for name, value in zip(names, found, strict=True)}

    def _kernels(
        self,
        given: Mapping[str, Any],
        outputs: Mapping[str, torch.Tensor],
        known: Mapping[str, Reference],
        limits: Limits,
        origins: NodeProvenance | None,
    ) -> Iterator[tuple[list[Row], Difference | None]]:
        """What the compiled graph's own kernels store."""
        if self.engine is None or self.compiled is None:
            return
        made = self.compiled
        with _same_numbers():
            values = self.engine.run(made, given, made.graph.producer)
        with _same_numbers():
            said = self.engine.reference(made, given) if isinstance(self.engine, ProvidesReferences) else {}
        held = {name: Reference(tensor, "given") for name, tensor in _of_tensors(given).items()}
        own = {name: Reference(tensor, "derived") for name, tensor in said.items()}
        run = Run(0, "compiled", made, _of_tensors(given), outputs)
        yield judge(run, values, {**held, **own, **known}, origins, limits)


def _drawn(graph: Graph, origins: NodeProvenance | None) -> dict[Stage, Graph]:
    return {"exported": graph} if origins is None else {"exported": graph, "compiled": origins.drawn()}


def _with_weights(graph: Graph, given: Mapping[str, Any]) -> Graph:
    """The graph with its weights as what it holds; Dynamo hands them over as inputs, hundreds of them."""
    held = {name for name, item in given.items() if isinstance(item, nn.Parameter) or "_buffers_" in name}
    inputs = tuple(name for name in graph.inputs if name not in held)
    return replace(graph, inputs=inputs, constants=(*graph.constants, *sorted(held.intersection(graph.inputs))))


def backward_report(run: BackwardRun, name: str, backend: str, tolerance: float | Tolerance | None) -> Report:
    """Hold the kernels of a backward pass against the same pass in eager PyTorch, on the same inputs."""
    made = run.compiled
    given = {name: value for name, value in run.values.items() if name not in made.graph.producer}
    references = {name: Reference(tensor, "eager") for name, tensor in run.expected.items()}
    ran = Run(0, "compiled", made, given, run.outputs)
    origins = NodeProvenance(run.graph, made)
    rows, effect = judge(ran, run.values, references, origins, Limits(run.graph, tolerance))
    return Report(
        backend=backend,
        reference="eager PyTorch",
        program=name + BACKWARD,
        rows=tuple(rows),
        observer_effect=effect,
        graphs={"exported": run.graph, "compiled": origins.drawn()},
    )


def exposed(module: fx.GraphModule) -> tuple[list[str], fx.GraphModule]:
    """A copy of a graph that returns every tensor that it makes, as it is when it is made, and their names."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    kept: dict[str, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        env[node] = graph.node_copy(node, env.__getitem__)
        if node.op.startswith("call_") and isinstance(node.meta.get("example_value"), torch.Tensor):
            kept[node.name] = graph.call_function(torch.clone, (env[node],))  # it may be written to later
            kept[node.name].meta.update(example_value=node.meta["example_value"])
    graph.output(tuple(kept.values()))
    return list(kept), fx.GraphModule(module, graph)


def copies(values: Sequence[Any]) -> list[Any]:
    """Copies of the tensors among some values, which a graph may write to."""
    return [
        item.detach().clone().requires_grad_(item.requires_grad) if isinstance(item, torch.Tensor) else item
        for item in values
    ]


def _values(module: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Every tensor that the graph makes in eager PyTorch, as it is when it is made."""
    found: dict[str, torch.Tensor] = {}

    class Keeping(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if n.op.startswith("call_") and isinstance(value, torch.Tensor):
                found[n.name] = value.detach().clone()
            return value

    Keeping(module).run(*inputs)
    return found


def _tensors(module: fx.GraphModule, given: Sequence[Any]) -> list[Any]:
    """What a graph returned for the nodes among its results."""
    results: Any = module.graph.output_node().args[0]
    kept = [value for value, result in zip(given, results, strict=True) if isinstance(result, fx.Node)]
    return [complex_as_real(value.detach()) if isinstance(value, torch.Tensor) else value for value in kept]


def _of_tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in values.items() if isinstance(value, torch.Tensor)}


def _of_second(effect: Difference | None) -> tuple[str, ...]:
    """What the operations' rows are of, where that is not what the user runs."""
    if effect is None:
        return ()
    amount = effect.problem or f"{effect.error_max:.1e}"
    text = "the table of operations is of a second compilation, which returns every value and so may fuse others"
    return (f"{text}: its results differ from those of the compiled graph that is used, by up to {amount}",)


@contextlib.contextmanager
def _same_numbers() -> Iterator[None]:
    """Draw the same random numbers each time, and leave the user's as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
