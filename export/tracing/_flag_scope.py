"""Trace everything that runs in a block of code, with Jittor's flags."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from filch.steal.private._torch import get_current_dispatch_mode_stack, make_grads

from .._errors import TraceError
from ..graph._nodes import Node
from ..views._trace import trace_of
from ._any_calls import AnyModelCallStack, all_frames, object_calls, user_lines
from ._call_sites import caller_outside, callers, innermost_frames, is_filch
from ._dispatched import DispatchTracer, TracingMode, mark_derivative
from ._recording import GraphRecording
from ._sequence_numbers import SequenceNumbers

_LEVELS = {
    0: "records nothing",
    1: "keeps what is still alive, without executions",
    2: "records all, with the calls of modules",
    3: "records all, with all calls of Python",
}


@contextmanager
def flag_scope(*, trace_py_var: int | None = None, trace_var_data: int | None = None) -> Iterator[None]:
    """Trace what this thread runs in the block: models and their initialization, losses, gradients and optimizers.

    The results are the same bits as without tracing. `dump_trace_data` returns the trace, inside or after the block; a
    second block adds to it until `clear_trace_data`. Blocks can be nested: an inner block changes the flags until its
    end, and keeps those that are None. Each thread has its own trace. Other threads are not traced, except those in
    which autograd computes gradients for this thread. Until the last block of any thread ends, functions compiled by
    torch.compile run in eager PyTorch, because their kernels hide the operations. All hooks and modes are removed at
    the end of the block, also after an exception.

    Args:
        trace_py_var: 0 records nothing; 1 records operators whose results are still alive when the trace is dumped, and
            no executions; 2 records all, each with the modules, constructors and optimizers in which it runs, or else
            with the three innermost lines; 3 records all, each with all Python calls inside of the block. None keeps
            the current value, which is 0 outside of all blocks.
        trace_var_data: 1 copies the data of every variable, which needs memory for all of them; 0 does not. None keeps
            the current value.

    Raises:
        TraceError: a flag has another value; or this version of torch does not expose autograd's sequence numbers.

    >>> with flag_scope(trace_py_var=2):
    ...     model = torch.nn.Linear(2, 3)
    ...     loss = model(torch.ones(1, 2)).sum()
    ...     loss.backward()
    >>> data = dump_trace_data()
    >>> clear_trace_data()
    >>> operators = [node for node in data["node_data"].values() if node["attrs"]["is_var"] == "0"]
    >>> [node["attrs"]["name"] for node in operators if node["stacks"][0]["name"] == "model"]
    ['t', 'addmm']
    """
    if trace_py_var is not None and trace_py_var not in _LEVELS:
        levels = "; ".join(f"{level} {text}" for level, text in _LEVELS.items())
        raise TraceError(f"trace_py_var is {trace_py_var!r}, and has to be one of: {levels}")
    if trace_var_data not in (None, 0, 1):
        raise TraceError(f"trace_var_data is {trace_var_data!r}, and has to be one of: 0 or 1")
    if _thread.tracer is None:
        _thread.tracer = ScopeTracer()
    with _thread.tracer.scope(trace_py_var, trace_var_data, _opened_by(sys._getframe())):  # noqa: SLF001  documented
        yield


def dump_trace_data() -> dict[str, dict[int, dict[str, Any]]]:
    """Return what `flag_scope` has recorded in this thread since the last `clear_trace_data`.

    Returns:
        the dictionary that `trace` describes. With `trace_var_data=1`, `attrs` of a variable also has `data`: its
        numbers in order, separated by commas, with enough digits to be exact; booleans are 0 and 1. The dictionaries
        are empty if nothing was recorded.
    """
    return _thread.tracer.dump() if _thread.tracer is not None else {"node_data": {}, "execute_op_info": {}}


def clear_trace_data() -> None:
    """Delete what `flag_scope` has recorded in this thread; an open block keeps recording.

    Ids start at 0 again.
    """
    if _thread.tracer is not None:
        _thread.tracer.clear()


@dataclass(frozen=True)
class _Flags:
    """The flags of a scope.

    Attributes:
        level: `trace_py_var`.
        copies_data: `trace_var_data`.
        opened_by: the code that opened the outermost scope; None outside of all.
    """

    level: int = 0
    copies_data: bool = False
    opened_by: CodeType | None = None


class _Thread(threading.local):
    """The state of a thread: the tracer of its scopes, created on first use."""

    tracer: "ScopeTracer | None" = None


_thread = _Thread()


class ScopeTracer(DispatchTracer):
    """Records what a thread runs while a `flag_scope` is open in it.

    Attributes:
        unexecuted: names of the nodes that were recorded at level 1, without executions.
    """

    def __init__(self) -> None:
        self._mode = TracingMode(self)
        label = lambda tensor, path: self.recording.label(tensor, path)  # noqa: E731, PLW0108  `clear` replaces the recording
        self._model_calls = AnyModelCallStack(self._is_observed, label)
        super().__init__(self._model_calls, "block")
        self._flags = _Flags()
        self._paused_at = 0  # autograd's next number when recording was paused
        self.clear()

    def clear(self) -> None:
        """Delete the recording."""
        self.recording = GraphRecording(self._model_calls.path_of)
        self.recording.copies_data = self._flags.copies_data
        self.sequence_numbers = SequenceNumbers()
        self.sequence_numbers.skip(0, self.sequence_numbers.next_number())  # earlier operations are not recorded
        self.unexecuted: set[str] = set()

    @contextmanager
    def scope(self, level: int | None, data: int | None, opened_by: CodeType | None) -> Iterator[None]:
        """Record inside of the block with these flags; None keeps the current value."""
        before = self._flags
        with ExitStack() as stack:
            if before.opened_by is None:
                stack.enter_context(_without_compilation())
                stack.enter_context(self._model_calls.observed())
                stack.enter_context(self._mode)
            stack.callback(self._set_flags, before)
            level = before.level if level is None else level
            copies_data = before.copies_data if data is None else bool(data)
            self._set_flags(_Flags(level, copies_data, before.opened_by or opened_by))
            yield

    def _set_flags(self, flags: _Flags) -> None:
        """Record with these flags from now on."""
        self._flags = flags
        self.recording.copies_data = flags.copies_data
        self._set_paused(paused=flags.level == 0)

    def _set_paused(self, *, paused: bool) -> None:
        """Pause or resume recording, and skip the sequence numbers of the operations in between."""
        if paused and not self.paused:
            self._paused_at = self.sequence_numbers.next_number()
        elif self.paused and not paused:
            self.sequence_numbers.skip(self._paused_at, self.sequence_numbers.next_number())
        self.paused = paused

    def dump(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the recording as `dump_trace_data` does."""
        paused = self.paused
        self._set_paused(paused=True)  # reading data runs operations
        try:
            alive = self.recording.alive()
            graph = self.graph()
            dead = {node for node in self.unexecuted if alive.isdisjoint(self.recording.nodes[node].outputs)}
            graph = replace(graph, nodes=tuple(node for node in graph.nodes if node.name not in dead))
            data = {name: text for name, tensor in self.recording.data.items() if (text := _text(tensor)) is not None}
            return trace_of(graph, labels=self.recording.labels, data=data, unexecuted=self.unexecuted)
        finally:
            self._set_paused(paused=paused)

    def add_node(self, node: Node) -> None:
        """See `DispatchTracer.add_node`."""
        super().add_node(node)
        if self._flags.level == 1:
            self.unexecuted.add(node.name)

    def with_call_stack(self, node: Node) -> Node:
        """See `DispatchTracer.with_call_stack`."""
        frame, opened_by = sys._getframe(1), self._flags.opened_by  # noqa: SLF001  documented
        begins = node.op == "ones_like" and _begins_backward(frame)
        loss = self.recording.producers.get(node.inputs[0]) if begins else None
        if loss is not None:
            return mark_derivative(node, loss)
        if self._flags.level == len(_LEVELS) - 1:  # all calls of Python
            stack = all_frames(frame, opened_by)
        else:
            lines = user_lines(frame, opened_by)
            stack = self.calls.running or object_calls(frame, opened_by) or innermost_frames(lines)
        source = next(user_lines(frame, opened_by), None)
        return replace(node, stack=stack, module=self.calls.innermost_path, source=source)

    def owner(self, parameter: torch.Tensor) -> str | None:
        """See `DispatchTracer.owner`."""
        return self._model_calls.owner_of(parameter)

    def _is_observed(self) -> bool:
        """Return whether the current thread is recorded; autograd's threads have the modes of the original one."""
        return any(mode is self._mode for mode in get_current_dispatch_mode_stack())


def _begins_backward(frame: FrameType | None) -> bool:
    """Return whether a frame creates the gradient of a loss with respect to itself, which is 1."""
    return any(caller.f_code is _MAKE_GRADS for caller in islice(callers(frame, None), _MAX_BETWEEN))


_MAKE_GRADS = make_grads.__code__
_MAX_BETWEEN = 13  # frames of Filch and torch


def _opened_by(frame: FrameType | None) -> CodeType | None:
    """Return the code that opens the scope, from a frame inside of `flag_scope`."""
    caller = caller_outside(frame, lambda file: is_filch(file) or file == contextlib.__file__)
    return None if caller is None else caller.f_code


def _text(tensor: torch.Tensor) -> str | None:
    """Return the exact numbers of a tensor as text; None if torch can't read them."""
    if tensor.dtype == torch.bool:
        tensor = tensor.to(torch.uint8)
    with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse, quantized, 4 bits
        return ",".join(map(str, tensor.reshape(-1).tolist()))
    return None


_lock = threading.Lock()
_eager_threads: list[int] = []  # those with an open block
_eager_setting = ExitStack()


@contextmanager
def _without_compilation() -> Iterator[None]:
    """Disable compiled functions while any thread has an open block: the setting is global."""
    with _lock:
        if not _eager_threads:
            _eager_setting.enter_context(torch.compiler.set_stance("force_eager"))
        _eager_threads.append(threading.get_ident())
    try:
        yield
    finally:
        with _lock:
            _eager_threads.remove(threading.get_ident())
            if not _eager_threads:
                _eager_setting.close()
