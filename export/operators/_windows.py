"""The windows of convolutions and pools: strides, dilations and pads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ._operator import NodeCall, Tensor

Sizes = Sequence[int]


@dataclass(frozen=True)
class Windows:
    """How windows lie in the spatial dimensions of a tensor; each attribute has one number per dimension.

    Attributes:
        kernel: the sizes of a window.
        strides: the steps between windows.
        dilations: the steps between the numbers of a window.
        begin: the pads before the first number.
        end: the pads after the last one.
    """

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    begin: Sizes
    end: Sizes

    @property
    def spans(self) -> list[int]:
        """The sizes of windows, with what lies between their numbers."""
        return [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]


def windows_of(call: NodeCall, sizes: Sizes, kernel: Sizes) -> Windows:
    """Return the windows of a convolution or a pool.

    Args:
        call: the call, for its attributes.
        sizes: the spatial sizes of the input.
        kernel: the spatial sizes of a window.
    """
    dims = len(sizes)
    ones = [1] * dims
    strides, dilations = call.get("strides") or ones, call.get("dilations") or ones
    pads, auto = call.get("pads") or [0] * (2 * dims), call.get("auto_pad", "NOTSET")
    windows = Windows(kernel, strides, dilations, pads[:dims], pads[dims:])
    if auto == "NOTSET":
        return windows
    if auto == "VALID":
        return replace(windows, begin=[0] * dims, end=[0] * dims)
    total = [  # SAME: as many windows as strides begin in the input
        max(0, (-(-size // stride) - 1) * stride + span - size)
        for size, stride, span in zip(sizes, strides, windows.spans, strict=True)
    ]
    begin, end = halves(total, auto)
    return replace(windows, begin=begin, end=end)


def halves(total: Sizes, auto: str) -> tuple[list[int], list[int]]:
    """Divide pads between begin and end; of an odd number, `SAME_LOWER` has the larger half at the begin."""
    small, large = [item // 2 for item in total], [item - item // 2 for item in total]
    return (large, small) if auto == "SAME_LOWER" else (small, large)


def with_last_windows(windows: Windows, sizes: Sizes) -> Windows:
    """Return windows with as many pads at the end as `ceil_mode` needs."""
    end = []
    for size, stride, span, first, last in zip(
        sizes, windows.strides, windows.spans, windows.begin, windows.end, strict=True
    ):
        count = -(-(size + first + last - span) // stride) + 1
        count -= (count - 1) * stride >= size + first  # a window in the pads at the end alone
        end.append(max(last, (count - 1) * stride + span - size - first))
    return replace(windows, end=end)


def unfolded(x: Tensor, windows: Windows) -> Tensor:
    """Return a view whose last dimensions have the numbers of each window; `x` has its pads already."""
    dims = len(windows.kernel)
    for axis, (span, stride, dilation) in enumerate(
        zip(windows.spans, windows.strides, windows.dilations, strict=True), x.dim() - dims
    ):
        x = x.unfold(axis, span, stride)[..., ::dilation]
    return x
