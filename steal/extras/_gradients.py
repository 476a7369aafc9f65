"""Record the gradients with respect to module inputs and outputs."""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .._key import Key
from .._records import Origin
from ..capture._calls import RunningCall, graph_task_id, is_same
from ..capture._placement_tags import PlacementTags
from ..capture._recorder import Extra, Recorder
from ..private._torch import queue_callback
from ..values._dtypes import is_functorch_wrapped, is_storable
from ..values._encode import encode
from ..values._foreign import Spec
from ..values._raw import no_modes_or_grad
from ..values._sharding import Sharding

_CONTAINERS = ("tuple", "list", "dict", "fields", "state")  # tags of the specs into which gradients are inserted
_TensorHook = Callable[[torch.Tensor | None], None]  # called with a gradient
_OnGradient = Callable[[int, torch.Tensor | None], None]  # called with a tensor's index and gradient


class Gradients(Extra):
    """Hooks the input and output tensors of calls; the hooks are freed with the graph.

    Tensor hooks don't change the graph; torch's full backward hooks insert nodes into it.
    """

    def __init__(self) -> None:
        self._calls: weakref.WeakSet[_CallGradients] = weakref.WeakSet()

    def call_began(self, frame: RunningCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook the inputs before the forward, which may change them in place."""
        if self._recorder.options.wants(frame.iteration):
            call = _CallGradients(self._recorder, frame)
            call.hook_inputs(*frame.caller_inputs)
            frame.extra_data["gradients"] = call, args, kwargs

    def call_ended(self, frame: RunningCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Hook the output, and inputs that later hooks have replaced."""
        call, old_args, old_kwargs = frame.extra_data.pop("gradients", (None, (), {}))
        if call is None or not call.hook_output(output):
            return
        if not is_same((*old_args, *old_kwargs.values()), (*args, *kwargs.values())):  # replaced
            call.hook_inputs(args, kwargs)
        self._calls.add(call)

    def stop(self) -> None:
        """Remove the hooks of calls that had no backward pass."""
        for call in list(self._calls):
            call.close()


class _GradientRecord:
    """A gradient record that is being collected.

    Attributes:
        key: the key of the record.
        handles: of the hooks on the tensors.
        spec: the structure of the value, with `{"gradient": index}` for each tensor that requires a gradient.
        paths: the paths of these tensors.
        layouts: of plain tensors that DTensors were made of or converted to, by the index of the tensor.
        gradients: the specs of their gradients by index; None for a tensor without one.
        is_stored: whether the record was stored.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.handles: list[Any] = []
        self.clear()

    def clear(self) -> None:
        """Forget the gradients of a backward pass."""
        self.gradients: dict[int, Spec] = {}
        self.is_stored = False

    def remove_hooks(self) -> None:
        """Remove the hooks on the tensors."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def hook(self, value: Any, on_gradient: _OnGradient, tags: PlacementTags | None) -> None:
        """Hook all tensors in `value` that require a gradient, to call `on_gradient`."""
        self.remove_hooks()
        self.paths: list[str] = []
        self.layouts: dict[int, Sharding] = {}

        def hook_tensor(tensor: torch.Tensor, path: str) -> Spec:
            if not tensor.requires_grad or is_functorch_wrapped(tensor):
                return {"none": None}  # not in _CONTAINERS: `_insert_gradients` puts None here
            index = len(self.paths)
            self.paths.append(path)
            if tags is not None and (sharding := tags.layout(tensor)) is not None:
                self.layouts[index] = sharding.reduced  # the gradient of a partial value is replicated
            with no_modes_or_grad():
                self._register(tensor, partial(on_gradient, index))
                base = tensor._base  # noqa: SLF001  there is no public API
                if base is not None and base.grad_fn is not None and base.is_contiguous() and is_storable(tensor):
                    self._register(base, _base_hook(tensor, base, partial(on_gradient, index)))
            return {"gradient": index}

        # Not exact: each occurrence of a tensor is hooked. Not local: a DTensor is hooked as a whole.
        self.spec = encode(value, hook_tensor, exact=False, local=False)

    def _register(self, tensor: torch.Tensor, hook: _TensorHook) -> None:
        """Hook a tensor."""
        self.handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]


def _base_hook(view: torch.Tensor, base: torch.Tensor, on_gradient: _TensorHook) -> _TensorHook:
    """Return a hook for the base of a view that passes on the view's gradient, if the view was changed in place.

    After an in-place change, autograd passes the gradient to the base, and no longer to the hook on the view. A linear
    layer's output can be such a view. The hook must not keep either tensor alive.
    """
    geometry = view.size(), view.stride(), view.storage_offset() - base.storage_offset()
    alias, version = view.detach(), view._version  # noqa: SLF001  there is no public API
    alias.data = view.new_empty(0)  # keep only the version counter, which is shared with the view

    def hook(gradient: torch.Tensor | None) -> None:
        if gradient is not None and alias._version != version:  # noqa: SLF001  as above
            if is_storable(gradient):
                with no_modes_or_grad():
                    gradient = gradient.detach().contiguous().as_strided(*geometry)
            on_gradient(gradient)

    return hook


class _CallGradients:
    """The gradients of one call.

    The graph references it through the hooks on the output; it references nothing of the graph, so there is no cycle.
    Inputs may outlive the graph (parameters, an encoder's output): their hooks reference it weakly and are removed
    with it.
    """

    def __init__(self, recorder: Recorder, frame: RunningCall) -> None:
        self._recorder = recorder
        self._origin: Origin = frame.origin
        self._inputs = _GradientRecord(Key(frame.name, frame.iteration, "GI"))
        self._output = _GradientRecord(Key(frame.name, frame.iteration, "GO"))
        self._task: int | None = None  # the graph task id of the backward pass that is being recorded

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Remove all hooks; gradients that torch passes later are ignored."""
        self._inputs.remove_hooks()
        self._output.remove_hooks()

    def hook_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook the inputs, with a weak reference to this object: the inputs may outlive it."""
        call_ref, record = weakref.ref(self), self._inputs

        def on_gradient(index: int, gradient: torch.Tensor | None) -> None:
            call = call_ref()
            if call is not None:
                call.receive(record, index, gradient)

        record.hook((args, kwargs), on_gradient, self._recorder.placement_tags)

    def hook_output(self, output: Any) -> bool:
        """Hook the output; return whether any of its tensors requires a gradient."""
        self._output.hook(output, partial(self.receive, self._output), self._recorder.placement_tags)
        return bool(self._output.handles)

    def receive(self, record: _GradientRecord, index: int, gradient: torch.Tensor | None) -> None:
        """Handle the gradient of tensor `index` of a record; torch calls this in any of its threads."""
        with self._recorder.guarded(record.key.name):
            task = graph_task_id()
            is_closed = not record.handles  # by another hook of this tensor, which torch called before
            is_later_pass = task != self._task and (self._output.is_stored or self._inputs.is_stored)
            if is_closed or is_later_pass or not self._recorder.accepts(record.key.kind):
                return
            if task != self._task:
                self._begin_pass(task)
            spec = None
            if gradient is not None:
                spec = self._recorder.encode_part(record.key, gradient, record.paths[index])
                if index in record.layouts and "tensor" in spec and "sharding" not in spec:
                    spec = {**spec, "sharding": record.layouts[index].to_json()}
            record.gradients[index] = spec
            for candidate in (self._output, self._inputs):  # complete inputs may have waited for the output
                if len(candidate.gradients) == len(candidate.paths):
                    self._store(candidate)

    def _begin_pass(self, task: int) -> None:
        """Start with a new backward pass; an earlier one that reached this call has failed."""
        self._task = task
        self._inputs.clear()
        self._output.clear()
        queue_callback(lambda: self._end_pass(task))

    def _end_pass(self, task: int) -> None:
        """End the backward pass: tensors that it didn't reach have no gradient."""
        with self._recorder.guarded(self._output.key.name):
            if self._task != task or not self._output.handles:
                return
            if not any(self._output.gradients.values()):  # it reached the inputs, but not through this call
                self._task = None
                return
            self._store(self._output)
            self._store(self._inputs)
            self.close()

    def _store(self, record: _GradientRecord) -> None:
        """Store a record once, if it and the output have a gradient."""
        if not record.is_stored and any(record.gradients.values()) and any(self._output.gradients.values()):
            record.is_stored = True
            self._recorder.add_record(record.key, _insert_gradients(record.spec, record.gradients), self._origin)


def _insert_gradients(spec: Spec, gradients: dict[int, Spec]) -> Spec:
    """Return the spec with all gradients inserted, and None for every other leaf."""
    if not isinstance(spec, dict):
        return None
    if "gradient" in spec:
        return gradients.get(spec["gradient"])
    tag = next((tag for tag in _CONTAINERS if tag in spec), None)
    if tag is None:
        return None
    parts = [name for name in (tag, "attributes") if name in spec]
    return {**spec, **{name: [[key, _insert_gradients(item, gradients)] for key, item in spec[name]] for name in parts}}
