"""What `steal_forward(verbose=1)` prints."""

import logging
from typing import Any

import torch
from torch import nn

from .._key import Key
from .._records import Totals
from ..values._describe import describe

_log = logging.getLogger("filch")


class Narrator:
    """Prints what happens in a capture; at verbosity 0 it is silent."""

    def __init__(self, verbose: int) -> None:
        self.verbose = verbose

    def _say(self, text: str) -> None:
        if self.verbose:
            try:
                print(text)
            except (OSError, ValueError) as error:  # nobody reads on; a terminal without the letters of a name
                self.verbose = 0
                _log.warning("can't print what is stolen, and go on without: %s", error)

    def enter(self, name: str, module: nn.Module, iteration: int, args: Any, kwargs: Any) -> None:
        if self.verbose:
            self._say(f"+{name} -- stolen forward for class {type(module).__name__} -- iteration {iteration}")
            self._say(f"  <- args={describe(args)} --- kwargs={describe(kwargs)}")

    def leave(self, name: str, output: Any) -> None:
        if self.verbose:
            self._say(f"  -> {describe(output)}")
            self._say(f"-{name}.")

    def failed(self, name: str) -> None:
        self._say(f"-{name} raised.")

    def stored(self, key: Key, value: Any) -> None:
        if self.verbose and key.kind != "I":
            self._say(f"-- stores key={key} -- {describe(value)}")

    def skipped(self, key: Key, tensor: torch.Tensor, reason: str) -> None:
        if self.verbose:
            self._say(f"-- skips a {describe(tensor)} of key={key}: {reason}")

    def gathered(self, totals: Totals, dump_file: str | None) -> None:
        """The summary."""
        where = f" in {dump_file}" if dump_file else ""
        self._say(f"-- stored {totals.records} values{where}: {totals.nbytes:,} bytes; sharing saved {totals.shared:,}")
        if round(totals.waited, 3):
            self._say(f"-- the model waited {totals.waited:.3f} s for the disk")
        if totals.recomputed:
            self._say(f"-- {totals.recomputed} calls recomputed what a backward pass needs; these are not stored")
