"""Record parameters whenever they have changed, and their gradients when accumulated and when used."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._key import Key
from .._records import Origin
from ..capture._calls import RunningCall
from ..capture._recorder import Extra, Recorder
from ..values._dtypes import is_storable
from ..values._raw import checksum, contiguous_cpu, no_modes

_Names = tuple[str, ...]


class Parameters(Extra):
    """Checks all parameters when an outermost call begins and when the block ends."""

    def __init__(self, roots: list[tuple[str, nn.Module]]) -> None:
        self._roots = roots
        self._fingerprints: dict[_Names, object] = {}  # of the parameters, at the last check
        self._record_counts: Counter[tuple[str, str]] = Counter()  # by name and kind
        # Handles instead of weak references: torch can't swap the contents of a parameter that has weak references.
        self._hooked: dict[int, Any] = {}  # by the `id` of the parameter
        self._handles: list[Any] = []
        self._final: dict[_Names, object] = {}  # fingerprints of the gradients that the last step has found

    def start(self, recorder: Recorder) -> None:
        """Hook the parameters."""
        super().start(recorder)
        with no_modes():
            for names, parameter in self._named_parameters():
                self._hook_gradient(names, parameter)
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))

    def call_began(self, frame: RunningCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002  see `Extra`
        """Record the parameters that have changed, if this is an outermost call."""
        if frame.origin.path == "":
            self._record_changed(frame.origin.call)

    def stop(self) -> None:
        """Record the parameters that have changed, and remove the hooks."""
        self._record_changed(None)
        for handle in self._handles:
            handle.remove()
        self._record_final()

    def _record_changed(self, call: int | None) -> None:
        """Record the parameters that have changed since the last check, at the outermost call `call`, if any."""
        with no_modes():  # modes of the model's run must not see these operations
            for names, parameter in self._named_parameters():
                self._hook_gradient(names, parameter)  # it may be new, or require a gradient only now
                fingerprint = _fingerprint(parameter)
                if self._fingerprints.get(names) != fingerprint:
                    self._fingerprints[names] = fingerprint
                    self._record(names, "P", parameter, call)

    def _named_parameters(self) -> Iterator[tuple[_Names, nn.Parameter]]:
        """Yield the names of each initialized parameter, with the module's name in front, and the parameter.

        Tied parameters have several names: as stages of a pipeline, each of which has one of them.
        """
        known: set[int] = set()
        for root, module in self._roots:
            found: dict[nn.Parameter, list[str]] = {}
            for path, parameter in module.named_parameters(remove_duplicate=False):
                if id(parameter) not in known and not nn.parameter.is_lazy(parameter):
                    found.setdefault(parameter, []).append(f"{root}.{path}" if root else path)
            for parameter, names in found.items():
                known.add(id(parameter))
                yield tuple(names), parameter

    def _hook_gradient(self, names: _Names, parameter: nn.Parameter) -> None:
        """Register a hook that records the parameter's gradient, unless there is one."""
        handle = self._hooked.get(id(parameter))
        registered = parameter._post_accumulate_grad_hooks or {}  # noqa: SLF001  there is no public API
        if not parameter.requires_grad or (handle is not None and handle.id in registered):
            return
        handle = parameter.register_post_accumulate_grad_hook(partial(self._record_gradient, names))  # type: ignore[no-untyped-call]
        self._hooked[id(parameter)] = handle
        self._handles.append(handle)
        # Move our hook to the front: an optimizer that steps in a hook clears the gradient.
        hooks: Any = parameter._post_accumulate_grad_hooks  # noqa: SLF001  there is no public API for the order
        for earlier in list(hooks)[:-1]:
            hooks[earlier] = hooks.pop(earlier)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Record the gradients that an optimizer is about to use."""
        with self._recorder.guarded("optimizer"):
            used = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            self._record_final(used)

    def _record_final(self, used: set[int] | None = None) -> None:
        """Record the gradients of the parameters in `used` (by id); if None, those changed since the last step."""
        with no_modes():
            for names, parameter in self._named_parameters():
                if (gradient := parameter.grad) is None:
                    self._final.pop(names, None)
                elif used is None or id(parameter) in used:  # another optimizer may have used it before
                    fingerprint = _fingerprint(gradient)
                    if used is not None or self._final.get(names) != fingerprint:
                        self._final[names] = fingerprint
                        self._record(names, "GF", gradient, None)

    def _record_gradient(self, names: _Names, parameter: torch.Tensor) -> None:
        """Record a parameter's gradient that was just accumulated."""
        with self._recorder.guarded(names[0]):
            if parameter.grad is not None:
                self._record(names, "GP", parameter.grad, None)

    def _record(self, names: _Names, kind: str, tensor: torch.Tensor, call: int | None) -> None:
        """Record a tensor under each name of a parameter, at the outermost call `call`, if any."""
        for name in names:
            iteration = self._record_counts[name, kind]
            self._record_counts[name, kind] += 1
            self._recorder.record(Key(name, iteration, kind), tensor, Origin(None, call, iteration))


def _fingerprint(parameter: torch.Tensor) -> object:
    """Return a value that differs when the tensor has changed: its version, and on the CPU a checksum as well."""
    version = id(parameter), None if parameter.is_inference() else parameter._version  # noqa: SLF001  there is no public API
    if parameter.is_cpu and is_storable(parameter):
        raw = contiguous_cpu(parameter)  # a variable, so that its memory lives until the checksum is computed
        return *version, parameter.shape, parameter.dtype, checksum(raw.data_ptr(), raw.nbytes)
    return version
