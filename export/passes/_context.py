"""`PassContext`: the instruments of the passes that `optimize` runs."""

import os
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import Any, Self

from .._errors import PassError
from ..common._extensions import Extensions
from ._instrument import CALLBACKS, Instrument

_BUILT_IN = {
    "profile": "._profile:ProfileInstrument",
    "save_graph": "._save_graph:SaveGraphInstrument",
}
_INSTRUMENTS = Extensions("instrument", __package__, _BUILT_IN, PassError, extras={})
_CURRENT: ContextVar["PassContext | None"] = ContextVar("filch_pass_context", default=None)


class PassContext:
    """A context manager with instruments for the passes that `optimize` runs inside of its block.

    The innermost of nested contexts applies. A context can be entered again; its instruments start anew with each run.
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
        """Return the innermost active context, or None."""
        return _CURRENT.get()

    @property
    def instruments(self) -> tuple[Any, ...]:
        """The instruments in the order in which they were added."""
        return tuple(self._instruments)

    def instrument(self, instrument: str | Instrument, *args: Any, **options: Any) -> Any:
        """Add an instrument.

        Args:
            instrument: an object with at least one method of `Instrument`, or the name of an instrument: a package adds
                one as an entry point `filch.instruments`.
            args: positional arguments of a named instrument.
            options: keyword arguments of a named instrument.

        Returns:
            the instrument.

        Raises:
            PassError: there is no instrument of this name, or the object has no method of `Instrument`.
        """
        item: Any = _INSTRUMENTS.find(instrument)(*args, **options) if isinstance(instrument, str) else instrument
        # A class has the methods, too, but is not an instrument.
        if isinstance(item, type) or not any(callable(getattr(item, name, None)) for name in CALLBACKS):
            raise PassError(f"an instrument has a method among {', '.join(CALLBACKS)}, and {item!r} has none")
        self._instruments.append(item)
        return item

    def profile_pass_instrument(
        self, *, log_file: str | os.PathLike[str] | None = None, print_stdout: bool = False
    ) -> Any:
        """Log the start and the time in seconds of each pass.

        Args:
            log_file: the file to write; each run overwrites it.
            print_stdout: whether to print the log.
        """
        return self.instrument("profile", log_file=log_file, print_stdout=print_stdout)

    def save_graph_instrument(
        self, out_dir: str | os.PathLike[str], *, views: Sequence[str] = ("hidet", "text")
    ) -> Any:
        """Draw the graph before all passes, and after each: `0_Origin.json`, `1_FoldConstantPass.json` and so on.

        Args:
            out_dir: the folder, created if it is missing. Files that an earlier run has drawn are removed.
            views: names of `filch.export.views.view_names()`, optionally followed by one of the view's suffixes
                (`"netron.json"`); the default is its first suffix.
        """
        return self.instrument("save_graph", out_dir, views=views)

    def compare_instrument(self, dump: Any, **options: Any) -> Any:
        """Compare the program with a capture of the model, before all passes and after each (`CompareInstrument`).

        Args:
            dump: the recorded tensors of the model: a `Capture`, a `Dump`, or the path of a dump.
            options: `backend`, `tolerance` and others; see `filch.compare.CompareInstrument`.
        """
        return self.instrument("compare", dump, **options)
