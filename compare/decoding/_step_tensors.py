"""`StepTensors`: the tensors of a value in all steps, of which those that grow are kept once."""

import torch

_SMALL = 2**16  # bytes of an equal tensor that may be kept in each step: to compare it with the last one takes time


class StepTensors:
    """The tensors of a value in the steps so far.

    The keys in a cache grow from step to step. A tensor with which that of the next step begins is a view of it, so
    that all steps take the memory of the last one.
    """

    def __init__(self) -> None:
        self._parts: list[torch.Tensor | tuple[int, int]] = []  # or the axis and the size of a view of the next one

    def __len__(self) -> int:
        return len(self._parts)

    def append(self, tensor: torch.Tensor) -> None:
        """Add the tensor of the next step, which must not be changed any more."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, torch.Tensor) and last.dtype == tensor.dtype:
            axis = _growing_axis(last, tensor)
            if axis is not None and torch.equal(tensor.narrow(axis, 0, last.shape[axis]), last):
                self._parts[-1] = axis, last.shape[axis]
        self._parts.append(tensor)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor of each step."""
        found: list[torch.Tensor] = []
        for part in reversed(self._parts):
            found.append(part if isinstance(part, torch.Tensor) else found[-1].narrow(part[0], 0, part[1]))
        return found[::-1]


def _growing_axis(last: torch.Tensor, tensor: torch.Tensor) -> int | None:
    """Return the axis in which a tensor may begin with the last one; None if there is no such axis."""
    if last.dim() != tensor.dim() or not last.dim():
        return None
    sizes = zip(last.shape, tensor.shape, strict=True)
    axes = [axis for axis, (before, after) in enumerate(sizes) if before != after]
    if not axes:
        return None if last.nbytes <= _SMALL else 0
    return axes[0] if len(axes) == 1 and last.shape[axes[0]] < tensor.shape[axes[0]] else None
