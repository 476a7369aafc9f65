"""Reads the sets of faults from the files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from faults._expressions import load, made

from ._models import ModelFault
from ._programs import ProgramFault
from ._runners import RunnerFault

Fault = ProgramFault | RunnerFault | ModelFault


def _read(kind: type[Any], file: str) -> dict[str, list[Any]]:
    """Return the faults of a file by set."""
    content = load(__file__, file)
    shared = {"names": content["names"]} if "names" in content else {}
    return {name: [made(kind, fields, **shared) for fields in rows] for name, rows in content["sets"].items()}


_FILES = [_read(ProgramFault, "programs.toml"), _read(RunnerFault, "runners.toml"), _read(ModelFault, "models.toml")]
SETS: Mapping[str, Sequence[Fault]] = {
    name: [fault for file in _FILES for fault in file[name]] for name in ("first", "second")
}
"""The faults of each set: in programs, in what runs them, and in models."""
