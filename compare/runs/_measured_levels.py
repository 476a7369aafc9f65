"""Measure the rounding levels of the values of a dump, with one of them in memory at a time."""

import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from filch.steal import Dump, Key, Records, tensors
from filch.steal.values._raw import no_modes_or_grad

from ..common._errors import reason_of
from ..float64._stored_level import StoredLevel, stored_level
from ..float64._verdict import Float64Value
from ._mode import Float64Mode, RecordedDecisions

_Put = Callable[[Key, str, torch.Tensor], None]
_Take = Callable[[Key, str, torch.Tensor, float], None]


def measured_levels(run: Callable[[_Put], object], records: Records) -> tuple[dict[str, StoredLevel], str]:
    """Run a function in float64 without and with noise, and return the rounding levels of recorded values.

    The float64 values of the first run are in a temporary file, beside the dump if that folder can be written to, until
    the second run has computed those with noise. The random number state is the same at the beginning of each run, and
    restored at the end.

    Args:
        run: runs the code that the records are of, from the same state each time. It passes on each tensor that it
            computes with the key of the record and the path in it; of several with the same place, the last one counts.
        records: what the code has computed by itself.

    Returns:
        the levels by the label of the record's key and the path of the tensor; and why values have none, or `""`.
    """
    levels: dict[str, StoredLevel] = {}
    decisions: RecordedDecisions = {}
    record = lru_cache(maxsize=1)(lambda key: tensors(records[key]))
    exact_mode, noisy_mode = (Float64Mode(noisy=noisy, decisions=decisions) for noisy in (False, True))
    folder = Path(records.source).parent
    is_usable = isinstance(records, Dump) and os.access(folder, os.W_OK)
    with tempfile.TemporaryFile(dir=folder if is_usable else None) as file:
        exact = _TensorFile(file)

        def keep(key: Key, path: str, value: torch.Tensor, unit: float) -> None:
            if key in records:
                exact.write(key.label + path, value, unit)

        def measure(key: Key, path: str, noisy: torch.Tensor, _: float) -> None:
            place = key.label + path
            levels.pop(place, None)
            known = exact.read(place)
            value = None if known is None else record(key).get(path)
            if known is not None and value is not None and known[0].shape == noisy.shape:
                level = stored_level(value, Float64Value(known[0], noisy, known[1]))
                levels.update({} if level is None else {place: level})

        try:
            _run(run, exact_mode, keep)
            _run(run, noisy_mode, measure)
        except Exception as error:  # noqa: BLE001  operators that a mode can't run raise errors of all types
            return {}, reason_of(error)
    return levels, exact_mode.problem or noisy_mode.problem


def _run(run: Callable[[_Put], object], mode: Float64Mode, take: _Take) -> None:
    """Run a function in a mode, and pass on the float64 value and the unit of each of its tensors."""

    def put(key: Key, path: str, tensor: torch.Tensor) -> None:
        with no_modes_or_grad():
            take(key, path, mode.value(tensor), mode.unit(tensor))

    with mode.running():
        run(put)


class _Place(NamedTuple):
    offset: int
    dtype: torch.dtype
    shape: torch.Size
    unit: float


class _TensorFile:
    """Float64 values in a file, with their units."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._places: dict[str, _Place] = {}

    def write(self, name: str, tensor: torch.Tensor, unit: float) -> None:
        """Add a value; one of the same name is no longer read."""
        self._places[name] = _Place(self._file.seek(0, os.SEEK_END), tensor.dtype, tensor.shape, unit)
        self._file.write(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)

    def read(self, name: str) -> tuple[torch.Tensor, float] | None:
        """Return a value and its unit; None if there is none of this name."""
        place = self._places.get(name)
        if place is None:
            return None
        tensor = torch.empty(place.shape, dtype=place.dtype)
        self._file.seek(place.offset)
        self._file.readinto(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return tensor, place.unit
