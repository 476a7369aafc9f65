"""Record one call of a model so that its operations can be run again, with other numbers in place of some values."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from filch.steal import ModuleInfo, tensors
from filch.steal.private._torch import pytree
from filch.steal.values._arguments import argument_tensors

from ..graph._arguments import leaves_of, map_leaves, tensors_of, written_arguments
from ..graph._graph import Graph
from ._dispatched import DispatchTracer, TracingMode
from ._module_calls import ModuleCallStack
from ._step import Function, TracedStep, run, trace_errors

Visit = Callable[[str, torch.Tensor], None]
Kind = Literal["returned", "argument", "buffer"]
OnResult = Callable[["RunResult", torch.Tensor], None]


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
        record: the module's path in a capture, which has one path for each module; `""` if it is `module`.
    """

    module: str
    path: str
    value: str
    record: str = ""

    @property
    def name(self) -> str:
        """The place of the tensor in a capture: the path of the module and that of the tensor."""
        return f"{self.record or self.module}{self.path}"


@dataclass(frozen=True)
class RunResult:
    """A tensor that a call of a model leaves to its caller.

    Attributes:
        kind: whether the model returned it, or it is an argument or a buffer that the call has changed.
        path: its path in the result (`""`, `[0]`), in the arguments (`cache.layers[0].keys`) or in the model.
        value: the name of its value; that of the last write to its memory; `""` of a Python number or string.
        handle: tells its tensor object apart from others of the run; 0 of a Python number or string.
        given: the name of the value that it had before the call; `""` of a result, or if there was none.
    """

    kind: Kind
    path: str
    value: str
    handle: int = 0
    given: str = ""

    @property
    def key(self) -> str:
        """Its name beside the names of values."""
        return f"{self.kind} {self.path}"


@dataclass(frozen=True)
class RecordedRun:
    """One call of a model, as operations that can be run again.

    Attributes:
        graph: a node for each call of an ATen operator.
        calls: the calls in order.
        sources: the names of the inputs, weights and constants, by the handles of their tensors.
        outputs: the tensors that modules returned, in the order in which they returned.
        results: what the call leaves to its caller: first what it returned, and then what it changed.
    """

    graph: Graph
    calls: tuple[RecordedCall, ...]
    sources: Mapping[int, str]
    outputs: tuple[ModuleOutput, ...] = field(repr=False)
    results: tuple[RunResult, ...] = field(default=(), repr=False)


def record_run(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    visit: Visit,
    *,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
    on_result: OnResult = lambda *_: None,
) -> RecordedRun:
    """Call a model without gradients, and record its operations.

    Args:
        model: the model.
        args: its positional arguments; they are copied.
        kwargs: its keyword arguments; likewise.
        visit: called with the name and tensor of each value as soon as it is there: inputs, weights, constants and
            results. The model may change the tensor later.
        within: returns a context in which the model is called; a dispatch mode in it sees the same calls.
        on_result: called with each result, and its tensor, when the model has returned. That of a string has its bytes.

    Raises:
        TraceError: the model fails on these inputs.
    """
    name = type(model).__name__
    tracer = _ReplayTracer(ModuleCallStack(model), name, visit, within, on_result)
    with (
        trace_errors(f"{name} itself fails on these inputs"),
        torch.compiler.set_stance("force_eager"),  # compiled functions would be recorded only in part
        tracer.calls.observed(),
        tracer.module_outputs(model),
    ):
        run(TracedStep(model, args, kwargs), tracer)
    return RecordedRun(
        tracer.graph(), tuple(tracer.recorded), tracer.sources, tuple(tracer.outputs), tuple(tracer.results)
    )


class _ReplayTracer(DispatchTracer):
    """Records calls with all their arguments."""

    def __init__(
        self,
        calls: ModuleCallStack,
        name: str,
        visit: Visit,
        within: Callable[[], AbstractContextManager[object]],
        on_result: OnResult,
    ) -> None:
        super().__init__(calls, name)
        self._visit, self._within, self._on_result = visit, within, on_result
        self.recorded: list[RecordedCall] = []
        self.sources: dict[int, str] = {}
        self.outputs: list[ModuleOutput] = []
        self.results: list[RunResult] = []
        # Arguments and buffers before the call, by kind and path: the tensor, and the names of its value.
        self._given: dict[tuple[Kind, str], tuple[torch.Tensor, tuple[str, ...]]] = {}
        self._calls = Counter[str]()  # of modules so far
        self._handles: Any = WeakIdKeyDictionary()  # by tensor
        self._last_handle = 0

    def begin(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """Record the parameters and buffers and the inputs, by name; called when the run starts, before the model."""
        super().begin(weights, inputs)
        for tensor in (*weights.values(), *inputs.values()):
            self._handle(tensor)
        names = self.recording.inputs
        for name, tensor in zip(names, inputs.values(), strict=True):
            self._visit(name, tensor)  # a tensor that is given twice has two names
        # What `_add_result` compares with after the call, to find what the call has changed.
        kinds: tuple[tuple[Kind, Mapping[str, torch.Tensor]], ...] = (("buffer", weights), ("argument", inputs))
        for kind, given in kinds:
            self._given |= {(kind, path): (item, self.recording.names_of(item)) for path, item in given.items()}

    def prepare(self, function: Function) -> Function:
        """Return a function that calls the model as `function` does, and records that; called after `begin`.

        `run` copies the arguments before and restores the model afterwards: neither is recorded.
        """

        def recorded(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            with self._within():
                with TracingMode(self):
                    result = function(model, args, kwargs)
                self._record_results(model, result, argument_tensors(ModuleInfo.of(model).parameters, args, kwargs))
            return result

        return recorded

    def _record_results(self, model: nn.Module, result: Any, arguments: Mapping[str, torch.Tensor]) -> None:
        """Record what the call leaves to its caller."""
        for path, tensor in tensors(result).items():
            self._add_result("returned", path, tensor)
        for keys, leaf in pytree.tree_flatten_with_path(result)[0]:
            if isinstance(leaf, int | float | complex | str):
                number = RunResult("returned", pytree.keystr(keys), "")
                self.results.append(number)
                self._on_result(number, _as_tensor(leaf))
        for path, tensor in model.named_buffers():
            self._add_result("buffer", path, tensor)
        for path, tensor in arguments.items():
            self._add_result("argument", path, tensor)

    def _add_result(self, kind: Kind, path: str, tensor: torch.Tensor) -> None:
        """Record a tensor, unless it is one that the model was given and has not changed."""
        before, given = self._given.get((kind, path), (None, ("",)))
        names = self.recording.names_of(tensor)
        if tensor is not before or names != given:
            # The last name is that of the last write to its memory, the first one that of the tensor itself.
            result = RunResult(kind, path, names[-1], self._handle(tensor), given[0])
            self.results.append(result)
            self._on_result(result, tensor)

    def call(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute a call, and record it if a node was recorded for it."""
        count = len(self.recording.nodes)
        arguments: Any = (tuple(args), dict(kwargs))
        if not self.paused:  # while paused, no node is recorded
            arguments = map_leaves(self._reference, arguments)
        output = super().call(operator, args, kwargs)
        if len(self.recording.nodes) > count:
            node = next(reversed(self.recording.nodes.values()))
            results = list(tensors_of([output], {}))
            written = tensors_of(written_arguments(operator, args, kwargs), {})
            results += [tensor for tensor in written if not any(tensor is item for item in results)]
            named_results = list(zip(results, node.outputs, strict=False))  # `item()` has an output that is no tensor
            for tensor, name in named_results:
                self._visit(name, tensor)
            handles = tuple((self._handle(tensor), name) for tensor, name in named_results)
            self.recorded.append(RecordedCall(node.name, operator, arguments[0], arguments[1], handles))
        return output

    @contextmanager
    def module_outputs(self, model: nn.Module) -> Iterator[None]:
        """Record what modules return inside of the block."""
        with ExitStack() as stack:
            for path, module in model.named_modules():
                if not isinstance(module, torch.jit.ScriptModule):  # these do not support hooks
                    # Before the hook of `calls` that ends the module's call.
                    hook = module.register_forward_hook(partial(self._after_module, path), prepend=True)
                    stack.callback(hook.remove)
            yield

    def _after_module(self, path: str, _module: nn.Module, _args: Any, output: Any) -> None:
        """Record the tensors that the module at a path returned; a forward hook."""
        count = self._calls[path]
        self._calls[path] += 1
        record = f"{path}@{count}" if count else path
        for tensor_path, tensor in tensors(output).items():
            value = self.recording.names_of(tensor)[0]  # of the tensor itself, not of later writes to its memory
            self.outputs.append(ModuleOutput(self.calls.innermost_path or "", tensor_path, value, record))

    def _reference(self, item: Any) -> Any:
        """Return a `TensorReference` for a tensor, and any other argument as it is."""
        return TensorReference(self._handle(item)) if isinstance(item, torch.Tensor) else item

    def _handle(self, tensor: torch.Tensor) -> int:
        """Return the handle of a tensor; a new one that no node has computed becomes a source, and is visited."""
        if tensor not in self._handles:
            self._last_handle += 1
            self._handles[tensor] = self._last_handle
            name = self.recording.names_of(tensor)[0]
            if name not in self.recording.producers:
                self.sources[self._last_handle] = name
                self._visit(name, tensor)
        return int(self._handles[tensor])


def _as_tensor(leaf: complex | str) -> torch.Tensor:
    """Return a Python number as a tensor, and the bytes of a string or of a number that no dtype holds."""
    if isinstance(leaf, str) or (isinstance(leaf, int) and not -(2**63) <= leaf < 2**63):
        return torch.tensor([*str(leaf).encode(errors="surrogatepass")], dtype=torch.uint8)
    return torch.tensor(leaf)
