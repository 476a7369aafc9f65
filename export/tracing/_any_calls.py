"""Which calls an operation runs in, whichever model they are of: modules', constructors', optimisers'."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile, islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from ..graph._nodes import Frame
from ._call_sites import is_library, is_ours, line_frame, line_of, module_call
from ._module_calls import Calls, class_of

_WRAPPERS = (torch._compile.__file__, str(Path(torch.__file__).parent / "_dynamo"))  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
_NO_CALL = (None, Frame(""), None)
_LINES = 3  # that stand for the calls an operation runs in where no module does, as in Jittor


class AnyCalls(Calls):
    """Which modules' calls are running, of all models.

    A model is known by the name of the variable that its caller has it in, and its modules by their paths in it.

    Args:
        listening: whether what the running thread calls is to be heard.
        met: told of each parameter and buffer of a model that is called for the first time, and its path in the model.
    """

    def __init__(self, listening: Callable[[], bool], met: Callable[[torch.Tensor, str], None]) -> None:
        super().__init__(None)
        self._listening = listening
        self._met = met
        self._held: Any = WeakIdKeyDictionary()  # by parameter or buffer, the path of its module and its own

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear of all modules' calls inside of the block."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._running.clear()

    def path_of(self, tensor: torch.Tensor) -> str | None:
        """The path of a parameter or buffer in its model, if a call of the model was heard."""
        return self._held.get(tensor, (None, None))[1]  # type: ignore[no-any-return]

    def owner_of(self, tensor: torch.Tensor) -> str:
        """The path of the module that holds a parameter or buffer."""
        return self._held.get(tensor, ("", None))[0]  # type: ignore[no-any-return]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if self._listening():
            super()._enter(module, args)

    def _leave(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if self._listening() and any(running is module for running, _, _ in self._running):
            while self._running.pop()[0] is not module:  # what was interrupted is not left
                pass

    def _path(self, module: nn.Module) -> str:
        if module not in self._paths:
            caller, running, _ = self._running[-1] if self._running else _NO_CALL
            children = caller.named_children() if caller is not None else ()
            name = next((name for name, child in children if child is module), None)
            if name is not None:
                self._meet(f"{running.path}.{name}", module)
            else:
                frame = module_call(sys._getframe(1))  # noqa: SLF001  documented
                self._meet(*_model_of(frame, module))
        return str(self._paths[module])

    def _meet(self, name: str, model: nn.Module) -> None:
        """A model is called for the first time."""
        prefix = name.partition(".")[2]
        for path, module in model.named_modules():
            self._paths.setdefault(module, f"{name}.{path}" if path else name)
            owned = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            for own, tensor in owned:
                full = ".".join(part for part in (prefix, path, own) if part)
                if tensor not in self._held:
                    self._held[tensor] = (self._paths[module], full)
                    self._met(tensor, full)


def _model_of(frame: FrameType | None, module: nn.Module) -> tuple[str, nn.Module]:
    """The model that a module is part of, or the module itself, and the variable in which its caller has that."""
    variables = list(_variables(frame))
    for name, item in variables:
        if item is module:
            return name, module
    for name, item in variables:
        if isinstance(item, nn.Module) and any(part is module for part in item.modules()):
            return name, item
    return "_model", module  # as in Jittor


def _variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """The variables of the function that a frame runs: its own, the attributes of its object, and global ones."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return
    owner = _self(frame)
    yield from list(frame.f_locals.items())
    yield from vars(owner).items() if hasattr(owner, "__dict__") else ()
    yield from list(frame.f_globals.items())


def variable_of(frame: FrameType | None, wanted: Any) -> str | None:
    """The name of the variable in which the function that a frame runs has an object."""
    return next((name for name, item in _variables(frame) if item is wanted), None)


def objects_calls(frame: FrameType | None, block: CodeType | None) -> tuple[Frame, ...]:
    """The constructors of modules that a frame runs in, or the optimiser's method, outermost first."""
    found: dict[int, Frame] = {}
    outside = False  # whether a line of the user's stands between
    for inner in _until(frame, block):
        owner = _self(inner)
        making = inner.f_code.co_name == "__init__"
        stepping = isinstance(owner, torch.optim.Optimizer) and not outside
        if stepping or (making and isinstance(owner, nn.Module)):
            found[id(owner)] = _object_call(inner, owner, making=making)
        outside = outside or not is_library(inner.f_code.co_filename)
    return tuple(reversed(found.values()))


def _self(frame: FrameType) -> Any:
    """The object whose method a frame runs, if it does: its first argument, or what torch's wrappers call `self`."""
    names = frame.f_code.co_varnames
    name = "self" if "self" in names else names[0] if frame.f_code.co_argcount else ""
    return frame.f_locals.get(name) if name else None


def _object_call(frame: FrameType, owner: Any, *, making: bool) -> Frame:
    caller = frame.f_back
    while caller is not None and is_library(caller.f_code.co_filename):
        caller = caller.f_back
    name = None if making else variable_of(caller, owner)
    return Frame(name or f"{type(owner).__name__}_init", class_of(owner), None if caller is None else line_of(caller))


def user_lines(frame: FrameType | None, block: CodeType | None) -> Iterator[str]:
    """The lines of the user's that lead to a frame, innermost first."""
    last = None
    for inner in _until(frame, block):
        line = line_of(inner)
        if not is_library(inner.f_code.co_filename) and line != last:
            last = line
            yield line


def innermost_lines(frame: FrameType | None, block: CodeType | None) -> tuple[Frame, ...]:
    """The calls that the last of these lines are, outermost first."""
    return tuple(line_frame(line) for line in reversed(list(islice(user_lines(frame, block), _LINES))))


def all_frames(frame: FrameType | None, block: CodeType | None) -> tuple[Frame, ...]:
    """All calls of Python that lead to a frame, torch's too, outermost first."""
    called = dropwhile(lambda inner: is_ours(inner.f_code.co_filename) or _is_wrapper(inner), _until(frame, block))
    found = [Frame(line_frame(line_of(inner)).path, inner.f_code.co_name, line_of(inner)) for inner in called]
    return tuple(reversed(found))


def _is_wrapper(frame: FrameType) -> bool:
    """Whether torch has wrapped our own functions in what a frame runs, lest Dynamo compile them."""
    return frame.f_code.co_filename.startswith(_WRAPPERS)


def _until(frame: FrameType | None, block: CodeType | None) -> Iterator[FrameType]:
    """A frame and those that called it, up to the one that runs `block`; all of them if there is none."""
    while frame is not None:
        yield frame
        if frame.f_code is block:
            return
        frame = frame.f_back
