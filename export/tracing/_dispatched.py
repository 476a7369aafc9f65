"""Record a step in eager PyTorch: a node for each ATen call, including the backward pass and the optimizer."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from filch.steal.private._torch import TorchDispatchMode

from ..graph._arguments import leaves_of, named_arguments, settings_of, tensors_of, written_arguments
from ..graph._from_fx import GRADIENT, operator_name
from ..graph._graph import Graph
from ..graph._nodes import Frame, Node, Value
from ._call_sites import innermost_frames, lines_within, outside
from ._module_calls import ModuleCallStack, class_of
from ._recording import GraphRecording
from ._sequence_numbers import SequenceNumbers
from ._step import TracedStep, Tracer, run, trace_errors

# Their schemas do not declare that they write to the running statistics.
_STATISTICS = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}  # dtypes of Python numbers
_UNRECORDED_NAMESPACES = ("profiler", "prim")  # profiler events, and queries of tensor properties


def trace_dispatched(step: TracedStep) -> Graph:
    """Run a step and record each ATen call.

    The operation of a derivative is found by the sequence number of the running autograd node. When gradients of one
    value are summed, that is the node whose gradient has just arrived.

    Raises:
        TraceError: see `run`; or this version of torch does not expose the sequence numbers.
    """
    name = type(step.model).__name__
    tracer = DispatchTracer(ModuleCallStack(step.model), name)
    with (
        trace_errors(f"{name} itself fails on these inputs"),
        torch.compiler.set_stance("force_eager"),  # compiled functions would be recorded only in part
        tracer.calls.observed(),
        TracingMode(tracer),
    ):
        run(step, tracer)
    return tracer.graph()


class DispatchTracer(Tracer):
    """Records the calls that torch dispatches.

    Args:
        calls: the stack of module calls.
        name: the name of the graph.

    Attributes:
        recording: the graph so far.
        calls: the stack of module calls.
        paused: whether recording is paused.
        sequence_numbers: finds the operation of a derivative.
    """

    def __init__(self, calls: ModuleCallStack, name: str) -> None:
        self.recording = GraphRecording()
        self.paused = True
        self.calls = calls
        self.sequence_numbers = SequenceNumbers()
        self._name = name
        self._loss: Node | None = None  # while the backward pass runs
        self._weight_names: dict[int, str] = {}
        self._results: tuple[str, ...] = ()

    def begin(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """See `Tracer.begin`."""
        self._weight_names = {id(tensor): name for name, tensor in weights.items()}
        for name, tensor in weights.items():
            self.recording.add_constant(tensor, name)
        for name, tensor in inputs.items():
            self.recording.add_input(tensor, name)
        self.paused = False

    def backward(self, loss: torch.Tensor) -> None:
        """See `Tracer.backward`."""
        self._loss = self.recording.producers.get(self.recording.names_of(loss)[0])
        super().backward(loss)
        self._loss = None

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Tracer.update`."""
        with self.calls.inside(Frame("optimizer", class_of(optimizer), outside(sys._getframe()))):  # noqa: SLF001  documented
            super().update(optimizer)

    def end(self, results: Sequence[torch.Tensor]) -> None:
        """See `Tracer.end`."""
        self.paused = True
        self._results = tuple(dict.fromkeys(self.recording.names_of(tensor)[0] for tensor in results))

    def graph(self) -> Graph:
        """Return the recorded graph."""
        return self.recording.graph(self._name, self._results)

    def call(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute and record a call."""
        if self.paused or getattr(operator, "namespace", "") in _UNRECORDED_NAMESPACES:
            return operator(*args, **kwargs)
        inputs = [name for tensor in tensors_of(args, kwargs) for name in self.recording.names_of(tensor)]
        output = operator(*args, **kwargs)
        written = _written(operator, args, kwargs)
        self._record(operator, settings_of(operator, args, kwargs), inputs, output, written)
        return output

    def add_node(self, node: Node) -> None:
        """Add a node to the recording."""
        self.recording.add_node(node)

    def _record(
        self, operator: Any, settings: dict[str, Any], inputs: list[str], output: Any, written: list[torch.Tensor]
    ) -> None:
        """Add a node for a call that has run, and the values that it computed or changed in place.

        Args:
            operator: the operator.
            settings: its arguments that are no tensors, by name.
            inputs: the names of the values that it read.
            output: what it returned.
            written: the tensors that it changed in place.
        """
        op = operator_name(operator)
        name = self.recording.unique(op)
        results = [item for item in leaves_of(output) if isinstance(item, torch.Tensor)]
        results += [tensor for tensor in written if not any(tensor is item for item in results)]
        names = [name if len(results) == 1 else f"{name}:{index}" for index in range(len(results))]
        written_ids = {id(tensor) for tensor in written}
        outputs = tuple(
            (self.recording.add_write if id(tensor) in written_ids else self.recording.add_result)(tensor, value)
            for tensor, value in zip(results, names, strict=True)
        )
        if not results and type(output) in _NUMBERS:  # `item()`
            outputs = (self.recording.add_value(Value(name, _NUMBERS[type(output)], ())),)
        self.add_node(self._with_stack(Node(name, op, tuple(dict.fromkeys(inputs)), outputs, settings)))
        self.sequence_numbers.assign(name, op)

    def _with_stack(self, node: Node) -> Node:
        """Return the node that has just run, with its stack.

        In a backward pass that is the stack of the operation whose derivative it computes, after `grad`; of the sum of
        a parameter's gradients, that of the first call of the module which owns the parameter.
        """
        running = self.sequence_numbers.running_node()
        if running is None:
            return self.with_call_stack(node)
        if running.name().endswith("AccumulateGrad"):  # no operation computed the parameter
            owner = self.owner(running.variable)
            stack = self.calls.first_stacks.get(owner or "", ())
            return replace(node, stack=(GRADIENT, *stack), module=owner)
        return mark_derivative(node, self.recording.nodes.get(self.sequence_numbers.differentiated_node(running) or ""))

    def with_call_stack(self, node: Node) -> Node:
        """Return a node that autograd does not run, with the calls in which it runs."""
        if self._loss is not None:  # the derivative of the loss by itself, which is 1
            return mark_derivative(node, self._loss)
        here = sys._getframe(1)  # noqa: SLF001  documented
        lines = lines_within(here, run.__code__)
        # Without lines of user code in the step, the innermost line outside of torch and Filch is shown.
        stack = self.calls.running or innermost_frames(lines or filter(None, [outside(here)]))
        return replace(node, stack=stack, module=self.calls.innermost_path, source=lines[0] if lines else None)

    def owner(self, parameter: torch.Tensor) -> str | None:
        """Return the path of the module that owns a parameter; "" if that is the model, or is not known."""
        return self._weight_names.get(id(parameter), "").rpartition(".")[0]


def mark_derivative(node: Node, differentiated: Node | None) -> Node:
    """Return a node marked as part of the derivative of `differentiated`, which is None if it is unknown."""
    if differentiated is None:
        return replace(node, stack=(GRADIENT,))
    stack = (GRADIENT, *differentiated.stack)
    return replace(node, stack=stack, module=differentiated.module, gradient_of=differentiated.name)


class TracingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that passes each ATen call of this thread and of its backward threads to a tracer."""

    supports_higher_order_operators = True  # needed by `torch.cond` and flex attention

    def __init__(self, tracer: DispatchTracer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracer = tracer

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile as usual: by default it does not inside of a dispatch mode."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._tracer.call(func, args, kwargs or {})


def _written(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a call has changed in place."""
    written = written_arguments(operator, args, kwargs)
    if operator_name(operator) in _STATISTICS:
        named = named_arguments(operator, args, kwargs)
        written += [named.get("running_mean"), named.get("running_var")] if named.get("training") else []
    return list(tensors_of(written, {}))
