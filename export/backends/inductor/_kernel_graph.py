"""Compile a torch graph with Inductor, and run it as a graph of kernels."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import fx

from ..._errors import BackendError
from ...common._copies import copy_tensors
from ...evaluation._devices import changed_copy
from ...evaluation._eager import node_values
from ...graph._graph import Graph
from .._backend import BackwardRun, Compiled, ReferenceLookup, Values
from ._buffer_map import Stored
from ._compiled_fx import CompiledGraph, GeneratedCode
from ._half import to_float16
from ._named_kernels import NamedKernels, replacing_observer
from ._options import InductorOptions

_NO_EFFECT = "{} has no effect: the graph runs on the CPU"


@dataclass(frozen=True)
class CompileTask:
    """A torch graph to compile, and the graph whose names the results have.

    Attributes:
        module: the torch graph, with flat inputs and outputs.
        graph: a graph of the same operations; see `NamedKernels.graph`.
        bind: converts the inputs by name to the arguments of `module`.
        value_names: see `NamedKernels.value_names`.
        outputs: the indices of the results of `module` that are the outputs of `graph`.
        read_only: the indices of the inputs that no kernel overwrites.
        device: the device to run on; None is that of the inputs.
        guarded: whether the caller guarantees inputs of the same shapes as when it is compiled.
        gradients: whether it is compiled for training, with a backward pass.
    """

    module: fx.GraphModule
    graph: Graph
    bind: Callable[[Values], list[Any]]
    value_names: Mapping[str, str] = field(default_factory=dict)
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
        self._graphs: dict[tuple[Any, ...], CompiledGraph] = {}  # by `_compilation_key` of the inputs

    def __call__(self, *inputs: Any) -> Any:
        """Run it without observation, with the arguments of the original graph; supports autograd."""
        with self._options.reductions():
            return self._first_graph(*inputs)

    @property
    def _first_graph(self) -> CompiledGraph:
        """The graph that `compiled_for` compiled."""
        return next(iter(self._graphs.values()))

    def watch_backward(self, callback: Callable[[BackwardRun], None]) -> None:
        """Call `callback` with the first run of each backward graph, which may be compiled later."""
        observed: list[GeneratedCode] = []

        def observer(code: GeneratedCode, inputs: list[Any]) -> Any:
            if not code.lowered.backward or code in observed:
                return code.run(inputs)
            observed.append(code)
            return _run_backward(code, inputs, callback)

        self._first_graph.observer = observer

    def compiled_for(self, inputs: Sequence[Any]) -> Compiled:
        """Compile the graph for such inputs, which may be on any device if the task has a device."""
        notes = self._notes(inputs)
        compiled = self._compiled_graph(inputs if self._task.guarded else self._copy_inputs(inputs))
        return replace(self._named_kernels(compiled.forward).compiled(self), notes=notes)

    def _notes(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """Raise an error for options without effect, because all inputs are on the CPU; otherwise return ().

        Return a note instead if torch.compile (`guarded`) compiles with CUDA graphs: a model that is compiled with this
        option may have graphs on several devices.
        """
        devices = {self._task.device or item.device for item in inputs if isinstance(item, torch.Tensor)}
        if not devices or any(device.type != "cpu" for device in devices):
            return ()
        if self._options.use_fp16_reduction:
            raise BackendError(f"backend 'inductor': {_NO_EFFECT.format('use_fp16_reduction')}")
        if self._options.use_cuda_graph and not self._task.guarded:
            raise BackendError(f"backend 'inductor': {_NO_EFFECT.format('use_cuda_graph')}")
        return (_NO_EFFECT.format("use_cuda_graph"),) if self._options.use_cuda_graph else ()

    def source_codes(self) -> list[str]:
        """Return the text of the generated code."""
        lowered = [code.lowered for compiled in self._graphs.values() for code in compiled.codes]
        return [Path(item.module.__file__ or "").read_text("utf-8") for item in lowered]

    def steps(self) -> dict[str, str]:
        """Return the kind of each step that Inductor has applied and that can be left out, by name."""
        return {name: kind for compiled in self._graphs.values() for name, kind in compiled.steps.taken.items()}

    def left_out(self) -> set[str]:
        """Return the names of the steps that were left out."""
        return set[str]().union(*(compiled.steps.met for compiled in self._graphs.values()))

    def run(self, inputs: Values, watch: Collection[str], outputs: Sequence[str]) -> Values:
        """Run the graph and return the outputs, by these names, and the watched values."""
        arguments = self._copy_inputs(self._task.bind(inputs))
        compiled = self._compiled_graph(arguments, with_cuda_graphs=not watch)
        values: dict[str, torch.Tensor] = {}

        def observe(stored: Sequence[Stored]) -> None:
            values.update({item.name: self._copy_stored(item) for item in stored if item.name in watch})

        with self._running():
            results = self._run_observed(compiled, arguments, observe) if watch else compiled(*arguments)
        for name, index in zip(outputs, self._task.outputs, strict=True):
            if isinstance(results[index], torch.Tensor):
                values[name] = results[index].detach().cpu()
        return values

    def reference(self, inputs: Values) -> Values:
        """Return the references of the stored values that the task's graph does not have, by their labels.

        These are what the operations of AOTAutograd's graph compute in eager PyTorch.
        """
        arguments = self._copy_inputs(self._task.bind(inputs))
        compiled = self._compiled_graph(arguments, with_cuda_graphs=False)
        kernels = self._named_kernels(compiled.forward)
        operations = {
            label.name: operation
            for buffer, label in kernels.labels.items()
            if label.value is None and (operation := kernels.buffers.operation(buffer)) is not None
        }
        aot_inputs = _aot_inputs(compiled, arguments)
        computed = node_values(compiled.forward.lowered.aot_module, aot_inputs, wanted={*operations.values()})
        found = {name: computed[operation] for name, operation in operations.items() if operation in computed}
        return {name: self._original_dtype(value) for name, value in found.items()}

    def isolate(self, inputs: Values, references: ReferenceLookup) -> dict[str, torch.Tensor]:
        """Return what each kernel stores if the values of earlier kernels are overwritten with references, by name.

        References are rounded to the dtype of the buffer: to float16, if the graph is in float16.
        """
        arguments = self._copy_inputs(self._task.bind(inputs))
        compiled = self._compiled_graph(arguments, with_cuda_graphs=False)
        values: dict[str, torch.Tensor] = {}
        with self._running():
            self._run_observed(compiled, arguments, replacing_observer(values, references, self._copy_stored))
        return values

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Set what the options set globally in the block, and convert errors of compiled code."""
        with torch.set_grad_enabled(self._task.gradients), self._options.reductions():
            try:
                yield
            except Exception as error:  # compiled code raises errors of all types
                raise BackendError(f"backend 'inductor' can't run the program: {error}") from error

    def _run_observed(
        self, compiled: CompiledGraph, arguments: Sequence[Any], observe: Callable[[Sequence[Stored]], None]
    ) -> Any:
        """Run the graph and call `observe` with what each kernel has stored."""

        def observer(code: GeneratedCode, inputs: list[Any]) -> Any:
            return self._named_kernels(code).run(inputs, observe)

        with mock.patch.object(compiled, "observer", observer):
            return compiled(*arguments)

    def _named_kernels(self, code: GeneratedCode) -> NamedKernels:
        """Return the kernels of generated code with the names of the task's graph."""
        return NamedKernels(code, code.buffers, self._task.graph, self._task.value_names)

    def _copy_stored(self, stored: Stored) -> torch.Tensor:
        """Copy a stored value to the CPU, with the dtype of the task's graph."""
        return self._original_dtype(stored.tensor).to("cpu", copy=True)

    def _compiled_graph(self, arguments: Sequence[Any], *, with_cuda_graphs: bool = True) -> CompiledGraph:
        """Return the graph compiled for such inputs; CUDA graphs, which can't be observed, are used only if allowed."""
        settings = self._options.settings()
        if not with_cuda_graphs and settings.get("triton.cudagraphs"):
            settings["triton.cudagraphs"] = False
        # If the caller guards the shapes, one graph is enough.
        key = (bool(settings.get("triton.cudagraphs")), *(() if self._task.guarded else map(_guarded, arguments)))
        if key not in self._graphs:
            with torch.set_grad_enabled(self._task.gradients), self._options.reductions():
                self._graphs[key] = CompiledGraph(
                    changed_copy(self._module), arguments, settings, self._options.without
                )
        return self._graphs[key]

    def _copy_inputs(self, values: Sequence[Any]) -> list[Any]:
        """Copy the inputs to the device, where a kernel may overwrite them; share those that no kernel overwrites."""
        task = self._task
        shared = {index for index in task.read_only if _is_on(values[index], task.device)}
        copied = copy_tensors([None if index in shared else item for index, item in enumerate(values)], task.device)
        return [_alias(item) if index in shared else copied[index] for index, item in enumerate(values)]

    def _original_dtype(self, value: torch.Tensor) -> torch.Tensor:
        """Cast a value of the float16 graph, if it is one, to the dtype of the original graph."""
        return value.float() if self._options.use_fp16 and value.dtype == torch.float16 else value


def _aot_inputs(compiled: CompiledGraph, arguments: Sequence[Any]) -> list[Any]:
    """Return the inputs that AOTAutograd passes to the forward code for some arguments, without running the code.

    It adds parameters, leaves frozen ones out, and joins arguments that share memory.
    """

    def observer(_: GeneratedCode, inputs: list[Any]) -> NoReturn:
        raise _Stop(inputs)

    with mock.patch.object(compiled, "observer", observer):
        try:
            compiled(*arguments)
        except _Stop as stop:
            return stop.inputs
    raise BackendError("backend 'inductor' did not run the compiled graph")


class _Stop(Exception):  # noqa: N818  it is no error
    """Ends a run when the inputs of the forward code are known."""

    def __init__(self, inputs: list[Any]) -> None:
        self.inputs = inputs


def _guarded(value: Any) -> Any:
    """Return the properties of an input for which a graph is compiled."""
    return (value.shape, value.dtype, value.stride()) if isinstance(value, torch.Tensor) else value


def _is_on(item: Any, device: torch.device | None) -> bool:
    """Return whether an input is a tensor that is on this device, any device if None."""
    return isinstance(item, torch.Tensor) and (device is None or item.device == device)


def _alias(item: torch.Tensor) -> torch.Tensor:
    """Return a tensor that shares the memory of an input."""
    return item.detach().requires_grad_(item.requires_grad)


def _run_backward(code: GeneratedCode, inputs: list[Any], callback: Callable[[BackwardRun], None]) -> Any:
    """Run backward code, call `callback` with another run that was observed on copies, and return the outputs."""
    kernels = NamedKernels.of_aot_graph(code)
    graph, aot_module = kernels.graph, code.lowered.aot_module
    arguments = copy_tensors(inputs)  # generated code may reuse the memory of its inputs
    by_name = dict(zip(graph.inputs, arguments, strict=True))
    values = {name: item.detach().cpu() for name, item in by_name.items() if isinstance(item, torch.Tensor)}

    def copy_stored(stored: Stored) -> torch.Tensor:
        return stored.tensor.to("cpu", copy=True)

    def observe(stored: Sequence[Stored]) -> None:
        values.update({item.name: copy_stored(item) for item in stored})

    def isolate(references: ReferenceLookup) -> Values:
        isolated: dict[str, torch.Tensor] = {}
        kernels.run(copy_tensors(arguments), replacing_observer(isolated, references, copy_stored))
        return isolated

    def reference() -> Values:
        return node_values(aot_module, copy_tensors(arguments))  # copied, because the graph may write to its inputs

    def gradients(results: Sequence[Any]) -> dict[str, torch.Tensor]:
        nodes: Any = aot_module.graph.output_node().args[0]
        pairs = zip(nodes, results, strict=True)  # None in place of the gradient of what requires none
        return {node.name: item.detach().cpu() for node, item in pairs if isinstance(item, torch.Tensor)}

    observed_outputs = kernels.run(copy_tensors(inputs), observe)
    compiled = kernels.compiled()
    outputs = code.run(inputs)
    values |= gradients(observed_outputs)
    callback(BackwardRun(graph, compiled, values, reference, gradients(outputs), aot_module, by_name, isolate))
    return outputs
