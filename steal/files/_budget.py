"""Count what reading a file of unknown origin costs, and refuse one that costs more than files of its kind do."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_BETWEEN = 10_000  # steps between two looks at the clock


class LimitError(ValueError):
    """A file has more of something than is read of files of its kind; the message says of what."""


@dataclass(frozen=True)
class FileKind:
    """What reading one file of a kind may cost. `docs/security.md` has a row for each.

    Attributes:
        name: what files of this kind are called.
        size: bytes of the file.
        line: bytes of a line, where lines are read one by one.
        memory: bytes of what is parsed, as estimated from the text.
        items: what the reader counts: lines, rows, values, tensors.
        depth: how deep values may be nested in each other.
        steps: calls of Python functions by code that is not Filch's, such as sympy's. The same file takes the same
            number on each machine.
        seconds: how long that code may take, whatever it calls.
    """

    name: str
    size: int = 2**31  # the limit of protobuf, and enough for any text
    line: int = 2**26
    memory: int = 400 * 2**20
    items: int = 2**20
    depth: int = 100
    steps: int = 20_000_000
    seconds: float = 120.0


class Budget:
    """What is left of what reading a file may cost, or several files that are read together.

    Args:
        kind: the kind of the files.
    """

    def __init__(self, kind: FileKind) -> None:
        self.kind = kind
        self._size, self._items, self._steps, self._seconds = kind.size, kind.items, kind.steps, kind.seconds

    def take_bytes(self, count: int) -> None:
        """Count bytes that are read.

        Raises:
            LimitError: there are too many.
        """
        if count > self._size:
            found = self.kind.size - self._size + count
            raise LimitError(f"it has {found:,} bytes, and at most {self.kind.size:,} are read")
        self._size -= count

    def take_items(self, count: int = 1, what: str = "items") -> None:
        """Count items; `what` they are is named in the error.

        Raises:
            LimitError: there are too many.
        """
        self._items -= count
        if self._items < 0:
            raise LimitError(f"it has more than {self.kind.items:,} {what}")

    def take_steps(self, count: int, what: str) -> None:
        """Count steps of a function that is called next; `what` takes them is named in the error.

        Raises:
            LimitError: there are too many.
        """
        self._steps -= count
        if self._steps < 0:
            raise LimitError(f"{what} take more than {self.kind.steps:,} steps to read")

    def check_depth(self, depth: int) -> None:
        """Refuse a value that is nested too deep.

        Raises:
            LimitError: it is.
        """
        if depth > self.kind.depth:
            raise LimitError(f"it is nested more than {self.kind.depth:,} deep")

    @contextmanager
    def watched(self, doing: str) -> Iterator[None]:
        """Count the steps and seconds of the block, which runs code that is not Filch's on what the file says.

        A debugger or profiler that watches this thread already goes on, and nothing is counted.

        Args:
            doing: what the block does, for the error: "parsing its sizes".

        Raises:
            LimitError: there are too many; the block is left at once, if it runs Python code.
        """
        if sys.getprofile() is not None:
            yield
            return
        watch = _CallCounter(self._steps, self._seconds)
        sys.setprofile(watch)
        try:
            yield
        except _Exceeded:
            pass
        finally:
            sys.setprofile(None)
            self._steps, self._seconds = watch.steps, watch.deadline - time.monotonic()
        if watch.exceeded:
            limits = f"{self.kind.steps:,} steps or {self.kind.seconds:g} seconds"
            raise LimitError(f"{doing} takes more than {limits}")


class _Exceeded(BaseException):
    """Leaves the block; a `BaseException`, so that `except Exception` does not catch it."""


class _CallCounter:
    """A profile function that counts calls."""

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.deadline, self.exceeded = steps, time.monotonic() + seconds, False

    def __call__(self, *_: object) -> None:
        self.steps -= 1
        if self.steps < 0 or (self.steps % _BETWEEN == 0 and time.monotonic() > self.deadline):
            self.exceeded = True
            raise _Exceeded
