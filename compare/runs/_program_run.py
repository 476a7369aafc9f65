"""Run an ONNX program in float64, as operations on values that can be run again."""

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from filch.export import Graph, Node, Program, Value
from filch.export.operators._in_float64 import in_float64
from filch.export.tracing._replayable import ModuleOutput, RunResult

from ..common._errors import CompareError
from ..float64._noise import unit_of
from ._evaluation import Float64Evaluator
from ._execution import Execution, Output, Replay, Tensors, finest_shapes, moved_value
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


def run_program(source: ProgramSource) -> Execution:
    """Run an ONNX program in float64, node by node.

    Args:
        source: the program, with inputs.

    Raises:
        CompareError: the evaluator can't compute a node in float64.
    """
    evaluation = _Evaluation(source)
    every = itertools.chain(evaluation.all_values(), source.weights.items())
    shapes = {name: tuple(tensor.shape) for name, tensor in every}
    graph = replace(evaluation.graph, values={name: _described(source, name, shape) for name, shape in shapes.items()})
    movements = {name for node in graph.nodes if moved_value(node) is not None for name in node.outputs}
    tensors = ((name, value) for name, value in evaluation.values.items() if isinstance(value, torch.Tensor))
    kept = {name: value for name, value in tensors if name not in movements}
    kept |= {name: kept[name].reshape(shape) for name, shape in finest_shapes(graph, kept).items()}
    weights = {name: tensor for name, tensor in source.weights.items() if name in graph.consumers}
    return Execution(
        source.name,
        graph,
        kept,
        weights,
        tuple(_module_outputs(source.program, graph)),
        evaluation.offsets,
        _ProgramReplay(evaluation, kept),
        _units(graph),
        tuple(_outputs(evaluation)),
    )


def _outputs(evaluation: "_Evaluation") -> Iterator[Output]:
    for result in evaluation.results:
        value: Any = evaluation.read(result.value, {}, ())
        native = evaluation.source.natives.get(result.value)
        if isinstance(value, torch.Tensor):
            yield Output(result, value, native)
        elif value is not None:  # a sequence, whose length is a number that is returned as well
            yield Output(replace(result, path=f"{result.path}.length", value=""), torch.tensor(len(value)))
            for index, item in enumerate(value):
                yield Output(replace(result, path=f"{result.path}[{index}]"), in_float64(item))


def noisy_values(source: ProgramSource, run: Execution) -> dict[str, torch.Tensor]:
    """Return the values of an ONNX program if everything that a node reads is changed by half a unit in the last place.

    Args:
        source: the program, with inputs.
        run: its run without noise.
    """
    evaluator = Float64Evaluator(replace(source.program, original=source.original))
    computed = [name for name in (*run.values, *run.graph.outputs) if name in run.graph.producer]
    noisy = evaluator.of(source.inputs or {}, computed, keep=True)
    found = {name: value.noisy for name in computed if (value := noisy.get(name)) is not None}
    found |= {item.result.key: found[item.result.value] for item in run.outputs if item.result.value in found}
    return {name: value for name, value in run.values.items() if name not in computed} | found


class _Evaluation:
    """Computes the nodes of a program in float64.

    What is moved from weights is computed when it is read, so that weights are not kept in float64.

    Args:
        source: the program, with inputs.

    Attributes:
        offsets: the index of the first element in the weight of each view of a weight, as far as it was computed.
    """

    def __init__(self, source: ProgramSource) -> None:
        self.source, self.graph, self.offsets = source, source.original.graph, dict[str, int]()
        inputs, weights = source.inputs or {}, source.weights
        constants = {name: source.program.constant(name) for name in self.graph.constants if name not in weights}
        sources = {**inputs, **constants}
        widened = {name: in_float64(tensor) for name, tensor in sources.items() if tensor is not None}
        self.values: dict[str, torch.Tensor] = widened
        self._moved_weights: dict[str, Node] = {}
        for node in self.graph.nodes:
            moved = moved_value(node)
            if moved is not None and (moved in weights or moved in self._moved_weights):
                self._moved_weights |= dict.fromkeys(node.outputs, node)

    @property
    def results(self) -> Iterator[RunResult]:
        """The outputs of the program."""
        for name in self.graph.outputs:
            label = "" if len(self.graph.outputs) == 1 else name
            yield RunResult("returned", label, name)

    def all_values(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Compute all nodes, keep their results in `values`, and yield these and what is moved from weights.

        Raises:
            CompareError: a node can't be computed.
        """
        yield from tuple(self.values.items())
        read = {*self.graph.consumers, *self.graph.outputs}
        for node in self.graph.nodes:
            results = self.compute(node, {})
            if missing := [name for name in node.outputs if name in read and name not in results]:
                raise CompareError(
                    f"{self.source.name} can't be aligned: the node {node.name!r} ({node.op}), which computes "
                    f"{missing[0]!r}, can't be evaluated in float64 on these inputs"
                )
            for name, tensor in results.items():
                if name not in self._moved_weights:
                    self.values[name] = tensor
                if isinstance(tensor, torch.Tensor):
                    yield name, tensor

    def compute(
        self, node: Node, environment: Tensors, changed: Collection[str] = frozenset()
    ) -> dict[str, torch.Tensor]:
        """Return the results of a node by name; empty if it or what it reads can't be computed.

        Args:
            node: the node.
            environment: values to read in place of those that are kept.
            changed: the values of which those that are kept are not to be read.
        """
        reads = {name: self.read(name, environment, changed) for name in node.reads}
        inputs = {name: tensor for name, tensor in reads.items() if tensor is not None}
        if len(inputs) < len(reads):
            return {}
        results = self.source.original.evaluate(node.name, inputs)
        moved = moved_value(node)
        if moved is not None and moved in inputs and node.outputs[0] in self._moved_weights:
            size = inputs[moved].element_size()
            for name, tensor in results.items():  # a view of the same memory, as far as torch makes one
                distance, rest = divmod(tensor.data_ptr() - inputs[moved].data_ptr(), size)
                if not rest and 0 <= distance < inputs[moved].numel():
                    self.offsets[name] = self.offsets.get(moved, 0) + distance
        return {name: in_float64(tensor) for name, tensor in results.items() if name}

    def read(self, name: str, environment: Tensors, changed: Collection[str]) -> torch.Tensor | None:
        """Return a value in the shape that it has in the program; see `compute`."""
        if name in environment or name in changed:
            return environment.get(name)
        if name in self.values:
            return self.values[name]
        if name in self.source.weights:
            return self.source.weights[name].to(torch.float64)
        node = self._moved_weights.get(name)
        found: torch.Tensor | None = None if node is None else self.compute(node, environment, changed).get(name)
        return found


class _ProgramReplay:
    """Computes the nodes again that read other numbers; see `Replay`."""

    def __init__(self, evaluation: _Evaluation, values: Tensors, weights: Tensors = MappingProxyType({})) -> None:
        self._evaluation, self._values, self._weights = evaluation, values, weights
        nodes = evaluation.graph.nodes
        self._last_reads = {name: index for index, node in enumerate(nodes) for name in node.reads}

    def with_weights(self, weights: Tensors) -> Replay:
        """See `Replay`."""
        return _ProgramReplay(self._evaluation, self._values, {**self._weights, **weights})

    def __call__(self, forced: Tensors, wanted: Collection[str]) -> dict[str, torch.Tensor]:
        """See `Replay`."""
        evaluation, forced = self._evaluation, {**self._weights, **forced}
        changed = evaluation.graph.computed_from(forced)
        found = {name: value for name, value in self._values.items() if name in wanted and name not in changed}
        environment = {name: forced[name] for name in forced if name not in evaluation.graph.producer}
        keys = {result.value: result.key for result in evaluation.results if result.key in wanted}
        for index, node in enumerate(evaluation.graph.nodes):
            is_changed = not changed.isdisjoint(node.outputs)
            if not is_changed and not any(name in wanted and name not in found for name in node.outputs):
                continue
            for name, tensor in evaluation.compute(node, environment, changed).items():
                own, is_wanted = self._values.get(name), name in wanted and isinstance(tensor, torch.Tensor)
                if is_wanted and (own is None or own.numel() == tensor.numel()):
                    found[name] = tensor.clone() if own is None else tensor.reshape(own.shape).clone()
                if name in forced and forced[name].numel() == tensor.numel():
                    environment[name] = forced[name].reshape(tensor.shape)
                elif is_changed:
                    environment[name] = tensor
                if name in keys:
                    found[keys[name]] = environment.get(name, tensor).clone()
            for name in node.reads:
                if self._last_reads[name] == index:
                    environment.pop(name, None)
        return found


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
    dtype = getattr(torch, (graph.values[name].dtype if name in graph.values else None) or "", None)
    return unit_of(dtype) if isinstance(dtype, torch.dtype) else 0.0


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
    for call in program.module_calls.values():
        path = f"{call.path}@{call.iteration}" if call.iteration else call.path
        for port in call.outputs:
            if port.value is not None:
                yield ModuleOutput(path, port.path, port.value)


def _inferred_outputs(graph: Graph) -> Iterator[ModuleOutput]:
    within: dict[str, set[str]] = {}  # the nodes of each module
    for node in graph.nodes:
        for path in {*(frame.path for frame in node.stack), node.module or ""}:
            within.setdefault(path, set()).add(node.name)
    for path, nodes in within.items():
        leaving = [
            name
            for node in graph.nodes
            if node.name in nodes
            for name in node.outputs
            if name in graph.outputs or any(user.name not in nodes for user in graph.consumers.get(name, ()))
        ]
        if leaving:  # others may be tables that an optimizer computes once for all layers
            yield ModuleOutput(path, "", leaving[-1])
