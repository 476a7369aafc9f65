"""`TensorNumbers`: the numbers of a tensor, with what is needed to recognize them in another one."""

from functools import cached_property
from typing import Any

import torch

from ._closeness import LARGEST, Closeness, root_mean_square, typical_size
from ._layout import Shape

FINE = 1e-5  # differences above this are those of a low precision
_FEW = 4  # different numbers, as in masks


class TensorNumbers:
    """The numbers of a tensor, with what is computed from them when it is first needed.

    Args:
        tensor: real numbers of any shape; integers are converted to float64.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = (tensor if tensor.is_floating_point() else tensor.double()).detach().contiguous()
        # What `fibers_of` (`_solve.py`) has made of the tensor, by shape, dimension and closeness.
        self.fibers: dict[tuple[Shape, int, Closeness], Any] = {}

    @cached_property
    def finite(self) -> torch.Tensor:
        """The tensor with 0 in place of numbers that are not finite or stand for infinity."""
        if not self.tensor.numel() or all(abs(float(bound)) < LARGEST for bound in self.tensor.aminmax()):
            return self.tensor
        return torch.where(self.tensor.abs() < LARGEST, self.tensor, torch.zeros((), dtype=self.tensor.dtype))

    @cached_property
    def scale(self) -> float:
        """The root mean square of the finite numbers that are not 0."""
        return root_mean_square(self.finite)

    @cached_property
    def _typical(self) -> float:
        """The size of a typical finite number, which a few large ones hardly change."""
        return typical_size(self.finite)

    def closeness(self, relative: float) -> Closeness:
        """Return how far numbers may differ that are those of the tensor.

        Args:
            relative: the largest difference of a number, relative to it. In a low precision, rounding of large numbers
                spreads to others, so that it is relative to the root mean square for all smaller ones.
        """
        return Closeness(relative, self._typical if relative <= FINE else self.scale)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest finite number."""
        low, high = self.finite.aminmax() if self.finite.numel() else (torch.zeros(()), torch.zeros(()))
        return float(low), float(high)

    @cached_property
    def has_few(self) -> bool:
        """Whether only a few of the finite numbers differ, so that they fit in many places, as those of masks do."""
        flat = self.finite.reshape(-1)  # its beginning shows most tensors to have more
        return all(int(part.sort().values.diff().count_nonzero()) < _FEW for part in (flat[: _FEW**4], flat))

    @cached_property
    def statistics(self) -> torch.Tensor:
        """Statistics of all finite numbers, which do not depend on their order: float64 in the shape [3]."""
        return order_free_statistics(self.finite.reshape(-1), 0)


def order_free_statistics(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return statistics of each fiber along a dimension that do not depend on the order of its elements.

    Returns:
        float64 in the shape of the tensor without the dimension, and a last dimension of 3; of 1 for single elements.
    """
    if tensor.shape[axis] == 1:
        return tensor.select(axis, 0).double().unsqueeze(-1)
    numbers = tensor.to(torch.float64, copy=True)
    weights = torch.full((tensor.shape[axis],), 1 / tensor.shape[axis], dtype=torch.float64)

    def mean(items: torch.Tensor) -> torch.Tensor:  # a product with a vector is several times as fast as a reduction
        if axis == 0:
            return (weights @ items.reshape(len(weights), -1)).reshape(items.shape[1:])
        return items.movedim(axis, -1) @ weights

    average = mean(numbers)
    size = mean(numbers.abs_())
    return torch.stack([average, mean(numbers.square_()).sqrt_(), size], -1)
