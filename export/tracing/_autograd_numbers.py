"""Find the operation of a derivative by autograd's sequence numbers."""

from bisect import bisect_left
from typing import Any

import torch

from .._errors import TraceError

_SOON = 3  # autograd numbers an operation at most this many operations early


class AutogradNumbers:
    """Maps autograd's sequence numbers, which grow within a thread, to the operations of a run.

    Raises:
        TraceError: this version of torch does not expose them.
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
        """Return autograd's running node, or None: with `name()`, `_sequence_nr()`, `variable` if it accumulates."""
        return self._running() if self._running is not None else None

    def next(self) -> int:
        """Return the number of the next operation of this thread."""
        return int(self._last()) if self._last is not None else 0

    def skip(self, first: int, end: int) -> None:
        """Mark the operations from `first` to before `end` as not recorded."""
        if first < end:
            self._unseen.append((first, end))

    def claim(self, name: str, op: str) -> None:
        """Assign autograd's last number to a node that has just run, unless an earlier node has it."""
        number = self.next() - 1
        self._first.setdefault(number, name)
        self._numbers.append(number)
        self._calls.append((name, op))

    def owner(self, running: Any) -> str | None:
        """Return the name of the node whose derivative runs, or None.

        Autograd numbers an operation just before it runs. But if an operation overwrites what its own derivative needs,
        a copy is made in between; and if one writes to a view, the entry for the base of the view follows it.
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
