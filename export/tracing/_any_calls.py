"""The calls in which an operation runs, for any model: of modules, constructors and optimizers."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile, groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from filch.steal.private._torch import DYNAMO, compile_module

from ..graph._nodes import Frame
from ._call_sites import caller_outside, callers, is_filch, is_library, line_frame, line_of, module_call
from ._module_calls import ModuleCallStack, class_of

_WRAPPERS = (compile_module.__file__, str(Path(torch.__file__).parent / DYNAMO))


class AnyModelCallStack(ModuleCallStack):
    """The stack of running module calls of all models.

    A model has the name of the variable in its caller, and its modules have their paths in it.

    Args:
        is_observed: returns whether to observe the calls of the running thread.
        label: called with each parameter and buffer, and its path, when its model is called for the first time.
    """

    def __init__(self, is_observed: Callable[[], bool], label: Callable[[torch.Tensor, str], None]) -> None:
        super().__init__(None)
        self._is_observed = is_observed
        self._label = label
        self._owners: Any = WeakIdKeyDictionary()  # by parameter or buffer: the path of its module, and its own path

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe the calls of all modules inside of the block."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._running.clear()

    def path_of(self, tensor: torch.Tensor) -> str | None:
        """Return the path of a parameter or buffer in its model, if a call of the model was observed; else None."""
        _, path = self._owners.get(tensor, ("", None))
        return path  # type: ignore[no-any-return]

    def owner_of(self, tensor: torch.Tensor) -> str:
        """Return the path of the module that owns a parameter or buffer; "" if no call of its model was observed."""
        module_path, _ = self._owners.get(tensor, ("", None))
        return module_path  # type: ignore[no-any-return]

    def _enter(self, module: nn.Module, args: Any) -> None:
        """Add a call to the stack, if this thread is observed; a forward pre-hook."""
        if self._is_observed():
            super()._enter(module, args)

    def _leave(self, module: nn.Module, _args: Any, _output: Any) -> None:
        """Remove the module from the stack, with calls in it that raised errors: these may have no `_leave`."""
        if self._is_observed() and any(call.module is module for call in self._running):
            while self._running.pop().module is not module:
                pass

    def _path(self, module: nn.Module) -> str:
        """Return the path of a module; register the modules of its model if the model is called for the first time."""
        if module not in self._paths:
            path = self._path_in_caller(module)
            caller = module_call(sys._getframe(1))  # noqa: SLF001  documented
            self._register(*(_model_of(caller, module) if path is None else (path, module)))
        return str(self._paths[module])

    def _register(self, name: str, model: nn.Module) -> None:
        """Register the modules of a model that is called for the first time."""
        prefix = name.partition(".")[2]  # paths of parameters begin without the variable of the model
        for path, module in model.named_modules():
            self._paths.setdefault(module, f"{name}.{path}" if path else name)
            owned = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            for tensor_name, tensor in owned:
                full_path = ".".join(part for part in (prefix, path, tensor_name) if part)
                if tensor not in self._owners:
                    self._owners[tensor] = (self._paths[module], full_path)
                    self._label(tensor, full_path)


def _model_of(frame: FrameType | None, module: nn.Module) -> tuple[str, nn.Module]:
    """Return the name of the caller's variable for a module or for the model that contains it, and that object."""
    variables = list(_variables(frame))
    for name, item in variables:
        if item is module:
            return name, module
    for name, item in variables:
        if isinstance(item, nn.Module) and any(part is module for part in item.modules()):
            return name, item
    return "_model", module  # as in Jittor


def _variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield the variables visible in a frame: local ones, attributes of `self`, and global ones."""
    user_frame = caller_outside(frame, is_library)
    if user_frame is not None:
        owner = _self(user_frame)
        yield from list(user_frame.f_locals.items())
        yield from vars(owner).items() if hasattr(owner, "__dict__") else ()
        yield from list(user_frame.f_globals.items())


def variable_of(frame: FrameType | None, target: Any) -> str | None:
    """Return the name of the variable in a frame whose value is this object, or None."""
    return next((name for name, item in _variables(frame) if item is target), None)


def object_calls(frame: FrameType | None, block: CodeType | None) -> tuple[Frame, ...]:
    """Return the running constructors of modules and methods of optimizers, outermost first.

    Args:
        frame: the innermost frame.
        block: the code in which the traced block is; calls outside of it are left out.
    """
    calls: dict[int, Frame] = {}  # by the id of the object: the outermost call of each
    in_user_code = False  # whether there is user code between this frame and `frame`
    for inner in callers(frame, block):
        owner = _self(inner)
        is_constructor = inner.f_code.co_name == "__init__"
        is_optimizer = isinstance(owner, torch.optim.Optimizer) and not in_user_code
        if is_optimizer or (is_constructor and isinstance(owner, nn.Module)):
            calls[id(owner)] = _object_call(inner, owner, is_constructor=is_constructor)
        in_user_code = in_user_code or not is_library(inner.f_code.co_filename)
    return tuple(reversed(calls.values()))


def _self(frame: FrameType) -> Any:
    """Return the `self` of a frame: its first argument, or the variable `self` of torch's wrappers."""
    names = frame.f_code.co_varnames
    name = "self" if "self" in names else names[0] if frame.f_code.co_argcount else ""
    return frame.f_locals.get(name) if name else None


def _object_call(frame: FrameType, owner: Any, *, is_constructor: bool) -> Frame:
    """Return a frame for a method of an object, named after the caller's variable or else the object's class."""
    caller = caller_outside(frame.f_back, is_library)
    name = None if is_constructor else variable_of(caller, owner)
    return Frame(name or f"{type(owner).__name__}_init", class_of(owner), None if caller is None else line_of(caller))


def user_lines(frame: FrameType | None, block: CodeType | None) -> Iterator[str]:
    """Return the lines of user code that lead to a frame, innermost first."""
    lines = (line_of(inner) for inner in callers(frame, block) if not is_library(inner.f_code.co_filename))
    return (line for line, _ in groupby(lines))  # a comprehension has a frame of its own on the same line


def all_frames(frame: FrameType | None, block: CodeType | None) -> tuple[Frame, ...]:
    """Return all Python calls that lead to a frame, including torch's, outermost first."""
    calls = dropwhile(lambda inner: _is_wrapper(inner.f_code.co_filename), callers(frame, block))
    frames = [Frame(line_frame(line_of(inner)).path, inner.f_code.co_name, line_of(inner)) for inner in calls]
    return tuple(reversed(frames))


def _is_wrapper(file: str) -> bool:
    """Return whether a file is part of Filch, or of torch's wrappers that keep Dynamo from compiling Filch."""
    return is_filch(file) or file.startswith(_WRAPPERS)
