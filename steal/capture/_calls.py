"""Which hooked calls are running, in each thread."""

import sys
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import nn

from .._records import Origin


class Frame:
    """One running call of a hooked module.

    `handled` is the exception that the caller was handling when it made the call. Torch runs our hook while it handles
    what a forward raised, so another exception than this one, then, is the forward's.
    """

    __slots__ = ("handled", "iteration", "module", "name", "notes", "origin", "pending")

    def __init__(self, name: str, module: int, iteration: int, origin: Origin) -> None:
        self.name = name
        self.module = module
        self.iteration = iteration
        self.origin = origin
        self.handled = sys.exception()
        self.pending: Any = None  # the inputs, where hooks of others come after ours
        self.notes: dict[str, Any] = {}  # what extras know of it


class _Root:
    """One running call of an outermost module: the paths below it, and how often each ran."""

    def __init__(self, module: nn.Module, index: int) -> None:
        self.index = index
        self.ran: dict[str, int] = {}
        self.paths = {id(below): path for path, below in module.named_modules()}

    def enter(self, module: nn.Module) -> Origin:
        path = self.paths.get(id(module))
        if path is None:  # called from the outermost module, but not held by it
            return Origin(None, self.index, 0)
        count = self.ran.get(path, 0)
        self.ran[path] = count + 1
        return Origin(path, self.index, count)


class _Running(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.root: _Root | None = None


class Calls:
    """The stack of running calls, a stack for each thread."""

    def __init__(self, chosen: Iterable[tuple[str, nn.Module]]) -> None:
        names = Counter(id(module) for _, module in chosen)
        self._several = {module for module, count in names.items() if count > 1}
        self._running = _Running()
        self._count: dict[str, int] = {}
        self._roots = 0

    def enter(self, name: str, module: nn.Module) -> Frame:
        """A call begins."""
        running = self._running
        stack = running.frames
        root = running.root
        origin = self._other_name(name, module, stack) if self._several else None
        if stack and origin is None and root is not None and root.paths.get(id(module), "") == "":
            _drop_dead(stack)  # the outermost module begins anew, or one that is not in it
        if root is None or not stack:
            root = running.root = _Root(module, self._roots)
            self._roots += 1
        if origin is None:
            origin = root.enter(module)
        iteration = self._count.get(name, 0)
        self._count[name] = iteration + 1
        frame = Frame(name, id(module), iteration, origin)
        stack.append(frame)
        return frame

    def leave(self, name: str) -> Frame | None:
        """A call ends; None if it has no frame, as it began before the block or failed before our hook."""
        stack = self._running.frames
        if stack and stack[-1].name == name:
            return stack.pop()
        index = next((index for index in reversed(range(len(stack))) if stack[index].name == name), None)
        if index is None:
            return None
        frame = stack.pop(index)
        # Above it stand its module's other names, and calls that ended unseen: torch tells hooks of `Exception`s only.
        stack[index:] = [other for other in stack[index:] if other.origin is frame.origin]
        return frame

    def current(self) -> int | None:
        """The number of the running call of an outermost module, in this thread."""
        root = self._running.root
        return root.index if self._running.frames and root else None

    def innermost(self) -> Frame | None:
        """The running call that no other stands above, in this thread."""
        frames = self._running.frames
        return frames[-1] if frames else None

    def ran(self) -> set[str]:
        """The names that were called at all."""
        return set(self._count)

    def _other_name(self, name: str, module: nn.Module, stack: list[Frame]) -> Origin | None:
        """One module under two names is one call: where the first name's frame stands, the second one's does too."""
        if id(module) not in self._several or not stack or stack[-1].module != id(module):
            return None
        origin = stack[-1].origin
        return None if any(frame.name == name for frame in stack if frame.origin is origin) else origin


def _drop_dead(stack: list[Frame]) -> None:
    """Take off the frames of calls that are not running: no hook is told when a KeyboardInterrupt ends one."""
    alive: list[int] = []
    frame = sys._getframe()  # noqa: SLF001  the documented way to the frames below
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__:  # noqa: SLF001  where all calls of modules go through
            alive.append(id(frame.f_locals["self"]))
        frame = frame.f_back  # type: ignore[assignment]
    running = reversed(alive[1:])  # without the call that begins now
    for index, entered in enumerate(stack):
        if index and entered.origin is stack[index - 1].origin:
            continue  # the same call, under its module's second name
        if entered.module not in running:  # searches on from where the last one was found
            del stack[index:]
            return
