"""`PassContext`: what looks on while `optimize` runs its passes."""

import os
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import Any, Self

from .._errors import PassError
from ..common._extensions import Extensions
from ._instrument import CALLBACKS, Instrument

_OWN = {
    "profile": "._profile:ProfileInstrument",
    "save_graph": "._save_graph:SaveGraphInstrument",
}
_INSTRUMENTS = Extensions("instrument", __package__, _OWN, PassError, extras={})
_CURRENT: ContextVar["PassContext | None"] = ContextVar("filch_pass_context", default=None)


class PassContext:
    """Instruments, for the passes that `optimize` runs inside of its `with` block.

    Of nested contexts the innermost counts. A context may be entered again: its instruments begin anew with each run.
    """

    def __init__(self) -> None:
        self._instruments: list[Any] = []
        self._tokens: list[Token[PassContext | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._tokens.pop())

    @staticmethod
    def current() -> "PassContext | None":
        """The innermost one that is entered, or None."""
        return _CURRENT.get()

    @property
    def instruments(self) -> tuple[Any, ...]:
        """In the order in which they were added."""
        return tuple(self._instruments)

    def instrument(self, given: str | Instrument, *args: Any, **options: Any) -> Any:
        """Add an instrument.

        Args:
            given: anything with a method of `Instrument`'s, or the name under which a package brings one as an entry
                point `filch.instruments`.
            args: what the named one is made with.
            options: likewise.

        Returns:
            the instrument.

        Raises:
            PassError: there is none of this name, or it hears of nothing.
        """
        made = _INSTRUMENTS.find(given)(*args, **options) if isinstance(given, str) else given
        if isinstance(made, type) or not any(callable(getattr(made, name, None)) for name in CALLBACKS):
            raise PassError(f"an instrument has a method among {', '.join(CALLBACKS)}, and {made!r} has none to call")
        self._instruments.append(made)
        return made

    def profile_pass_instrument(
        self, *, log_file: str | os.PathLike[str] | None = None, print_stdout: bool = False
    ) -> Any:
        """Say when each pass begins, and how many seconds it took.

        Args:
            log_file: where to; each run begins it anew.
            print_stdout: print it.
        """
        return self.instrument("profile", log_file=log_file, print_stdout=print_stdout)

    def save_graph_instrument(
        self, out_dir: str | os.PathLike[str], *, views: Sequence[str] = ("hidet", "text")
    ) -> Any:
        """Draw the graph before all passes, and after each: `0_Origin.json`, `1_FoldConstantPass.json` and so on.

        Args:
            out_dir: the folder; it is made. Of what is in it, the files that an earlier run has drawn are removed.
            views: how: names of `filch.export.views.view_names()`; with one of the view's suffixes behind it
                (`"dot.svg"`) if it is not to be the first.
        """
        return self.instrument("save_graph", out_dir, views=views)

    def compare_instrument(self, dump: Any, **options: Any) -> Any:
        """Compare the program with what the model did, before all passes and after each (`CompareInstrument`).

        Args:
            dump: a capture or dump of the model, or a dump's path.
            options: `backend`, `tolerance` and others, see `filch.compare.CompareInstrument`.
        """
        return self.instrument("compare", dump, **options)
