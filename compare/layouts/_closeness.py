"""`Closeness`: how far numbers may differ that are equal apart from rounding."""

import math
from dataclasses import dataclass

import torch

RELATIVE = 1e-6  # float64 runs of two implementations differ by less, float32 tables of angles included
LARGEST = 1e30  # larger numbers stand for infinity in masks


@dataclass(frozen=True)
class Closeness:
    """The largest difference of equal numbers: relative to each number, and to a floor for smaller ones.

    A tensor of a trained model has a few numbers that are larger than the others by orders of magnitude. A limit
    relative to its root mean square would be theirs alone, and all others would count as equal.

    Attributes:
        relative: the largest difference, relative to the larger of the number and the floor.
        floor: the size of a typical number.
    """

    relative: float
    floor: float

    def sizes(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return what the largest difference of each number is relative to."""
        sizes = numbers.abs()
        return (sizes if sizes.is_floating_point() else sizes.double()).clamp_(min=self.floor)

    def limits(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the largest difference for each number: 0 for those that stand for infinity."""
        sizes = self.sizes(numbers)
        return sizes.masked_fill_(sizes >= LARGEST, 0.0).mul_(self.relative)

    def holds(self, numbers: torch.Tensor, expected: torch.Tensor) -> bool:
        """Whether two tensors of one shape are equal in each element; both may be infinite or NaN."""
        if torch.equal(numbers, expected):
            return True
        close = (numbers - expected).abs_() <= self.limits(expected)
        return bool(close.all()) or bool(self.equal(numbers, expected).all())

    def equal(self, numbers: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Return which elements of two tensors of one shape are equal, as booleans; both may be infinite or NaN."""
        close = (numbers - expected).abs_() <= self.limits(expected)
        infinite = (numbers.abs() >= LARGEST) & (expected.abs() >= LARGEST) & (numbers.sign() == expected.sign())
        return close | (numbers == expected) | infinite | (numbers.isnan() & expected.isnan())


def typical_size(numbers: torch.Tensor) -> float:
    """Return the square of the mean root of the absolute numbers that are not 0, which a few large ones hardly change.

    Args:
        numbers: finite numbers in any shape.
    """
    count = int(numbers.count_nonzero())
    roots = numbers.abs().sqrt_().sum(dtype=torch.float64)
    return (float(roots) / max(count, 1)) ** 2


def root_mean_square(numbers: torch.Tensor) -> float:
    """Return the root mean square of the numbers that are not 0.

    Args:
        numbers: finite numbers in any shape.
    """
    count = int(numbers.count_nonzero())
    return float(torch.linalg.vector_norm(numbers, dtype=torch.float64)) / math.sqrt(max(count, 1))
