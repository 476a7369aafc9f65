"""The parameters of the given modules, whenever they have changed, and their gradients, whenever they grow."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .._key import Key
from .._records import Origin
from ..capture._calls import Frame
from ..capture._extra import Recording
from ..values._dtypes import not_storable
from ..values._raw import checksum, contiguous_cpu, no_modes


class Parameters:
    """Looks at all parameters at the begin of each call of an outermost module, and at the end of the block."""

    def __init__(self, roots: list[tuple[str, nn.Module]]) -> None:
        self._roots = roots
        self._contents: dict[str, object] = {}
        self._count: Counter[tuple[str, str]] = Counter()
        # By the hook, not by a weak reference: torch does not swap the contents of a parameter that has some.
        self._heard: dict[int, Any] = {}
        self._handles: list[Any] = []

    def start(self, recording: Recording) -> None:
        """See `Extra.start`."""
        self._recording = recording
        with no_modes():
            for name, parameter in self._named():
                self._hear(name, parameter)

    def entered(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002  see `Extra`
        """See `Extra.entered`."""
        if frame.origin.path == "":
            self._look(frame.origin.call)

    def left(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Nothing has changed that the next call or the end won't see."""

    def stop(self) -> None:
        """See `Extra.stop`."""
        self._look(None)
        for handle in self._handles:
            handle.remove()

    def _look(self, call: int | None) -> None:
        with no_modes():  # those of the model's run see what the model does, and not that we look
            for name, parameter in self._named():
                self._hear(name, parameter)  # made or unfrozen since
                content = _content(parameter)
                if self._contents.get(name) != content:
                    self._contents[name] = content
                    self._take(name, "P", parameter, call)

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        known: set[int] = set()
        for root, module in self._roots:
            for path, parameter in module.named_parameters():
                if id(parameter) not in known and not nn.parameter.is_lazy(parameter):
                    known.add(id(parameter))
                    yield f"{root}.{path}" if root else path, parameter

    def _hear(self, name: str, parameter: nn.Parameter) -> None:
        known = self._heard.get(id(parameter))
        there = parameter._post_accumulate_grad_hooks or {}  # noqa: SLF001  nothing public tells
        if not parameter.requires_grad or (known is not None and known.id in there):
            return
        handle = parameter.register_post_accumulate_grad_hook(self._hook(name))  # type: ignore[no-untyped-call]
        self._heard[id(parameter)] = handle
        self._handles.append(handle)
        # An optimizer that steps in the backward pass takes the gradient away; torch calls in the dictionary's order.
        hooks = parameter._post_accumulate_grad_hooks  # noqa: SLF001  nothing public has an order
        for earlier in list(hooks)[:-1]:
            hooks[earlier] = hooks.pop(earlier)

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            with self._recording.guarded(name):
                if parameter.grad is not None:
                    self._take(name, "GP", parameter.grad, None)

        return accumulated

    def _take(self, name: str, kind: str, tensor: torch.Tensor, call: int | None) -> None:
        number = self._count[name, kind]
        self._count[name, kind] += 1
        self._recording.record(Key(name, number, kind), tensor, Origin(None, call, number))


def _content(parameter: nn.Parameter) -> object:
    """Changes when the parameter does: as torch counts, and in main memory, by what goes past its counter, too."""
    version = id(parameter), None if parameter.is_inference() else parameter._version  # noqa: SLF001  nothing public tells
    if parameter.is_cpu and not_storable(parameter) is None:
        raw = contiguous_cpu(parameter)  # in a name: its memory is read next
        return *version, parameter.shape, parameter.dtype, checksum(raw.data_ptr(), raw.nbytes)
    return version
