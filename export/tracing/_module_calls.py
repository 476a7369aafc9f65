"""The stack of running module calls, with their call sites."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..graph._nodes import Frame
from ._call_sites import is_filch, line_of, module_call, outside


class _OpenCall(NamedTuple):
    """A running call.

    Attributes:
        module: the module; None for a frame that is not a module call.
        frame: the frame in stacks.
        path: the path of the module, with `@1` for its second call; None without a module.
    """

    module: nn.Module | None
    frame: Frame
    path: str | None


class ModuleCallStack:
    """The stack of running module calls.

    Args:
        model: the model whose modules are observed; None for `AnyModelCallStack`.

    Attributes:
        first_stacks: maps the path of a module to the stack of its first call.
        frames: maps each call to its frame; the key is the path of the module, with `@1` for its second call.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._modules = list(model.modules()) if model is not None else []
        self._paths: Any = WeakIdKeyDictionary()
        for path, module in model.named_modules() if model is not None else ():
            self._paths[module] = path
        self._running: list[_OpenCall] = []
        self._counts: Counter[str] = Counter()
        self.first_stacks: dict[str, tuple[Frame, ...]] = {}
        self.frames: dict[str, Frame] = {}

    @property
    def running(self) -> tuple[Frame, ...]:
        """The running calls, outermost first."""
        return tuple(call.frame for call in self._running)

    @property
    def innermost_path(self) -> str | None:
        """The path of the innermost module, with `@1` for its second call; None if no module runs."""
        return self._running[-1].path if self._running else None

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe the calls of the model's modules inside of the block."""
        with ExitStack() as stack:
            for module in self._modules:
                if not isinstance(module, torch.jit.ScriptModule):  # these do not support hooks
                    before = module.register_forward_pre_hook(self._enter, prepend=True)
                    after = module.register_forward_hook(self._leave, always_call=True)
                    stack.callback(before.remove)
                    stack.callback(after.remove)
            yield

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[None]:
        """Add a frame that is not a module call to the stack inside of the block."""
        self._running.append(_OpenCall(None, frame, None))
        try:
            yield
        finally:
            self._running.pop()

    def _enter(self, module: nn.Module, _args: Any) -> None:
        """Add a call to the stack; a forward pre-hook."""
        path = self._path(module)
        frame = Frame(path, class_of(module), _site(sys._getframe()))  # noqa: SLF001  documented
        call_path = f"{path}@{self._counts[path]}" if self._counts[path] else path
        self._counts[path] += 1
        self._running.append(_OpenCall(module, frame, call_path))
        self.frames[call_path] = frame
        self.first_stacks.setdefault(path, self.running)

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        """Remove a call from the stack; a forward hook."""
        self._running.pop()

    def _path(self, module: nn.Module) -> str:
        """Return the path of a module that is called."""
        return self._path_in_caller(module) or str(self._paths.get(module, ""))

    def _path_in_caller(self, module: nn.Module) -> str | None:
        """Return the path of a module by its name in the calling module, as a module may have several names."""
        caller = self._running[-1] if self._running else None
        if caller is None or caller.module is None:
            return None
        names = (name for name, child in caller.module.named_children() if child is module)
        return next((f"{caller.frame.path}.{name}".lstrip(".") for name in names), None)


def _site(hook: FrameType) -> str | None:
    """Return the call site of the module whose hook runs; for the model itself, the line of the user's code."""
    caller = module_call(hook)
    return outside(caller) if caller is None or is_filch(caller.f_code.co_filename) else line_of(caller)


def class_of(item: Any) -> str:
    """Return the full name of an object's class."""
    kind: type = type(item)
    return f"{kind.__module__}.{kind.__qualname__}"
