"""Present the kernels of a torch graph compiled by Inductor as a `Graph`, and run it."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import fx

from ..._errors import BackendError
from ...common._copies import copy_tensors
from ...evaluation._eager import visit_nodes
from ...graph._from_fx import graph_from_fx
from ...graph._graph import Graph
from ...graph._nodes import Node, Value
from .._backend import BackwardRun, Compiled, ReferenceLookup, Values
from .._forms import spec_of
from ._buffer_map import BufferMap, Label, Stored
from ._compiled_fx import CompiledGraph, CompiledPart
from ._half import to_float16
from ._kernels import Kernel
from ._options import InductorOptions

_NO_EFFECT = "{} has no effect: the graph runs on the CPU"


@dataclass(frozen=True)
class CompileTask:
    """A torch graph to compile, and the graph whose names the results have.

    Attributes:
        module: the torch graph, with flat inputs and outputs.
        graph: the target of each node is the name of the node of `module` that it translates (in part).
        bind: converts the inputs by name to the arguments of `module`.
        exported_names: maps the names of nodes of `module` to those of the same values in `graph`, if they differ.
        outputs: the indices of the results of `module` that are the outputs of `graph`.
        read_only: the indices of the inputs that no kernel overwrites.
        device: the device to run on; None is that of the inputs.
        guarded: whether the caller guarantees inputs of the same shapes as when it is compiled.
        gradients: whether it is compiled for training, with a backward pass.
    """

    module: fx.GraphModule
    graph: Graph
    bind: Callable[[Values], list[Any]]
    exported_names: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    read_only: frozenset[int] = frozenset()
    device: torch.device | None = None
    guarded: bool = False
    gradients: bool = False


class KernelGraphs:
    """A torch graph, compiled once for each set of input shapes."""

    def __init__(self, task: CompileTask, options: InductorOptions) -> None:
        self._task = task
        self._options = options
        self._module = to_float16(task.module) if options.use_fp16 else task.module
        self._graphs: dict[tuple[Any, ...], CompiledGraph] = {}  # by the properties of the inputs

    def __call__(self, *inputs: Any) -> Any:
        """Run it without observation, with the arguments of the original graph; supports autograd."""
        compiled = next(iter(self._graphs.values()))
        with self._options.reductions():
            return compiled(*inputs)

    def watch_backward(self, callback: Callable[[BackwardRun], None]) -> None:
        """Call `callback` with the first run of each backward graph, which may be compiled later."""
        compiled = next(iter(self._graphs.values()))  # the graph that `compiled_for` compiled
        observed: list[CompiledPart] = []

        def observer(part: CompiledPart, inputs: list[Any]) -> Any:
            if not part.lowered.backward or part in observed:
                return part.plain(inputs)
            observed.append(part)
            return _run_backward(part, inputs, callback)

        compiled.observer = observer

    def compiled_for(self, inputs: Sequence[Any]) -> Compiled:
        """Compile the graph for such inputs, which may be on any device if the task has a device."""
        notes = self._notes(inputs)
        part = _forward(self._compiled_graph(inputs if self._task.guarded else self._copy_inputs(inputs)))
        compiled = _as_compiled(part, part.buffers, self._task.graph, self._task.exported_names, self)
        return replace(compiled, notes=notes)

    def _notes(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """Raise an error for options without effect; return a note instead if torch.compile compiles with CUDA graphs.

        A model that is compiled with this option may have graphs on several devices.
        """
        devices = {self._task.device or item.device for item in inputs if isinstance(item, torch.Tensor)}
        if not devices or any(device.type != "cpu" for device in devices):
            return ()
        if self._options.use_fp16_reduction is not None:
            raise BackendError(f"backend 'inductor': {_NO_EFFECT.format('use_fp16_reduction')}")
        if self._options.use_cuda_graph and not self._task.guarded:
            raise BackendError(f"backend 'inductor': {_NO_EFFECT.format('use_cuda_graph')}")
        return (_NO_EFFECT.format("use_cuda_graph"),) if self._options.use_cuda_graph else ()

    def codes(self) -> list[str]:
        """Return the generated code."""
        files = (part.lowered.module.__file__ or "" for compiled in self._graphs.values() for part in compiled.parts)
        return [Path(file).read_text("utf-8") for file in files]

    def run(self, inputs: Values, watch: Collection[str], outputs: Sequence[str]) -> Values:
        """Run the graph and return the outputs, by these names, and the watched values."""
        arguments = self._copy_inputs(self._task.bind(inputs))
        compiled = self._compiled_graph(arguments, replayed=not watch)
        values: dict[str, torch.Tensor] = {}

        def observe(stored: Sequence[Stored]) -> None:
            values.update({item.name: self._copy_stored(item) for item in stored if item.name in watch})

        with self._running():
            results = self._observed(compiled, arguments, observe) if watch else compiled(*arguments)
        for name, index in zip(outputs, self._task.outputs, strict=True):
            if isinstance(results[index], torch.Tensor):
                values[name] = results[index].detach().cpu()
        return values

    def reference(self, inputs: Values) -> Values:
        """Return the references of the stored values that the task's graph does not have."""
        arguments = self._copy_inputs(self._task.bind(inputs))
        compiled = self._compiled_graph(arguments, replayed=False)
        part, read = _forward(compiled), _read(compiled, arguments)
        wanted: dict[str, list[str]] = {}
        for buffer, label in self._labels(part).items():
            if label.value is None and (operation := part.buffers.operation(buffer)) is not None:
                wanted.setdefault(operation, []).append(label.name)
        values: dict[str, torch.Tensor] = {}

        def visit(name: str, value: torch.Tensor) -> None:
            values.update(dict.fromkeys(wanted.get(name, ()), self._original_dtype(value).detach().cpu()))

        visit_nodes(part.lowered.aot_module, read, visit)
        return values

    def isolate(self, inputs: Values, references: ReferenceLookup) -> dict[str, torch.Tensor]:
        """Return what each kernel stores if the values of earlier kernels are overwritten with references, by name.

        References are rounded to the dtype of the buffer: to float16, if the graph is in float16.
        """
        arguments = self._copy_inputs(self._task.bind(inputs))
        compiled = self._compiled_graph(arguments, replayed=False)
        values: dict[str, torch.Tensor] = {}
        with self._running():
            self._observed(compiled, arguments, partial(_overwrite, values, references, self._copy_stored))
        return values

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        with torch.set_grad_enabled(self._task.gradients), self._options.reductions():
            try:
                yield
            except Exception as error:  # compiled code raises errors of all types
                raise BackendError(f"backend 'inductor' can't run the program: {error}") from error

    def _observed(
        self, compiled: CompiledGraph, arguments: Sequence[Any], observe: Callable[[Sequence[Stored]], None]
    ) -> Any:
        """Run the graph and call `observe` with what each kernel has stored."""
        labels = {id(part): self._labels(part) for part in compiled.parts}

        def observer(part: CompiledPart, inputs: list[Any]) -> Any:
            known = labels[id(part)]
            return part.watched(inputs, lambda _, tensors: observe([known[name].of(t) for name, t in tensors.items()]))

        with mock.patch.object(compiled, "observer", observer):
            return compiled(*arguments)

    def _copy_stored(self, stored: Stored) -> torch.Tensor:
        """Copy a stored value to the CPU, with the dtype of the task's graph."""
        return self._original_dtype(stored.tensor).to("cpu", copy=True)

    def _compiled_graph(self, arguments: Sequence[Any], *, replayed: bool = True) -> CompiledGraph:
        """Return the graph compiled for such inputs, without CUDA graphs if not `replayed`."""
        settings = self._options.settings()
        replayed = replayed or not settings.get("triton.cudagraphs")
        key = (replayed, *(() if self._task.guarded else map(_properties, arguments)))
        if key not in self._graphs:
            settings |= {} if replayed else {"triton.cudagraphs": False}
            with torch.set_grad_enabled(self._task.gradients), self._options.reductions():
                self._graphs[key] = CompiledGraph(self._module, arguments, settings)
        return self._graphs[key]

    def _copy_inputs(self, values: Sequence[Any]) -> list[Any]:
        """Copy the inputs to the device, where a kernel may overwrite them; share those that no kernel overwrites."""
        task = self._task
        shared = {index for index in task.read_only if _is_on(values[index], task.device)}
        copied = copy_tensors([None if index in shared else item for index, item in enumerate(values)], task.device)
        return [_shared(item) if index in shared else copied[index] for index, item in enumerate(values)]

    def _original_dtype(self, value: torch.Tensor) -> torch.Tensor:
        """Cast a value of the float16 graph, if it is one, to the dtype of the original graph."""
        return value.float() if self._options.use_fp16 and value.dtype == torch.float16 else value

    def _labels(self, part: CompiledPart) -> Mapping[str, Label]:
        return _labels(part.buffers, self._task.graph, self._task.exported_names)


def _overwrite(
    values: dict[str, torch.Tensor],
    references: ReferenceLookup,
    copied: Callable[[Stored], torch.Tensor],
    stored: Sequence[Stored],
) -> None:
    """Add what a kernel has stored to the values, and overwrite it with the references."""
    new = [item for item in stored if item.name not in values]  # an overwritten value may be observed again
    values.update({item.name: copied(item) for item in new})
    for item in new:  # after all are copied, as one may be part of another
        tensor = references(item.name)
        if tensor is not None and spec_of(tensor) == spec_of(values[item.name]):
            item.overwrite(tensor)


@dataclass(frozen=True)
class PartKernels:
    """The kernels of one part, with the names of the graph that Inductor got from AOTAutograd.

    Attributes:
        graph: the attribute `wrapper` of a node is where it is called or defined; its `code` is its own file, if any.
        computed: maps the name of a kernel to the names of all operations that it computes, with constants and views.
        buffers: maps the name of a value to the name of the buffer that holds it, or of which it is a view.
    """

    graph: Graph
    computed: Mapping[str, Sequence[str]]
    buffers: Mapping[str, str]


def kernels_of_part(part: CompiledPart) -> PartKernels:
    """Return the kernels of one part, with the names of AOTAutograd's graph."""
    aot_graph = part.lowered.aot_graph
    buffers, naming_graph = BufferMap(aot_graph, part.lowered), graph_from_fx(aot_graph)
    compiled = _as_compiled(part, buffers, naming_graph, {}, None)
    nodes = tuple(map(_with_files, compiled.graph.nodes, part.lowered.kernels))
    labels = _labels(buffers, naming_graph, {})
    names = {name: label.name for buffer, label in labels.items() for name, _ in buffers.values(buffer)}
    return PartKernels(replace(compiled.graph, nodes=nodes), buffers.all_computed, names)


def _with_files(node: Node, kernel: Kernel) -> Node:
    code = f"{kernel.source_file}:1" if kernel.source_file else node.code
    return replace(node, code=code, attributes={**node.attributes, "wrapper": kernel.code})


def _as_compiled(
    part: CompiledPart, buffers: BufferMap, naming_graph: Graph, exported_names: Mapping[str, str], handle: Any
) -> Compiled:
    """Return the kernels of one part as a graph, with the names of the values of `naming_graph`.

    Args:
        part: the compiled part.
        buffers: maps its buffers to the values of the graph that Inductor got.
        naming_graph: the graph whose values give the names.
        exported_names: the names of values in `naming_graph`, by those in the graph that Inductor got, if they differ.
        handle: what the backend runs (see `Compiled.handle`).
    """
    labels = _labels(buffers, naming_graph, exported_names)
    nodes_by_target: dict[str, list[Node]] = {}
    for node in naming_graph.nodes:
        nodes_by_target.setdefault(node.target or "", []).append(node)
    nodes_by_kernel = {
        kernel: _input_dependent(naming_graph, [node for name in names for node in nodes_by_target.get(name, ())])
        for kernel, names in buffers.all_computed.items()
    }
    input_names = _input_names(part, buffers, exported_names)
    names = {**input_names, **{buffer: label.name for buffer, label in labels.items()}}
    constants = tuple(name for name in dict.fromkeys(input_names.values()) if name in naming_graph.constants)
    graph = Graph(
        name=naming_graph.name,
        inputs=naming_graph.inputs,
        outputs=naming_graph.outputs,
        constants=constants,
        nodes=tuple(_node(kernel, names, nodes_by_kernel[kernel.name]) for kernel in part.lowered.kernels),
        values={
            name: naming_graph.values.get(name, Value(name))
            for name in (*naming_graph.inputs, *constants, *names.values())
        },
    )
    return Compiled(
        graph,
        handle,
        {kernel: tuple(node.name for node in nodes) for kernel, nodes in nodes_by_kernel.items()},
        {label.name: label.value for label in labels.values() if label.value not in (None, label.name)},
        intermediate_graphs=lambda: {
            "AOTAutograd": graph_from_fx(part.lowered.aot_graph, naming_graph.name),
            "Inductor": graph_from_fx(part.lowered.graph, naming_graph.name),
        },
    )


def _labels(buffers: BufferMap, naming_graph: Graph, exported_names: Mapping[str, str]) -> Mapping[str, Label]:
    """Return the labels of the stored buffers, with the names of `naming_graph`, by the names of the buffers."""
    return buffers.labels({**{name: name for name in naming_graph.known}, **exported_names}, naming_graph.outputs)


def _input_dependent(graph: Graph, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes whose values depend on the inputs, or all nodes but `Constant` if none does."""
    dependent = tuple(node for node in nodes if not graph.constant_values.issuperset(node.outputs))
    return dependent or tuple(node for node in nodes if node.op != "Constant")


def _input_names(part: CompiledPart, buffers: BufferMap, exported_names: Mapping[str, str]) -> dict[str, str]:
    """Map the names of Inductor's inputs to those of the naming graph."""
    sources, inputs = buffers.source.find_nodes(op="placeholder"), part.lowered.aot_graph.find_nodes(op="placeholder")
    pairs = zip(inputs, sources, strict=False)
    return {node.name: exported_names.get(source.name, source.name) for node, source in pairs}


def _read(compiled: CompiledGraph, arguments: Sequence[Any]) -> list[Any]:
    """Return what AOTAutograd gives the forward part for some arguments, without running the part.

    It adds parameters, leaves frozen ones out, and joins arguments that share memory.
    """

    def observer(_: CompiledPart, inputs: list[Any]) -> NoReturn:
        raise _Stop(inputs)

    with mock.patch.object(compiled, "observer", observer):
        try:
            compiled(*arguments)
        except _Stop as stop:
            return stop.inputs
    raise BackendError("backend 'inductor' did not run the compiled graph")


class _Stop(Exception):  # noqa: N818  it is no error
    def __init__(self, inputs: list[Any]) -> None:
        self.inputs = inputs


def _forward(compiled: CompiledGraph) -> CompiledPart:
    if not compiled.parts:
        raise BackendError("backend 'inductor' has nothing to compile: the program computes nothing")
    return next(part for part in compiled.parts if not part.lowered.backward)


def _properties(value: Any) -> Any:
    """Return the properties of an input for which a graph is compiled."""
    return (value.shape, value.dtype, value.stride()) if isinstance(value, torch.Tensor) else value


def _is_on(item: Any, device: torch.device | None) -> bool:
    """Return whether an input is a tensor that is on this device, any device if None."""
    return isinstance(item, torch.Tensor) and (device is None or item.device == device)


def _shared(item: torch.Tensor) -> torch.Tensor:
    """Return a tensor that shares the memory of an input."""
    return item.detach().requires_grad_(item.requires_grad)


def _node(kernel: Kernel, names: Mapping[str, str], computed: Sequence[Node]) -> Node:
    last = next((node for node in reversed(computed) if node.module is not None), None)
    return Node(
        kernel.name,
        kernel.op,
        tuple(names[name] for name in kernel.reads if name in names),
        tuple(names[name] for name in kernel.writes),
        {"buffers": list(kernel.variables)},
        module=last.module if last else None,
        source=last.source if last else None,
        code=kernel.code,
    )


def _run_backward(part: CompiledPart, inputs: list[Any], callback: Callable[[BackwardRun], None]) -> Any:
    """Run a backward graph, call `callback` with another run that was observed on copies, and return the outputs."""
    aot_graph = part.lowered.aot_graph
    graph = graph_from_fx(aot_graph)
    buffers = BufferMap(aot_graph, part.lowered)
    labels = _labels(buffers, graph, {})
    kept = copy_tensors(inputs)  # generated code may reuse the memory of its inputs
    arguments = zip(graph.inputs, kept, strict=True)
    values = {name: item.detach().cpu() for name, item in arguments if isinstance(item, torch.Tensor)}

    def copied(stored: Stored) -> torch.Tensor:
        return stored.tensor.to("cpu", copy=True)

    def stored_by(tensors: Mapping[str, torch.Tensor]) -> list[Stored]:
        return [labels[name].of(tensor) for name, tensor in tensors.items()]

    def observe(_: Kernel, tensors: Mapping[str, torch.Tensor]) -> None:
        values.update({item.name: copied(item) for item in stored_by(tensors)})

    def isolate(references: ReferenceLookup) -> Values:
        isolated: dict[str, torch.Tensor] = {}
        part.watched(
            copy_tensors(kept), lambda _, tensors: _overwrite(isolated, references, copied, stored_by(tensors))
        )
        return isolated

    def reference() -> Values:
        expected: dict[str, torch.Tensor] = {}
        copied = copy_tensors(kept)  # the graph may write to its inputs
        visit_nodes(part.lowered.aot_module, copied, lambda name, value: expected.update({name: value.detach().cpu()}))
        return expected

    def by_name(results: Sequence[Any]) -> dict[str, torch.Tensor]:
        nodes: Any = aot_graph.output_node().args[0]
        items = [(node, result) for node, result in zip(nodes, results, strict=True) if isinstance(node, fx.Node)]
        return {node.name: result.detach().cpu() for node, result in items if isinstance(result, torch.Tensor)}

    observed_outputs = part.watched(copy_tensors(inputs), observe)
    compiled = _as_compiled(part, buffers, graph, {}, None)
    outputs = part.plain(inputs)
    values |= by_name(observed_outputs)
    given = dict(zip(graph.inputs, kept, strict=True))
    callback(BackwardRun(graph, compiled, values, reference, by_name(outputs), part.lowered.aot_module, given, isolate))
    return outputs
