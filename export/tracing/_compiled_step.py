"""Record a step compiled by torch.compile: Inductor's kernels, and the operations that they compute."""

import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import fx

from filch.steal.private._torch import dynamo_config

from .._errors import TraceError
from ..backends.inductor._compiled_fx import CompiledGraph, GeneratedCode
from ..backends.inductor._kernels import Kernel
from ..backends.inductor._named_kernels import NamedKernels
from ..common._quiet import quiet
from ..graph._graph import Graph
from ..graph._nodes import Node, Value
from ._dispatched import DispatchTracer, TracingMode
from ._module_calls import ModuleCallStack
from ._recorded_operations import JointGraph, OperationRecorder, RecordedOperations
from ._step import Function, TracedStep, Tracer, run, trace_errors


def compiled_step(step: TracedStep) -> Graph:
    """Run a step compiled by Inductor and record the kernels.

    The optimizer is compiled, too, if possible; otherwise its ATen calls are recorded one by one.

    Args:
        step: the step; it first runs in eager PyTorch without gradients, to find the call sites of modules.

    Returns:
        the graph of the executed kernels and of ATen calls that were not compiled (autograd makes some to pass
        gradients); its `source_graph` is the forward and backward graph of AOTAutograd's operations.

    Raises:
        TraceError: see `run`; or nothing was compiled.
        BackendError: Inductor can't compile it, or this version of torch does not report what its kernels compute.
    """
    name = type(step.model).__name__
    calls = ModuleCallStack(step.model)
    eager = torch.compiler.set_stance("force_eager")
    with trace_errors(f"{name} itself fails on these inputs"), eager, calls.observed():
        run(replace(step, loss=None, optimizer=None), Tracer())
    tracer = CompiledStep(step, calls, compiles_optimizer=True)
    with trace_errors(f"backend 'inductor' can't trace {name}"):
        try:
            tracer.run(step)
        except Exception:
            if not tracer.updating:
                raise
            tracer = CompiledStep(step, calls, compiles_optimizer=False)
            tracer.run(step)
    if not tracer.compiled:
        raise TraceError(
            f"torch.compile compiled nothing of {name}: it is switched off, can't follow the model (an nn.LSTM, say), "
            "or there is nothing to compute; backend='eager' traces what runs"
        )
    return tracer.graph()


_MANY = 10_000  # recompilations: no limit in practice


class CompiledStep(DispatchTracer):
    """Records the kernels of compiled code, and other calls that torch dispatches.

    Args:
        step: the step.
        calls: the calls of its modules in eager PyTorch.
        compiles_optimizer: whether to compile the optimizer, too.

    Attributes:
        updating: whether the optimizer runs, or raised the exception that ended the run.
        compiled: whether compiled code has run.
    """

    def __init__(self, step: TracedStep, calls: ModuleCallStack, *, compiles_optimizer: bool) -> None:
        super().__init__(calls, type(step.model).__name__)
        self.updating = False
        self.compiled = False
        self._compiles_optimizer = compiles_optimizer
        self._executed: list[Node] = []  # kernels, and calls that were not compiled
        self._buffers: dict[str, Value] = {}  # buffers of kernels that are not values of operations
        self._written: set[str] = set()  # outputs of kernels
        self._bases: dict[str, str] = {}  # the value whose memory a value shares, by the latter

    def run(self, step: TracedStep) -> None:
        """Run a step without warnings: the model's were shown in eager PyTorch, and Dynamo's concern compilation."""
        # At graph breaks, Dynamo counts all compiled versions of the model's code, including those of earlier traces.
        limits = dynamo_config.patch(recompile_limit=_MANY, accumulated_recompile_limit=_MANY)
        with warnings.catch_warnings(), limits, TracingMode(self):  # no hooks: Dynamo would compile them
            warnings.simplefilter("ignore")
            run(step, self)

    def prepare(self, function: Function) -> Function:
        """See `Tracer.prepare`: compile the function."""
        if self.updating and not self._compiles_optimizer:
            return function
        # Dynamo caches compiled code by code object and globals, and stops after some versions.
        fresh = FunctionType(function.__code__.replace(), {**function.__globals__}, function.__name__)
        return torch.compile(fresh, backend=partial(_compile_with, ref(self)), dynamic=False)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Tracer.update`."""
        self.updating = True
        with quiet():  # Dynamo warns that it ignores profiler events
            super().update(optimizer)
        self.updating = False  # not in `finally`: after an exception, it tells that the optimizer raised it

    def add_node(self, node: Node) -> None:
        """See `DispatchTracer.add_node`: a dispatched call is one execution."""
        super().add_node(node)
        self._executed.append(replace(node, origins=(node.name,)))

    def graph(self) -> Graph:
        """See `DispatchTracer.graph`: the executed nodes, which read values in memory instead of views of them."""
        operations = super().graph()
        in_memory = {*operations.inputs, *operations.constants}
        in_memory.update(name for node in self._executed for name in node.outputs)
        nodes: list[Node] = []
        last_execution: dict[str, int] = {}  # by operation, the index of the last node that computed it
        for node in self._executed:
            inputs = tuple(dict.fromkeys(self._base(name, in_memory) for name in node.inputs))
            for name in inputs:
                producer = None if name in in_memory else operations.producer.get(name)
                if producer is not None and producer.name in last_execution:
                    # Inductor does not report which buffer holds the value: it is added to what the node computes.
                    index = last_execution[producer.name]
                    nodes[index] = replace(nodes[index], outputs=(*nodes[index].outputs, name))
                    in_memory.add(name)
            last_execution.update(dict.fromkeys(node.origins, len(nodes)))
            nodes.append(replace(node, inputs=inputs))
        outputs = tuple(self._base(name, in_memory) for name in operations.outputs)
        values = {**operations.values, **self._buffers}
        return replace(operations, nodes=tuple(nodes), outputs=outputs, values=values, source_graph=operations)

    def _base(self, name: str, in_memory: Container[str]) -> str:
        """Return a value that is in memory: the value itself, or one of which it is a view."""
        for _ in self._bases:  # no chain of views is longer
            if name in in_memory or name not in self._bases:
                break
            name = self._bases[name]
        return name

    def compile(self, module: fx.GraphModule, inputs: Sequence[Any]) -> CompiledGraph:
        """Compile a graph for Dynamo."""
        compiled = CompiledGraph(module, inputs, {})
        compiled.observer = partial(_run_with, ref(self), JointGraph(self.calls.frames))
        return compiled

    def run_code(self, joint: JointGraph, code: GeneratedCode, inputs: list[Any]) -> Any:
        """Run generated code and record its operations and its kernels."""
        copied = list(inputs)  # running the code empties the list
        recorder = OperationRecorder(code, copied, self.recording, joint, self.calls.running)
        paused, self.paused = self.paused, True
        try:
            outputs = code.run(inputs)
        finally:
            self.paused = paused
        self.compiled = True
        operations = recorder.record(outputs)
        for node in operations.nodes:
            super().add_node(node)
        if operations.nodes:
            self.sequence_numbers.assign(operations.nodes[-1].name, operations.nodes[-1].op)
        self._executed += self._kernels(code, operations)
        return outputs

    def _kernels(self, code: GeneratedCode, operations: RecordedOperations) -> Iterator[Node]:
        """Yield the kernels of generated code with the names of the recording."""
        kernels = NamedKernels.of_aot_graph(code)
        nodes = kernels.compiled().graph.nodes
        names = {name: values[0] for name, values in operations.values.items()}
        for name in (name for node in nodes for name in node.outputs if name not in names):
            names[name] = self.recording.unique(name)
            self._buffers[names[name]] = Value(names[name])
        self._bases |= operations.views
        # The buffer that holds a value, or of which it is a view, may have another name.
        held = ((operations.values[name][0], names[label]) for name, label in kernels.labels_by_value.items())
        self._bases |= {name: label for name, label in held if name != label}
        for node, kernel in zip(nodes, code.lowered.kernels, strict=True):
            origins = (operations.by_name.get(name) for name in kernels.buffers.all_computed[node.name])
            computed = {origin.name: origin for origin in origins if origin is not None}
            yield self._kernel_node(node, kernel, names, [*computed.values()])

    def _kernel_node(self, node: Node, kernel: Kernel, names: Mapping[str, str], computed: Sequence[Node]) -> Node:
        """Return a kernel with the names of the recording, and the stack of the last operation that it computes.

        Args:
            node: the kernel as a node, with the names of AOTAutograd's graph.
            kernel: the kernel. The attribute `wrapper` is where it is called; `Node.code` is its own file, if any.
            names: the names of values in the recording, by those in AOTAutograd's graph.
            computed: the recorded operations that it computes, in order.
        """
        # A value that is written back to an input does not always have a buffer of its own.
        written_back = [name for item in computed for name in item.outputs if "@" in name]
        stored = [*(names[name] for name in node.outputs), *written_back]
        outputs = tuple(dict.fromkeys(name for name in stored if name not in self._written))
        self._written.update(outputs)
        derivatives = [item.gradient_of for item in computed if item.gradient_of is not None]
        last = computed[-1] if computed else node
        return replace(
            node,
            name=self.recording.unique(node.name),
            inputs=tuple(dict.fromkeys(names.get(name, name) for name in node.inputs)),
            outputs=outputs,
            attributes={**node.attributes, "wrapper": kernel.code},
            code=f"{kernel.source_file}:1" if kernel.source_file else kernel.code,
            module=last.module,
            stack=last.stack,
            origins=tuple(item.name for item in computed),
            gradient_of=derivatives[-1] if derivatives and len(derivatives) == len(computed) else None,
        )


# Dynamo keeps backends and their results forever; weak references let the tracer and the model be freed.
def _compile_with(tracer: "ref[CompiledStep]", module: fx.GraphModule, inputs: Sequence[Any]) -> Function:
    """Compile a graph, or leave it as it is if its tracer no longer exists."""
    alive = tracer()
    return module.forward if alive is None else alive.compile(module, inputs)


def _run_with(tracer: "ref[CompiledStep]", joint: JointGraph, code: GeneratedCode, inputs: list[Any]) -> Any:
    """Run generated code, and record it if its tracer still exists."""
    alive = tracer()
    return code.run(inputs) if alive is None else alive.run_code(joint, code, inputs)
