"""Detect tensors that grow by concatenation in each iteration, as a decoder's cache does with each token."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ._raw import row_hashes

MIN_BYTES = 1024  # bytes; smaller tensors are stored whole
MIN_RANK = 3  # the smallest rank of a cache: heads or batches come before the tokens
MAX_RATIO = 16  # size of the grown tensors of one value, relative to all that is stored
_Hashes = npt.NDArray[np.int64]
_Place = tuple[str, str, str]  # module name, kind of record and path of a tensor


class GrownTensor(NamedTuple):
    """A tensor that begins with one that is stored already.

    Attributes:
        first: the reference of the stored tensor that it begins with.
        dim: the dimension along which it has grown.
        length: the size of the stored tensor along `dim`.
        hashes: of the rows of the grown tensor.
    """

    first: int
    dim: int
    length: int
    hashes: _Hashes


class _LastTensor(NamedTuple):
    """The last tensor at a place; `dim` is None if it was stored whole, `hashes` if it is no longer than the last."""

    shape: torch.Size
    dtype: torch.dtype
    hashes: _Hashes | None
    reference: int
    dim: int | None


class GrowthTracker:
    """Remembers the last tensor at each place, by a hash of each of its innermost rows.

    Rows are hashed only once a tensor at a place was longer than its predecessor, so tensors that don't grow cost
    nothing.
    """

    def __init__(self) -> None:
        self._last: dict[_Place, _LastTensor] = {}

    def find(self, place: _Place, raw: torch.Tensor) -> GrownTensor | None:
        """Return how `raw` extends the last tensor at `place`, or None if it doesn't begin with it bit for bit.

        Args:
            place: where the tensor occurs.
            raw: a contiguous CPU tensor with at least `MIN_RANK` dimensions.
        """
        last = self._last.get(place)
        if last is None or last.hashes is None:
            return None
        dim = _grown_dimension(last, raw)
        if dim is None or last.dim not in (None, dim):  # it grew in another dimension before
            return None
        hashes = row_hashes(raw)
        if hashes is None or not np.array_equal(hashes.take(range(last.shape[dim]), dim), last.hashes):
            return None
        return GrownTensor(last.reference, dim, last.shape[dim], hashes)

    def remember(self, place: _Place, raw: torch.Tensor, reference: int, grown: GrownTensor | None) -> None:
        """Remember a tensor as the last one at a place, with its hashes if it has grown.

        Args:
            place: where the tensor occurs.
            raw: see `find`.
            reference: the reference under which it was stored.
            grown: the result of `find`.
        """
        if raw.nbytes < MIN_BYTES:
            return
        if grown is not None:
            self._last[place] = _LastTensor(raw.shape, raw.dtype, grown.hashes, reference, grown.dim)
            return
        last = self._last.get(place)
        grows = last is not None and _grown_dimension(last, raw) is not None
        self._last[place] = _LastTensor(raw.shape, raw.dtype, row_hashes(raw) if grows else None, reference, None)


class GrownBytes:
    """Counts the bytes of the grown tensors of each value while it is stored.

    A reader refuses a value whose grown tensors are many times larger than all that is stored, as a small file could
    describe one that takes all memory. A list of all stages of a cache would be such a value.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._references: set[int] = set()
        self._total = 0

    def admit(self, key: object, reference: int | None, nbytes: int, stored: int) -> bool:
        """Return whether a value may contain one more tensor in grown form.

        Args:
            key: of the value.
            reference: of the tensor; None if it is new. One that is not negative is not grown.
            nbytes: of the tensor.
            stored: the bytes of all that is stored.
        """
        if self._key != key:
            self._key, self._references, self._total = key, set(), 0
        if reference is not None and (reference >= 0 or reference in self._references):
            return True
        if self._total + nbytes > MAX_RATIO * stored:
            return False
        self._total += nbytes
        if reference is not None:
            self._references.add(reference)
        return True


def _grown_dimension(last: _LastTensor, raw: torch.Tensor) -> int | None:
    """Return the only dimension along which `raw` is longer than the last tensor; else None.

    It is not the innermost one, whose rows are hashed as wholes.
    """
    if raw.dtype != last.dtype or raw.dim() != len(last.shape):
        return None
    differing = [dim for dim, (old, new) in enumerate(zip(last.shape, raw.shape, strict=True)) if old != new]
    if len(differing) != 1 or differing[0] == raw.dim() - 1 or raw.shape[differing[0]] < last.shape[differing[0]]:
        return None
    return differing[0]


def part_references(reference: int, grown: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the references of the parts that a grown tensor is stored as.

    Args:
        reference: of the tensor; negative for a grown one.
        grown: of each grown tensor: the references of the tensor that it begins with (`first`) and of the data
            appended to that (`tail`), and the dimension. The first of these tensors has reference -1, the next -2 …

    Raises:
        ValueError: a reference doesn't exist, or a tensor begins with one that was stored later.
    """
    tails = []
    while reference < 0:
        if reference < -len(grown):
            raise ValueError(f"tensor {reference} doesn't exist")
        first, tail, _ = grown[-1 - reference]
        if first <= reference or tail < 0:
            raise ValueError(f"the parts of tensor {reference}, {first} and {tail}, are not earlier tensors")
        tails.append(tail)
        reference = first
    return [reference, *reversed(tails)]


def concatenate(
    reference: int, grown: Sequence[tuple[int, int, int]], get: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    """Return a grown tensor, concatenated from the parts that `get` returns.

    Raises:
        ValueError: see `part_references`, or the shapes of the parts don't match.
    """
    try:
        return torch.cat([get(part) for part in part_references(reference, grown)], grown[-1 - reference][2])
    except (IndexError, RuntimeError) as error:
        raise ValueError(f"the parts of tensor {reference} can't be concatenated: {error}") from error
