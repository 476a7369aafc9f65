"""`TensorNumbers`: the numbers of a tensor, with what is needed to recognize them in another one."""

from functools import cached_property

import torch

from ._closeness import LARGEST, Closeness, root_mean_square, typical_size
from ._fibers import Fibers, order_free_statistics
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
        self._fibers: dict[tuple[Shape, int, Closeness], Fibers] = {}

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

    def fibers(self, shape: Shape, axis: int, relative: float) -> "Fibers":
        """Return the fibers along a dimension of the tensor in a shape."""
        closeness = self.closeness(relative)
        key = shape, axis, closeness
        if key not in self._fibers:
            self._fibers[key] = Fibers(self.finite.reshape(shape), axis, closeness)
        return self._fibers[key]
