"""Knows a tensor that has only grown since the last iteration, as a decoder's cache does with each token."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ._raw import row_hashes

_SMALLEST = 1024
RANK = 3  # a cache's: where heads or batches come before the tokens
_Hashes = npt.NDArray[np.int64]
_Place = tuple[str, str, str]


class Grown(NamedTuple):
    """How a tensor begins.

    Attributes:
        first: what the store calls the tensor that it begins with.
        dim: along which dimension.
        length: for how long.
        hashes: of its rows.
    """

    first: int
    dim: int
    length: int
    hashes: _Hashes


class _Last(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype
    hashes: _Hashes | None
    reference: int
    dim: int | None


class Growth:
    """The last tensor at each place that a growing one may stand at, by a hash of each of its innermost rows.

    Only where a tensor was seen to be longer than the last one are hashes made from then on, so that one which does not
    grow costs nothing.
    """

    def __init__(self) -> None:
        self._last: dict[_Place, _Last] = {}

    def find(self, place: _Place, raw: torch.Tensor) -> Grown | None:
        """What `raw` begins with: the last tensor at `place`, bit for bit; None if it doesn't.

        Args:
            place: name, kind and path of a value.
            raw: a contiguous tensor in main memory, of `RANK` dimensions at least.
        """
        last = self._last.get(place)
        if last is None or last.hashes is None or (dim := _longer(last, raw)) is None or last.dim not in (None, dim):
            return None
        hashes = row_hashes(raw)
        if hashes is None or not np.array_equal(hashes.take(range(last.shape[dim]), dim), last.hashes):
            return None
        return Grown(last.reference, dim, last.shape[dim], hashes)

    def note(self, place: _Place, raw: torch.Tensor, reference: int, grown: Grown | None) -> None:
        """Remember that `raw`, which the store calls `reference`, is the last one at `place`."""
        if raw.nbytes < _SMALLEST:
            return
        if grown is not None:
            self._last[place] = _Last(raw.shape, raw.dtype, grown.hashes, reference, grown.dim)
            return
        last = self._last.get(place)
        grows = last is not None and _longer(last, raw) is not None
        self._last[place] = _Last(raw.shape, raw.dtype, row_hashes(raw) if grows else None, reference, None)


def _longer(last: _Last, raw: torch.Tensor) -> int | None:
    """The one dimension, not the innermost, along which `raw` is longer than the last one."""
    if raw.dtype != last.dtype or raw.dim() != len(last.shape):
        return None
    differing = [dim for dim, (old, new) in enumerate(zip(last.shape, raw.shape, strict=True)) if old != new]
    if len(differing) != 1 or differing[0] == raw.dim() - 1 or raw.shape[differing[0]] < last.shape[differing[0]]:
        return None
    return differing[0]


def parts_of(reference: int, grown: Sequence[tuple[int, int, int]]) -> list[int]:
    """What a tensor that was kept in parts is made of; `grown[-1 - reference]` says how it begins and what follows.

    Raises:
        ValueError: it is not there, or begins with one that came later.
    """
    found = []
    while reference < 0:
        if reference < -len(grown):
            raise ValueError(f"there is no tensor {reference}")
        first, tail, _ = grown[-1 - reference]
        if first <= reference or tail < 0:
            raise ValueError(f"tensor {reference} begins with one that comes later")
        found.append(tail)
        reference = first
    return [reference, *reversed(found)]


def joined(reference: int, grown: Sequence[tuple[int, int, int]], get: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The tensor that was kept in parts; `get` gives these.

    Raises:
        ValueError: see `parts_of`, or they don't fit.
    """
    try:
        return torch.cat([get(part) for part in parts_of(reference, grown)], grown[-1 - reference][2])
    except (IndexError, RuntimeError) as error:
        raise ValueError(f"the parts of tensor {reference} don't fit: {error}") from error
