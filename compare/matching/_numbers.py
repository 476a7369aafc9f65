"""Find the values of a program by their numbers."""

from functools import cache, cached_property

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
        self._nearest = Nearest(self._values)
        self._sizes = cache(self._last_sizes)

    def nearest(self, tensor: torch.Tensor) -> str | None:
        """Return the value with nearly the same numbers; None if there is none."""
        return self._nearest.find(tensor)

    def nearest_reshaped(self, tensor: torch.Tensor) -> str | None:
        """Return the value with nearly the same floating-point numbers in another shape."""
        return self._nearest_flat.find(tensor.reshape(-1))

    @cached_property
    def _nearest_flat(self) -> Nearest:
        floats = {name: tensor for name, tensor in self._values.items() if tensor.is_floating_point()}
        return Nearest({name: tensor.reshape(-1) for name, tensor in floats.items() if tensor.numel() > 1})

    def parts(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """Return the values that make up a tensor when they are joined along the last dimension; none if it has others.

        They are those that are found from its start, the largest first.
        """
        rest, found = tensor, []
        while tensor.is_floating_point() and tensor.ndim > 1 and rest.numel():
            for size in self._sizes(tensor.dtype, tensor.shape[:-1]):
                part = self._nearest.find(rest[..., :size].contiguous()) if size <= rest.shape[-1] else None
                if part is not None:
                    found.append(part)
                    rest = rest[..., size:]
                    break
            else:
                return ()
        return tuple(found)

    def _last_sizes(self, dtype: torch.dtype, shape: torch.Size) -> list[int]:
        """Return the sizes of the last dimension of the values with these other dimensions, the largest first."""
        values = self._values.values()
        found = {item.shape[-1] for item in values if item.ndim and (item.dtype, item.shape[:-1]) == (dtype, shape)}
        return sorted(found - {0}, reverse=True)
