"""The protocol of instruments, which observe passes."""

from collections.abc import Iterable
from typing import Any, Protocol

from ..program._program import Program


class Instrument(Protocol):
    """Observes passes. All methods are optional.

    Methods before a pass are called in the order in which the instruments were added, methods after it in reverse
    order. They must not change the programs.
    """

    def before_all_passes(self, program: Program, /) -> None:
        """Called when a run begins, with the original program."""

    def before_pass(self, name: str, program: Program, /) -> None:
        """Called when a pass begins."""

    def pass_took(self, name: str, seconds: float, /) -> None:
        """Called with the time of the pass alone, before `after_pass`."""

    def after_pass(self, name: str, program: Program, /) -> None:
        """Called with the result of a pass."""

    def pass_failed(self, name: str, program: Program, error: Exception, /) -> None:
        """Called when a pass has raised an error on this program; the run ends."""

    def after_all_passes(self, program: Program, /) -> None:
        """Called when the run is over, with the result of all passes."""


CALLBACKS = tuple(name for name in vars(Instrument) if not name.startswith("_"))


def notify(instruments: Iterable[Any], callback: str, *args: object) -> None:
    """Call a method of the instruments that have it."""
    for instrument in instruments:
        method = getattr(instrument, callback, None)
        if method is not None:
            method(*args)
