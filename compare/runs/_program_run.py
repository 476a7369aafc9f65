"""Run an ONNX program in float64, as operations on values that can be run again."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from filch.export import Graph, Node, Program, Value
from filch.export.operators._in_float64 import in_float64
from filch.export.tracing._replayable import ModuleOutput, RunResult

from ..common._dtypes import declared_dtype
from ..common._errors import CompareError
from ..float64._noise import unit_of
from ..models._second_input import other_numbers
from ._evaluation import Float64Evaluator, ProgramRun, RunOptions
from ._execution import Execution, Output, Replay, Tensors, in_finest_shapes, moved_value
from ._onnx_original import OnnxOriginal


@dataclass(frozen=True, eq=False)
class ProgramSource:
    """An ONNX program as an implementation.

    Attributes:
        name: what it is called.
        program: the program.
        inputs: its inputs by name, in the precision in which the other implementation has them; None if there are none
            and only its weights can be compared.
        dtypes: those of its values, by name, when it runs in its own precision.
        natives: its outputs in its own precision, by name.
        feed: its inputs in the dtypes that it takes.
        written: the program as it was given; None if it is `program`.
    """

    name: str
    program: Program
    inputs: Tensors | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict, repr=False)
    natives: Tensors = field(default_factory=dict, repr=False)
    feed: Tensors | None = None
    written: Program | None = None

    @cached_property
    def weights(self) -> Tensors:
        """The floating-point tensors of more than one number that the file has, by name."""
        found = {name: self.program.constant(name) for name in self.program.graph.constants}
        return {
            name: tensor
            for name, tensor in found.items()
            if tensor is not None and tensor.is_floating_point() and tensor.numel() > 1
        }

    @cached_property
    def original(self) -> OnnxOriginal:
        """The program as the source of its values in float64."""
        return OnnxOriginal(self.program.model, self.dtypes)

    def with_other_numbers(self) -> "ProgramSource":
        """Return the program with other numbers in inputs of the same shapes."""
        return replace(self, inputs=other_numbers(self.inputs), natives={})

    def run(self) -> Execution:
        """Run the program, which has inputs, in float64, node by node.

        What is moved from weights is computed where it is read, so that weights are not kept in float64.

        Raises:
            CompareError: the evaluator can't compute a node in float64.
        """
        program, inputs = Float64Evaluator(replace(self.program, original=self.original)), self.inputs or {}
        graph, weights = self.original.graph, self.weights
        views = _WeightViews(graph, weights)
        constants = {name: self.program.constant(name) for name in graph.constants if name not in weights}
        sources = {**inputs, **constants}
        values: dict[str, Any] = {name: in_float64(item) for name, item in sources.items() if item is not None}
        wanted = [name for name in graph.producer if name not in views.names or name in graph.outputs]
        run = ProgramRun(program, inputs, RunOptions(wanted, noisy=False, observe=views.observe))
        for name in wanted:
            found = run.computed(name)
            if found is not None:
                values[name] = found[0]
            elif name in graph.consumers or name in graph.outputs:
                node = graph.producer[name]
                raise CompareError(
                    f"{self.name} can't be aligned: the node {node.name!r} ({node.op}), which computes {name!r}, "
                    "can't be evaluated in float64 on these inputs"
                )
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        shapes = views.shapes | {name: tuple(tensor.shape) for name, tensor in (*weights.items(), *tensors.items())}
        graph = replace(graph, values={name: _described(self, name, shape) for name, shape in shapes.items()})
        kept = in_finest_shapes(graph, tensors)
        results = tuple(_results(graph.outputs))
        return Execution(
            self.name,
            graph,
            kept,
            {name: tensor for name, tensor in weights.items() if name in graph.consumers},
            tuple(_module_outputs(self.program, graph)),
            views.offsets,
            _ProgramReplay(program, inputs, values, kept, results),
            _units(graph),
            tuple(_outputs(self, results, {**weights, **values})),
            noisy=partial(_noisy_values, program, inputs, kept, results),
        )


class _WeightViews:
    """The values that a program moves from weights, as far as they were computed.

    Attributes:
        names: the names of all of them.
        shapes: their shapes.
        offsets: the index of the first element in the weight of each one that is a view of it.
    """

    def __init__(self, graph: Graph, weights: Tensors) -> None:
        self.names = set[str]()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.offsets: dict[str, int] = {}
        for node in graph.nodes:
            moved = moved_value(node)
            if moved in weights or moved in self.names:
                self.names.update(node.outputs)

    def observe(self, node: Node, reads: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        """Record the shape and place of what a node has moved from a weight; see `RunOptions.observe`."""
        moved = moved_value(node)
        if moved is None or self.names.isdisjoint(node.outputs):
            return
        own = reads[moved]
        for name, tensor in results.items():  # a view of the same memory, as far as torch makes one
            self.shapes[name] = tuple(tensor.shape)
            distance, rest = divmod(tensor.data_ptr() - own.data_ptr(), own.element_size())
            if not rest and 0 <= distance < own.numel():
                self.offsets[name] = self.offsets.get(moved, 0) + distance


def _results(names: Sequence[str]) -> Iterator[RunResult]:
    """Yield the outputs of a graph as results of a call, with their names as paths unless there is only one."""
    for name in names:
        yield RunResult("returned", "" if len(names) == 1 else name, name)


def _outputs(source: ProgramSource, results: Iterable[RunResult], values: Mapping[str, Any]) -> Iterator[Output]:
    """Yield the outputs of a program, of a sequence its length and each element.

    Args:
        source: the program.
        results: its outputs.
        values: its values by name.
    """
    for result in results:
        value = in_float64(values.get(result.value))
        if isinstance(value, torch.Tensor):
            yield Output(result, value, source.natives.get(result.value))
        elif value is not None:  # a sequence, whose length is a number that is returned as well
            yield Output(replace(result, path=f"{result.path}.length", value=""), torch.tensor(len(value)))
            for index, item in enumerate(value):
                yield Output(replace(result, path=f"{result.path}[{index}]"), item)


def _noisy_values(
    program: Float64Evaluator, inputs: Tensors, values: Tensors, results: Iterable[RunResult]
) -> dict[str, torch.Tensor]:
    """Return the values of a program, and its outputs by their keys; see `Execution.noisy`."""
    keys = {result.key: result.value for result in results}
    wanted = [name for name in dict.fromkeys((*values, *keys.values())) if name in program.original.graph.producer]
    run = program.of(inputs, wanted, keep=True)
    found = {name: value.noisy for name in wanted if (value := run.get(name)) is not None}
    found |= {key: found[name] for key, name in keys.items() if name in found}
    return {name: value for name, value in values.items() if name not in wanted} | found


@dataclass(frozen=True)
class _ProgramReplay:
    """Computes the values again that are computed from other numbers; see `Replay`.

    Attributes:
        program: the program.
        inputs: its inputs by name.
        values: its values by name, in the shapes that they have in the program.
        kept: those that are returned, in the shapes in which they are returned.
        results: its outputs.
        numbers: the numbers that take the place of values in each run.
    """

    program: Float64Evaluator
    inputs: Tensors
    values: Mapping[str, Any]
    kept: Tensors
    results: Sequence[RunResult]
    numbers: Tensors = field(default_factory=dict)

    def with_numbers(self, numbers: Tensors) -> Replay:
        """Return the same with numbers in place of values, in each run."""
        return replace(self, numbers={**self.numbers, **numbers})

    def __call__(self, forced: Tensors, wanted: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the wanted values, computed from forced ones (see `Replay.__call__`)."""
        graph, numbers = self.program.original.graph, {**self.numbers, **forced}
        changed = graph.computed_from(numbers)

        def known(name: str) -> Any:
            """Return a value that is not computed from other numbers, in place of computing it."""
            return None if name in changed else self.values.get(name)

        def force(name: str, value: Any) -> Any:
            """Return the number that takes the place of a computed value, if there is one of its size."""
            number = numbers.get(name)
            if number is None or not isinstance(value, torch.Tensor) or number.numel() != value.numel():
                return value
            return number.reshape(value.shape)

        found = {name: value for name, value in self.kept.items() if name in wanted and name not in changed}
        computed = [name for name in graph.producer if name in wanted and name not in found]
        keys = {result.key: result.value for result in self.results if result.key in wanted and result.value in changed}
        inputs = {**self.inputs, **{name: item for name, item in numbers.items() if name not in graph.producer}}
        options = RunOptions([*computed, *keys.values()], known=known, forced=force, noisy=False)
        run = ProgramRun(self.program, inputs, options)
        for name in computed:
            (tensor,), own = run.computed(name) or (None,), self.kept.get(name)
            if isinstance(tensor, torch.Tensor) and (own is None or own.numel() == tensor.numel()):
                found[name] = (tensor if own is None else tensor.reshape(own.shape)).clone()
        read = {key: both[0] for key, name in keys.items() if (both := run.read(name)) is not None}
        return found | {key: value.clone() for key, value in read.items() if isinstance(value, torch.Tensor)}


def _described(source: ProgramSource, name: str, shape: tuple[int, ...]) -> Value:
    """Return a value with the dtype that it has when the program runs in its own precision."""
    known = source.original.graph.values.get(name) or Value(name)
    dtype = source.dtypes.get(name)
    return replace(known, dtype=known.dtype if dtype is None else str(dtype).removeprefix("torch."), shape=shape)


def _units(graph: Graph) -> dict[str, float]:
    """Return half a unit in the last place of the coarsest dtype on the way to each value."""
    units: dict[str, float] = {}
    for name in (*graph.inputs, *graph.constants):
        units[name] = _unit(graph, name)
    for node in graph.nodes:
        coarsest = max((units.get(read, 0.0) for read in node.reads), default=0.0)
        for name in node.outputs:
            units[name] = max(coarsest, _unit(graph, name))
    return units


def _unit(graph: Graph, name: str) -> float:
    """Return half a unit in the last place of the dtype that a graph declares for a value; 0 if it has none."""
    dtype = declared_dtype(graph, name)
    return 0.0 if dtype is None else unit_of(dtype)


def _module_outputs(program: Program, graph: Graph) -> Iterator[ModuleOutput]:
    """Yield the tensors that modules of the model returned, innermost modules first, and the outputs of the program.

    If the file does not say what they are, it is the last value of each module that others read.
    """
    found = [*_known_outputs(program)] or [*_inferred_outputs(graph)]
    order = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs}
    inner = [output for output in found if output.module and output.value in order]
    yield from sorted(inner, key=lambda item: (order[item.value], -item.module.count(".")))
    for name in graph.outputs:
        yield ModuleOutput("", "" if len(graph.outputs) == 1 else name, name)


def _known_outputs(program: Program) -> Iterator[ModuleOutput]:
    """Yield the module outputs that a file names."""
    for call in program.module_calls.values():
        path = f"{call.path}@{call.iteration}" if call.iteration else call.path
        for port in call.outputs:
            if port.value is not None:
                yield ModuleOutput(path, port.path, port.value)


def _inferred_outputs(graph: Graph) -> Iterator[ModuleOutput]:
    """Yield, for each module, the last value of its nodes that nodes outside of it read or the graph returns."""
    nodes_of_module: dict[str, set[str]] = {}
    for node in graph.nodes:
        for path in {*(frame.path for frame in node.stack), node.module or ""}:
            nodes_of_module.setdefault(path, set()).add(node.name)
    for path, nodes in nodes_of_module.items():
        leaving = [
            name
            for node in graph.nodes
            if node.name in nodes
            for name in node.outputs
            if name in graph.outputs or any(user.name not in nodes for user in graph.consumers.get(name, ()))
        ]
        if leaving:  # earlier ones may be tables that an optimizer computes once for all layers
            yield ModuleOutput(path, "", leaving[-1])
