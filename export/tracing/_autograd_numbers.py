"""Which operation a derivative is of, by the numbers that autograd gives to what it notes."""

from bisect import bisect_left
from typing import Any

import torch

from .._errors import TraceError

_SOON = 3  # operations within which one follows that autograd has noted ahead


class AutogradNumbers:
    """Knows the operations of a run by autograd's numbers; within a thread, these grow.

    Raises:
        TraceError: this version of torch does not tell them.
    """

    def __init__(self) -> None:
        self._first: dict[int, str] = {}
        self._numbers: list[int] = []
        self._calls: list[tuple[str, str]] = []
        self._unseen: list[tuple[int, int]] = []
        self._last = getattr(torch.autograd, "_get_sequence_nr", None)
        self._running = getattr(torch._C, "_current_autograd_node", None)  # noqa: SLF001  nothing public tells
        if self._last is None or self._running is None:
            raise TraceError(
                f"torch {torch.__version__} does not tell which operation a derivative is of: it has no "
                "torch.autograd._get_sequence_nr or no torch._C._current_autograd_node; versions from 2.11 on have both"
            )

    def running(self) -> Any:
        """Autograd's node that runs: `name()`, `_sequence_nr()`, and `variable` if it adds to a gradient; or None."""
        return self._running() if self._running is not None else None

    def next(self) -> int:
        """The number that autograd gives to the next operation of this thread."""
        return int(self._last()) if self._last is not None else 0

    def skip(self, first: int, end: int) -> None:
        """Operations of the numbers from `first` up to `end` were not recorded."""
        if first < end:
            self._unseen.append((first, end))

    def claim(self, name: str, op: str) -> None:
        """A node has just run; what autograd noted last is of it, unless it is of an earlier one."""
        number = self.next() - 1
        self._first.setdefault(number, name)
        self._numbers.append(number)
        self._calls.append((name, op))

    def owner(self, running: Any) -> str | None:
        """The name of the node whose derivative runs; None if it is of none that was claimed.

        Autograd notes an operation just before it runs. But where one overwrites what its own derivative needs, a copy
        is made in between; and where one writes to a view, what is noted for the view's base comes behind it.
        """
        number: int = running._sequence_nr()  # noqa: SLF001  nothing public tells
        if any(first <= number < end for first, end in self._unseen):
            return None
        if number in self._first:
            return self._first[number]
        place = bisect_left(self._numbers, number)
        kind = running.name().rpartition(":")[2].lower()
        for name, op in self._calls[place : place + _SOON]:
            if kind.startswith(f"{op.replace('_', '')}backward"):
                return name
        return self._calls[place - 1][0] if place else None
