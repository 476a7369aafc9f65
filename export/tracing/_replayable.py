"""Record one call of a model so that its operations can be run again, with other numbers in place of some values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from filch.steal import tensors

from ..graph._arguments import leaves_of, map_leaves, tensors_of, written_arguments
from ..graph._graph import Graph
from ._dispatched import DispatchTracer, TracingMode
from ._module_calls import ModuleCallStack
from ._step import Function, TracedStep, run, trace_errors

Visit = Callable[[str, torch.Tensor], None]


@dataclass(frozen=True)
class TensorReference:
    """Stands for a tensor among the arguments of a recorded call.

    Attributes:
        handle: tells the tensor objects of a run apart.
    """

    handle: int


@dataclass(frozen=True)
class RecordedCall:
    """One call of an operator.

    Attributes:
        node: the name of its node in the graph.
        operator: the operator.
        args: its positional arguments; each tensor is a `TensorReference`.
        kwargs: its keyword arguments, likewise.
        results: the handles of the tensors that it returned, in the order of the tree of its result, and then of those
            that it wrote to in place; with the names of their new values.
    """

    node: str
    operator: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[tuple[int, str], ...]

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The handles of the tensors among its arguments."""
        items = leaves_of((*self.args, *self.kwargs.values()))
        return tuple(item.handle for item in items if isinstance(item, TensorReference))


@dataclass(frozen=True)
class ModuleOutput:
    """A tensor that a module returned.

    Attributes:
        module: the module's path, with `@1` after a second call.
        path: the tensor's path in the result (`""`, `[0]`).
        value: the name of its value.
    """

    module: str
    path: str
    value: str


@dataclass(frozen=True)
class RecordedRun:
    """One call of a model, as operations that can be run again.

    Attributes:
        graph: a node for each call of an ATen operator.
        calls: the calls in order.
        sources: the names of the inputs, weights and constants, by the handles of their tensors.
        outputs: the tensors that modules returned, in the order in which they returned.
    """

    graph: Graph
    calls: tuple[RecordedCall, ...]
    sources: Mapping[int, str]
    outputs: tuple[ModuleOutput, ...] = field(repr=False)


def record_run(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    visit: Visit,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> RecordedRun:
    """Call a model without gradients, and record its operations.

    Args:
        model: the model.
        args: its positional arguments; they are copied.
        kwargs: its keyword arguments; likewise.
        visit: called with the name and tensor of each value as soon as it is there: inputs, weights, constants and
            results. The model may change the tensor later.
        within: returns a context in which the model is called; a dispatch mode in it sees the same calls.

    Raises:
        TraceError: the model fails on these inputs.
    """
    name = type(model).__name__
    tracer = _ReplayTracer(ModuleCallStack(model), name, visit, within)
    with (
        trace_errors(f"{name} itself fails on these inputs"),
        torch.compiler.set_stance("force_eager"),  # compiled functions would be recorded only in part
        tracer.calls.observed(),
        tracer.module_outputs(model),
    ):
        run(TracedStep(model, args, kwargs), tracer)
    return RecordedRun(tracer.graph(), tuple(tracer.recorded), tracer.sources, tuple(tracer.outputs))


class _ReplayTracer(DispatchTracer):
    """Records calls with all their arguments."""

    def __init__(
        self, calls: ModuleCallStack, name: str, visit: Visit, within: Callable[[], AbstractContextManager[object]]
    ) -> None:
        super().__init__(calls, name)
        self._within = within
        self.recorded: list[RecordedCall] = []
        self.sources: dict[int, str] = {}
        self.outputs: list[ModuleOutput] = []
        self._visit = visit
        self._handles: Any = WeakIdKeyDictionary()  # by tensor
        self._last_handle = 0

    def begin(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """See `Tracer.begin`."""
        super().begin(weights, inputs)
        for tensor in (*weights.values(), *inputs.values()):
            self._handle(tensor)
        for name, tensor in zip(self.recording.inputs, inputs.values(), strict=True):
            self._visit(name, tensor)  # a tensor that is given twice has two names

    def prepare(self, function: Function) -> Function:
        """See `Tracer.prepare`: the copies that are made around the call of the model are not recorded."""

        def recorded(*args: Any) -> Any:
            with self._within(), TracingMode(self):
                return function(*args)

        return recorded

    def call(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute and record a call."""
        count = len(self.recording.nodes)
        references: Any = (tuple(args), dict(kwargs))
        if not self.paused:
            references = map_leaves(self._reference, references)
        output = super().call(operator, args, kwargs)
        if len(self.recording.nodes) > count:
            node = next(reversed(self.recording.nodes.values()))
            results = list(tensors_of([output], {}))
            written = tensors_of(written_arguments(operator, args, kwargs), {})
            results += [tensor for tensor in written if not any(tensor is item for item in results)]
            pairs = list(zip(results, node.outputs, strict=False))
            for tensor, name in pairs:
                self._visit(name, tensor)
            handles = tuple((self._handle(tensor), name) for tensor, name in pairs)
            self.recorded.append(RecordedCall(node.name, operator, references[0], references[1], handles))
        return output

    @contextmanager
    def module_outputs(self, model: nn.Module) -> Iterator[None]:
        """Record what modules return inside of the block."""
        modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        hooks = [module.register_forward_hook(self._after_module, prepend=True) for module in modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _after_module(self, _module: nn.Module, _args: Any, output: Any) -> None:
        label = self.calls.innermost_path or ""
        for path, tensor in tensors(output).items():
            self.outputs.append(ModuleOutput(label, path, self.recording.names_of(tensor)[0]))

    def _reference(self, item: Any) -> Any:
        return TensorReference(self._handle(item)) if isinstance(item, torch.Tensor) else item

    def _handle(self, tensor: torch.Tensor) -> int:
        """Return the handle of a tensor; one that no call has returned is a source."""
        if tensor not in self._handles:
            self._last_handle += 1
            self._handles[tensor] = self._last_handle
            name = self.recording.names_of(tensor)[0]
            if name not in self.recording.producers:
                self.sources[self._last_handle] = name
                self._visit(name, tensor)
        return int(self._handles[tensor])
