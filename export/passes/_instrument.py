"""What looks on while passes run."""

from collections.abc import Iterable
from typing import Any, Protocol

from ..program._program import Program


class Instrument(Protocol):
    """Hears of each pass; what it has no method for, it does not hear of.

    What is before a pass is heard by the instruments in the order in which they were added, what is after it in the
    reverse one. The programs are not to be changed.
    """

    def before_all_passes(self, program: Program, /) -> None:
        """A run begins, with the program as it was given."""

    def before_pass(self, name: str, program: Program, /) -> None:
        """A pass of this name begins."""

    def pass_took(self, name: str, seconds: float, /) -> None:
        """How long the pass took, itself alone: heard before what it made is."""

    def after_pass(self, name: str, program: Program, /) -> None:
        """What the pass made."""

    def pass_failed(self, name: str, program: Program, error: Exception, /) -> None:
        """The pass raised, on this program; nothing comes after it."""

    def after_all_passes(self, program: Program, /) -> None:
        """The run is over, with what all passes made."""


CALLBACKS = tuple(name for name in vars(Instrument) if not name.startswith("_"))


def tell(instruments: Iterable[Any], callback: str, *told: object) -> None:
    """Let instruments hear of something, as far as they have a method for it."""
    for instrument in instruments:
        method = getattr(instrument, callback, None)
        if method is not None:
            method(*told)
