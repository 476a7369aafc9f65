"""Find the operation of a derivative by autograd's sequence numbers."""

from bisect import bisect_left
from typing import Any

from filch.steal.private import _torch

_MAX_EARLY = 3  # autograd numbers an operation at most this many operations early


class SequenceNumbers:
    """Maps autograd's sequence numbers, which grow within a thread, to the operations of a run.

    Attributes:
        running_node: returns autograd's running node, or None: with `name()`, `_sequence_nr()`, and `variable` if it
            accumulates gradients.
        next_number: returns the sequence number of the next operation of this thread.

    Raises:
        PrivateNameError: this version of torch does not expose them.
    """

    def __init__(self) -> None:
        self._name_by_number: dict[int, str] = {}
        self._numbers: list[int] = []  # of `_operations`
        self._operations: list[tuple[str, str]] = []  # names of nodes and operators
        self._skipped: list[tuple[int, int]] = []  # from the first to before the second
        self.next_number = _torch.get_sequence_nr
        self.running_node = _torch.current_autograd_node

    def skip(self, first: int, end: int) -> None:
        """Mark the operations from `first` to before `end` as not recorded."""
        if first < end:
            self._skipped.append((first, end))

    def assign(self, name: str, op: str) -> None:
        """Assign autograd's last number to a node that has just run, unless an earlier node has it."""
        number = self.next_number() - 1
        self._name_by_number.setdefault(number, name)
        self._numbers.append(number)
        self._operations.append((name, op))

    def differentiated_node(self, running: Any) -> str | None:
        """Return the name of the node whose derivative the running autograd node computes, or None.

        Autograd numbers an operation just before it runs. But if an operation overwrites what its own derivative needs,
        a copy is made in between; and if one writes to a view, the entry for the base of the view follows it.

        Returns:
            the name; None if `skip` marked the operation, or it ran before all recorded ones.
        """
        number: int = running._sequence_nr()  # noqa: SLF001  nothing public tells
        if any(first <= number < end for first, end in self._skipped):
            return None
        if number in self._name_by_number:
            return self._name_by_number[number]
        index = bisect_left(self._numbers, number)
        derivative = running.name().rpartition(":")[2].lower()  # `addmmbackward0`, without a namespace
        for name, op in self._operations[index : index + _MAX_EARLY]:
            if derivative.startswith(f"{op.replace('_', '')}backward"):
                return name
        return self._operations[index - 1][0] if index else None  # the last one before it
