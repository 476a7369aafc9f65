"""Find the values of a program by their numbers."""

from functools import cache

import torch

from ..metrics._nearest import Nearest
from ._observed import Observed


class ProgramNumbers:
    """The values that nodes of a program compute from its inputs, by their numbers.

    Args:
        program: the program.
    """

    def __init__(self, program: Observed) -> None:
        names = program.graph.producer.keys() - program.constants.keys()
        self._values = {name: program.values[name] for name in names if name in program.values}
        self._nearest = cache(self._values_of_kind)
        self._nearest_flat = cache(self._values_of_size)
        self._sizes = cache(self._last_sizes)

    def nearest(self, tensor: torch.Tensor) -> str | None:
        """Return the value with nearly the same numbers; None if there is none."""
        nearest = self._nearest(tensor.dtype, tensor.shape)
        return None if nearest is None else nearest.find(tensor)

    def nearest_reshaped(self, tensor: torch.Tensor) -> str | None:
        """Return the value with nearly the same floating-point numbers in another shape."""
        nearest = self._nearest_flat(tensor.dtype, tensor.numel()) if tensor.is_floating_point() else None
        return None if nearest is None else nearest.find(tensor.reshape(-1))

    def parts(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Return the values that make up a tensor when they are joined along the last dimension; none if it has others.

        They are those that are found from its start, the largest first.
        """
        rest, found = tensor, []
        while tensor.is_floating_point() and tensor.ndim > 1 and rest.numel():
            for size in self._sizes(tensor.dtype, tensor.shape[:-1]):
                nearest = self._nearest(tensor.dtype, (*tensor.shape[:-1], size))
                part = nearest.find(rest[..., :size].contiguous()) if nearest and size <= rest.shape[-1] else None
                if part is not None:
                    found.append(part)
                    rest = rest[..., size:]
                    break
            else:
                return ()
        return tuple(found)

    def _values_of_kind(self, dtype: torch.dtype, shape: torch.Size) -> Nearest | None:
        tensors = self._values.items()
        found = {name: tensor for name, tensor in tensors if (tensor.dtype, tensor.shape) == (dtype, shape)}
        return Nearest(found) if found else None

    def _values_of_size(self, dtype: torch.dtype, size: int) -> Nearest | None:
        tensors = self._values.items()
        found = {name: item.reshape(-1) for name, item in tensors if (item.dtype, item.numel()) == (dtype, size)}
        return Nearest(found) if size > 1 and found else None

    def _last_sizes(self, dtype: torch.dtype, shape: torch.Size) -> list[int]:
        """Return the sizes of the last dimension of the values with these other dimensions, the largest first."""
        values = self._values.values()
        found = {item.shape[-1] for item in values if item.ndim and (item.dtype, item.shape[:-1]) == (dtype, shape)}
        return sorted(found - {0}, reverse=True)
