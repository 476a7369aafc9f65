"""Fingerprints of tensors, which tell how far two tensors are apart when only one of them is there."""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..common._complex import complex_as_real
from ._noise import unit_of
from ._verdict import root_mean_square

PROJECTIONS = 8  # enough to estimate the size of a difference within a third
_MODULUS = 2**40  # sums of integers are exact in float64 modulo this number
_DIGEST = 16  # characters of a digest
_TINY = torch.finfo(torch.float64).tiny


def projections(value: torch.Tensor, scale: torch.Tensor | float | None) -> tuple[float, ...]:
    """Return sums of a tensor's elements with random signs, which are always the same.

    Each element is divided by its scale, and the sums by the square root of the number of elements. The difference of
    the sums of two tensors is then about the root mean square difference of their elements, in scales.

    Args:
        value: the tensor; elements that are not finite count as 0.
        scale: of all elements or of each; None for integers, whose sums are neither divided nor rounded.
    """
    count = value.numel()
    if scale is None:
        integers = value.reshape(-1).to(device="cpu", dtype=torch.int64)
        return tuple(float(int((_signs(index, count) * integers).sum()) % _MODULUS) for index in range(PROJECTIONS))
    flat = complex_as_real(value.detach()).reshape(-1).to(device="cpu", dtype=torch.float64)
    known = torch.nan_to_num(flat, 0.0, 0.0, 0.0) / scale
    sums = (float((_signs(index, known.numel()) * known).sum()) for index in range(PROJECTIONS))
    return tuple(total / math.sqrt(max(1, known.numel())) for total in sums)


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the root mean square difference of two tensors by their projections, in scales; an estimate."""
    return math.dist(first, second) / math.sqrt(PROJECTIONS)


@dataclass(frozen=True)
class Fingerprint:
    """A fingerprint of a weight.

    Attributes:
        digest: a hash of its dtype, shape and bytes.
        scale: half a unit in the last place of its typical element; 0 of integers.
        projections: see `projections`.
    """

    digest: str
    scale: float
    projections: tuple[float, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Fingerprint":
        """Return the fingerprint of a dense tensor."""
        dense = tensor.detach().to("cpu").contiguous()
        digest = hashlib.sha256(f"{dense.dtype} {tuple(dense.shape)}".encode())
        digest.update(dense.reshape(-1).view(torch.uint8).numpy().data if dense.numel() else b"")
        flat = complex_as_real(dense).reshape(-1).to(torch.float64)
        size = root_mean_square(torch.nan_to_num(flat, 0.0, 0.0, 0.0)) if flat.numel() else 0.0
        scale = unit_of(dense.dtype) * size
        return cls(
            digest.hexdigest()[:_DIGEST], scale, projections(flat, scale + _TINY) if scale else (0.0,) * PROJECTIONS
        )

    def change(self, other: "Fingerprint") -> float:
        """Return how far another weight is from this one, in half units in the last place of a typical element.

        It is 0 if their bytes are equal, and infinite if they are not and one of them has no scale.
        """
        if self.digest == other.digest:
            return 0.0
        if not self.scale or not other.scale:  # of integers, or of zeros
            return math.inf
        ratio = other.scale / self.scale
        return distance(self.projections, [ratio * projection for projection in other.projections])

    def row(self) -> list[str | float | list[float]]:
        """Return the attributes as a row of JSON."""
        return [self.digest, self.scale, [*self.projections]]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> "Fingerprint":
        """Return the fingerprint that a row describes.

        Raises:
            ValueError: the row is not valid.
        """
        digest, scale, sums = row
        if not isinstance(digest, str) or not 0 <= scale < math.inf or len(sums) != PROJECTIONS:
            raise ValueError(f"this is no fingerprint: {row!r:.200}")
        return cls(digest, float(scale), tuple(map(float, sums)))


@functools.lru_cache(maxsize=2 * PROJECTIONS)
def _signs(index: int, count: int) -> torch.Tensor:
    """Return random numbers 1 and -1; `RandomState` promises the same ones in each version of NumPy."""
    data = np.random.RandomState(index).bytes(count // 8 + 1)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count)
    return torch.from_numpy(bits.astype(np.int8)).mul_(2).sub_(1)
