"""Track the running calls of hooked modules, per thread."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .._records import Origin
from ..private._torch import call_impl, current_graph_task_id

graph_task_id = current_graph_task_id  # of the running backward pass, else -1; torch.utils.checkpoint uses it
MODULE_CALL = call_impl.__code__  # all module calls go through it


class RunningCall:
    """A running call of a hooked module.

    Attributes:
        name: the name for which the hook was registered; a module with several names has a hook for each.
        module: the `id` of the module.
        iteration: how many calls of this name began before in the capture.
        origin: the position in the run; the frames of one call under several names share this object.
        caller_inputs: `(args, kwargs)`, as they were before other hooks.
        caller_exception: the exception that the caller was handling when it made the call. Torch calls our hook while
            handling an exception of the forward, so any other exception is the forward's.
    """

    __slots__ = (
        "caller_exception",
        "caller_inputs",
        "extra_data",
        "iteration",
        "module",
        "name",
        "origin",
        "pending_inputs",
    )

    def __init__(self, name: str, module: int, iteration: int, origin: Origin) -> None:
        self.name = name
        self.module = module
        self.iteration = iteration
        self.origin = origin
        self.caller_inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.caller_exception = sys.exception()
        # (args, kwargs, their spec, the spec of the caller's), while hooks of others may still change the inputs.
        self.pending_inputs: Any = None
        self.extra_data: dict[str, Any] = {}  # of extras, by a key that each chooses


def is_same(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Return whether two tuples contain the same objects."""
    return len(first) == len(second) and all(one is other for one, other in zip(first, second, strict=True))


class _OutermostCall:
    """A running call of an outermost module, with the paths of its submodules and how often each ran."""

    def __init__(self, module: nn.Module, index: int) -> None:
        self.index = index
        self.call_counts: dict[str, int] = {}
        self.paths = {id(below): path for path, below in module.named_modules()}

    def enter(self, module: nn.Module) -> Origin:
        """Count a call of a module, and return its origin."""
        path = self.paths.get(id(module))
        if path is None:  # called by the outermost module, but not its submodule
            return Origin(None, self.index, 0)
        count = self.call_counts.get(path, 0)
        self.call_counts[path] = count + 1
        return Origin(path, self.index, count)


class _Running(threading.local):
    """The running calls of one thread, the innermost last, and the outermost call, or the last one if none runs."""

    def __init__(self) -> None:
        self.frames: list[RunningCall] = []
        self.root: _OutermostCall | None = None


class Calls:
    """The stacks of running calls, one per thread.

    Args:
        chosen: the names and modules that have hooks.
        changed: called when the submodules of an outermost module are others than before.
    """

    def __init__(self, chosen: Iterable[tuple[str, nn.Module]], changed: Callable[[], None]) -> None:
        self._changed = changed
        self._paths: dict[str, dict[int, str]] = {}  # of the last call of each outermost module
        names = Counter(id(module) for _, module in chosen)
        self._multiply_named = {module for module, count in names.items() if count > 1}
        self._running = _Running()
        self._call_counts: dict[str, int] = {}
        self._root_count = 0

    def enter(self, name: str, module: nn.Module) -> RunningCall:
        """Push the frame of a call that begins."""
        running = self._running
        stack = running.frames
        root = running.root
        origin = self._shared_origin(name, module, stack) if self._multiply_named else None
        if stack and origin is None and root is not None and root.paths.get(id(module), "") == "":
            _remove_ended(stack)  # a new call of the outermost module or of a foreign one: its caller may have ended
        if root is None or not stack:
            root = running.root = _OutermostCall(module, self._root_count)
            self._root_count += 1
            is_first = not self._paths  # it may have changed since the hooks were registered
            if self._paths.setdefault(name, root.paths) != root.paths or is_first:
                self._paths[name] = root.paths
                self._changed()
        if origin is None:
            origin = root.enter(module)
        iteration = self._call_counts.get(name, 0)
        self._call_counts[name] = iteration + 1
        frame = RunningCall(name, id(module), iteration, origin)
        stack.append(frame)
        return frame

    def leave(self, name: str) -> RunningCall | None:
        """Pop the frame of a call that ends; None if it has none, as it began before the block or before our hook."""
        stack = self._running.frames
        if stack and stack[-1].name == name:
            return stack.pop()
        index = next((index for index in reversed(range(len(stack))) if stack[index].name == name), None)
        if index is None:
            return None
        frame = stack.pop(index)
        # Frames above are other names of its module, or calls that ended with a BaseException, for which torch calls no
        # hook.
        stack[index:] = [other for other in stack[index:] if other.origin is frame.origin]
        return frame

    def current(self) -> int | None:
        """Return the index of this thread's running call of an outermost module, or None."""
        root = self._running.root
        return root.index if self._running.frames and root else None  # `root` stays when its call has ended

    def innermost(self) -> RunningCall | None:
        """Return this thread's innermost running call, or None."""
        frames = self._running.frames
        return frames[-1] if frames else None

    def count(self, name: str) -> int:
        """Return how many calls of a name have begun."""
        return self._call_counts.get(name, 0)

    def called(self) -> set[str]:
        """Return the names that were called."""
        return set(self._call_counts)

    def _shared_origin(self, name: str, module: nn.Module, stack: list[RunningCall]) -> Origin | None:
        """Return the origin of the running call if `name` is another name of the same module, else None.

        The hooks for both names see one call. If a frame of that call has this name already, it is a new call.
        """
        if id(module) not in self._multiply_named or not stack or stack[-1].module != id(module):
            return None
        origin = stack[-1].origin
        return None if any(frame.name == name for frame in stack if frame.origin is origin) else origin


def _remove_ended(stack: list[RunningCall]) -> None:
    """Remove the frames of calls that have ended: torch calls no hook when a KeyboardInterrupt ends one."""
    alive: list[int] = []
    frame = sys._getframe()  # noqa: SLF001  the documented way to the frames below
    while frame is not None:
        if frame.f_code is MODULE_CALL:
            alive.append(id(frame.f_locals["self"]))
        frame = frame.f_back  # type: ignore[assignment]
    running = reversed(alive[1:])  # without the call that begins
    for index, call in enumerate(stack):
        if index and call.origin is stack[index - 1].origin:
            continue  # another name of the same module
        if call.module not in running:  # `in` on an iterator continues after the last match
            del stack[index:]
            return
