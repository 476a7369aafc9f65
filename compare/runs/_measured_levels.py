"""Measure the rounding levels of the values of a dump, with one of them in memory at a time."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from filch.steal import Key, tensors
from filch.steal.values._raw import no_modes_or_grad

from ..common._errors import reason_of
from ..float64._stored_level import StoredLevel, stored_level
from ._mode import Float64Mode

_Put = Callable[[Key, str, torch.Tensor], None]


def measured_levels(run: Callable[[_Put], object], records: Mapping[Any, Any]) -> tuple[dict[str, StoredLevel], str]:
    """Run a function in float64 without and with noise, and return the rounding levels of recorded values.

    The random number state is restored at the end.

    Args:
        run: runs the code that the records are of. It passes on each tensor that it computes with the key of the record
            and the path in it; of several with the same place, the last one counts.
        records: what the code has computed by itself, by key.

    Returns:
        the levels by the label of the record's key and the path of the tensor; and why values have none, or `""`.
    """
    levels: dict[str, StoredLevel] = {}
    mode = Float64Mode("exact", "noisy")
    record = lru_cache(maxsize=1)(lambda key: tensors(records[key]))

    def measure(key: Key, path: str, tensor: torch.Tensor) -> None:
        with no_modes_or_grad():
            place = key.label + path
            levels.pop(place, None)
            value = record(key).get(path) if key in records else None
            level = None if value is None else stored_level(value, mode.float64(tensor))
            levels.update({} if level is None else {place: level})

    try:
        with mode.running():
            run(measure)
    except Exception as error:  # noqa: BLE001  operators that a mode can't run raise errors of all types
        return {}, reason_of(error)
    return levels, mode.problem
