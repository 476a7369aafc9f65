"""Print the progress of a capture, for `steal_forward(verbose=1)`."""

import logging
from typing import Any

import torch
from torch import nn

from .._key import Key
from .._records import Totals
from ..values._describe import describe

_log = logging.getLogger("filch")


class ProgressPrinter:
    """Prints the progress of a capture; at verbosity 0 it prints nothing."""

    def __init__(self, verbose: int) -> None:
        self.verbose = verbose

    def _print(self, text: str) -> None:
        if self.verbose:
            try:
                print(text)
            except (OSError, ValueError) as error:  # a closed pipe; a terminal that can't encode a name
                self.verbose = 0
                _log.warning("can't print the progress of the capture, and continue without: %s", error)

    def enter(self, name: str, module: nn.Module, iteration: int, args: Any, kwargs: Any) -> None:
        if self.verbose:
            self._print(f"+{name} -- stolen forward for class {type(module).__name__} -- iteration {iteration}")
            self._print(f"  <- args={describe(args)} --- kwargs={describe(kwargs)}")

    def leave(self, name: str, output: Any) -> None:
        if self.verbose:
            self._print(f"  -> {describe(output)}")
            self._print(f"-{name}.")

    def failed(self, name: str) -> None:
        self._print(f"-{name} raised.")

    def stored(self, key: Key, value: Any) -> None:
        if self.verbose and key.kind != "I":  # `enter` has printed the inputs of modules
            self._print(f"-- stores key={key} -- {describe(value)}")

    def skipped(self, key: Key, tensor: torch.Tensor, reason: str) -> None:
        if self.verbose:
            self._print(f"-- skips a {describe(tensor)} of key={key}: {reason}")

    def summarize(self, totals: Totals, dump_file: str | None) -> None:
        """Print a summary at the end."""
        where = f" in {dump_file}" if dump_file else ""
        self._print(
            f"-- stored {totals.records} values{where}: {totals.nbytes:,} bytes; sharing saved {totals.shared:,}"
        )
        if round(totals.waited, 3):
            self._print(f"-- the model waited {totals.waited:.3f} s for the disk")
        if totals.recomputed:
            self._print(f"-- {totals.recomputed} calls were recomputed in a backward pass, and not stored again")
