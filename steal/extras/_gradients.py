"""The gradients with respect to what modules take and give."""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .._key import Key
from .._records import Origin
from ..capture._calls import Frame
from ..capture._extra import Recording
from ..values._dtypes import not_storable
from ..values._foreign import Spec
from ..values._raw import no_modes_or_grad
from ..values._structure import encode

_task = torch._C._current_graph_task_id  # noqa: SLF001  which backward pass this thread works for; nothing public tells
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001  as DDP does
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  nothing public tells
_CONTAINERS = ("tuple", "list", "dict", "fields", "state")
_Arrived = Callable[[int, torch.Tensor | None], None]  # the index of a tensor, and its gradient


class Gradients:
    """Hooks on the tensors that calls take and give, gone with the graph that these belong to.

    Hooks on tensors see what flows and change nothing; torch's full backward hooks put nodes into the graph.
    """

    def start(self, recording: Recording) -> None:
        """See `Extra.start`."""
        self._recording = recording
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()

    def entered(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Listen now: a forward that changes its input in place gives that tensor another gradient."""
        if self._recording.wants(frame.iteration):
            call = _Call(self._recording, frame)
            call.listen_to_inputs(args, kwargs)
            frame.notes["gradients"] = call, args, kwargs

    def left(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """See `Extra.left`."""
        call, first, named = frame.notes.pop("gradients", (None, (), {}))
        if call is None or not call.listen_to_output(output):
            return
        if not _same((*first, *named.values()), (*args, *kwargs.values())):  # later hooks gave it others
            call.listen_to_inputs(args, kwargs)
        self._calls.add(call)

    def stop(self) -> None:
        """See `Extra.stop`."""
        for call in list(self._calls):
            call.close()


def _same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return len(first) == len(second) and all(one is other for one, other in zip(first, second, strict=True))


class _Side:
    """One record to come.

    Attributes:
        spec: how the value is nested, with `{"hole": index}` for each tensor that needs a gradient.
        paths: where these tensors stand.
        found: the specs of their gradients, by index; None for one that is known to be none.
        kept: whether the record is made.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.handles: list[Any] = []
        self.clear()

    def clear(self) -> None:
        self.found: dict[int, Spec] = {}
        self.kept = False

    def drop(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def listen(self, value: Any, arrived: _Arrived) -> None:
        """Have `arrived` called with each gradient of `value`, as that is now."""
        self.drop()
        self.paths: list[str] = []

        def hole(tensor: torch.Tensor, path: str) -> Spec:
            if not tensor.requires_grad or _is_wrapped(tensor):
                return {"none": None}
            self.paths.append(path)
            index = len(self.paths) - 1
            with no_modes_or_grad():
                self._hook(tensor, partial(arrived, index))
                base = tensor._base  # noqa: SLF001  nothing public tells
                if base is not None and base.grad_fn is not None and base.is_contiguous() and not not_storable(tensor):
                    self._hook(base, _View(tensor, base, partial(arrived, index)).arrived)
            return {"hole": index}

        self.spec = encode(value, hole, exact=False)

    def _hook(self, tensor: torch.Tensor, hook: Callable[[torch.Tensor | None], None]) -> None:
        self.handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]


class _View:
    """A tensor that lies in another, as a linear layer's output does.

    After a change in place, torch leads the gradient past a view's node, and our hook there, to the other's. It holds
    neither tensor.
    """

    def __init__(self, view: torch.Tensor, base: torch.Tensor, arrived: Callable[[torch.Tensor | None], None]) -> None:
        self._arrived = arrived
        self._place = view.size(), view.stride(), view.storage_offset() - base.storage_offset()
        self._counter = view.detach()
        self._counter.data = view.new_empty(0)  # what is left of it shares the view's version counter, and no memory
        self._version = view._version  # noqa: SLF001  nothing public tells

    def arrived(self, gradient: torch.Tensor | None) -> None:
        """The other's gradient is complete."""
        if gradient is not None and self._counter._version != self._version:  # noqa: SLF001  as above
            if not_storable(gradient) is None:
                with no_modes_or_grad():
                    gradient = gradient.detach().contiguous().as_strided(*self._place)
            self._arrived(gradient)


class _Call:
    """The gradients of one call.

    The graph holds it, by the hooks on the output; it holds nothing of the graph, and no cycle keeps either alive.
    Hooks on the inputs, which may outlive this graph (a leaf, what an encoder gave), know it weakly and go with it.
    """

    def __init__(self, recording: Recording, frame: Frame) -> None:
        self._recording = recording
        self._origin: Origin = frame.origin
        self._inputs = _Side(Key(frame.name, frame.iteration, "GI"))
        self._output = _Side(Key(frame.name, frame.iteration, "GO"))
        self._task: int | None = None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        self._inputs.drop()
        self._output.drop()

    def listen_to_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known, side = weakref.ref(self), self._inputs

        def arrived(index: int, gradient: torch.Tensor | None) -> None:
            call = known()
            if call is not None:
                call.arrived(side, index, gradient)

        side.listen((args, kwargs), arrived)

    def listen_to_output(self, output: Any) -> bool:
        """Whether there will be a gradient to hear of."""
        self._output.listen(output, partial(self.arrived, self._output))
        return bool(self._output.handles)

    def arrived(self, side: _Side, index: int, gradient: torch.Tensor | None) -> None:
        """A gradient is complete; torch calls this in any of its threads."""
        with self._recording.guarded(side.key.name):
            task = _task()
            closed = not side.handles  # while torch went through its hooks
            late = task != self._task and (self._output.kept or self._inputs.kept)
            if closed or late or not self._recording.takes(side.key.kind):
                return
            if task != self._task:
                self._begin(task)
            given = gradient is not None
            side.found[index] = self._recording.encoded(side.key, gradient, side.paths[index]) if given else None
            for one in (self._output, self._inputs):
                if len(one.found) == len(one.paths):
                    self._keep(one)

    def _begin(self, task: int) -> None:
        """A backward pass has come to this call; one that was here before failed, and left nothing."""
        self._task = task
        self._inputs.clear()
        self._output.clear()
        _queue_callback(lambda: self._end(task))

    def _end(self, task: int) -> None:
        """The pass is over: what it has not reached by now has no gradient in it."""
        with self._recording.guarded(self._output.key.name):
            if self._task != task or not self._output.handles:
                return
            if not any(self._output.found.values()):  # it came to the inputs by another way than through this call
                self._task = None
                return
            self._keep(self._output)
            self._keep(self._inputs)
            self.close()

    def _keep(self, side: _Side) -> None:
        if not side.kept and any(side.found.values()) and any(self._output.found.values()):
            side.kept = True
            self._recording.keep(side.key, _filled(side.spec, side.found), self._origin)


def _filled(spec: Spec, found: dict[int, Spec]) -> Spec:
    """The spec with the gradients in its holes, and None for all else that is no container."""
    if not isinstance(spec, dict):
        return None
    if "hole" in spec:
        return found.get(spec["hole"])
    tag = next((tag for tag in _CONTAINERS if tag in spec), None)
    if tag is None:
        return None
    parts = [name for name in (tag, "attributes") if name in spec]
    return {**spec, **{name: [[key, _filled(item, found)] for key, item in spec[name]] for name in parts}}
