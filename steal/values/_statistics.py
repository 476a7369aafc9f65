"""Summary statistics of a tensor, for runs that are too large to store."""

import dataclasses
import hashlib
import math
import reprlib
from typing import Any

import torch

from ._dtypes import COMPLEX_HALVES, dtype_and_shape, dtype_name
from ._raw import bytes_of, contiguous_cpu, no_modes_or_grad

DIGEST_SIZE = 16  # bytes of `Statistics.content`
_NOT_IN_JSON = ("inf", "-inf", "nan")  # numbers that are written as strings
_CHUNK = 2**17  # elements at a time, so that the float64 copy fits in the processor's cache


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Summary statistics, stored instead of a tensor.

    Attributes:
        what: dtype and shape, as `describe` writes them (`f32[2, 3]`).
        dtype: the dtype's name, without `torch.`.
        shape: the shape.
        minimum: of the finite elements (of absolute values, if complex); None if there are none.
        maximum: of the finite elements, as above.
        mean: of the finite elements, summed in float64.
        std: the population standard deviation of the finite elements.
        nan: the number of NaNs.
        inf: the number of infinities.
        content: BLAKE2b hash (128 bits, hexadecimal) of the bytes in row-major order.
    """

    what: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    mean: float | None
    std: float | None
    nan: int
    inf: int
    content: str


def statistics(tensor: torch.Tensor, *, content: bool = True) -> Statistics:
    """Compute the summary statistics of a tensor.

    Args:
        tensor: any tensor that can be stored in a dump, on any device.
        content: also hash the bytes, which takes longer than all the rest; else `Statistics.content` is `""`.
    """
    raw = contiguous_cpu(tensor)
    digest = hashlib.blake2b(bytes_of(raw), digest_size=DIGEST_SIZE).hexdigest() if content else ""
    with no_modes_or_grad():
        numbers = _summarize(raw.detach())
    return Statistics(dtype_and_shape(tensor), dtype_name(tensor.dtype), tuple(tensor.shape), *numbers, digest)


def _summarize(tensor: torch.Tensor) -> tuple[float | None, float | None, float | None, float | None, int, int]:
    """Return minimum, maximum, mean and standard deviation of the finite elements, and the numbers of NaNs and infs."""
    if tensor.dtype == torch.float4_e2m1fn_x2:  # two numbers per byte, which torch can't compute with
        return None, None, None, None, 0, 0
    lowest, highest, count, nan, inf = math.inf, -math.inf, 0, 0, 0
    mean = squares = 0.0
    for chunk in torch.split(tensor.reshape(-1), _CHUNK):
        wide = chunk.to(torch.complex64) if chunk.dtype in COMPLEX_HALVES else chunk
        finite = (wide.abs() if wide.is_complex() else wide).to(torch.float64)
        if not math.isfinite(float(finite.sum())):  # rare: a NaN, an infinity, or a sum that overflows
            nan += int(finite.isnan().sum())
            inf += int(finite.isinf().sum())
            finite = finite[finite.isfinite()]
        if size := finite.numel():
            # Combine mean and sum of squares without cancellation: Chan, Golub and LeVeque (1979).
            chunk_mean = float(finite.mean())
            delta, deviations = chunk_mean - mean, finite - chunk_mean
            squares += float(torch.dot(deviations, deviations)) + delta**2 * count * size / (count + size)
            mean += delta * size / (count + size)
            count += size
            low, high = finite.aminmax()
            lowest, highest = min(lowest, float(low)), max(highest, float(high))
    if not count:
        return None, None, None, None, nan, inf
    return lowest, highest, mean, math.sqrt(squares / count), nan, inf


def statistics_to_json(summary: Statistics) -> dict[str, Any]:
    """Return statistics as a dump stores them."""
    # JSON keeps every bit of a finite float; infinities (from a sum that overflows) become strings.
    return {
        name: str(item) if isinstance(item, float) and not math.isfinite(item) else item
        for name, item in dataclasses.asdict(summary).items()
    }


def statistics_from_json(spec: dict[str, Any]) -> Statistics:
    """Return the statistics that `statistics_to_json` wrote; the JSON is untrusted.

    Raises:
        LookupError, TypeError, ValueError: the JSON has another form.
    """
    what, dtype, content = texts = [spec[name] for name in ("what", "dtype", "content")]
    if any(type(text) is not str for text in texts) or len(bytes.fromhex(content)) != DIGEST_SIZE:
        raise ValueError(f"{reprlib.repr(texts)} are not description, dtype and hash of statistics")
    # A capture in memory still has the shape as a tuple, which JSON doesn't have.
    shape, nan, inf = (spec[name] for name in ("shape", "nan", "inf"))
    counts = [*shape, nan, inf]
    if type(shape) not in (list, tuple) or any(type(count) is not int or count < 0 for count in counts):
        raise ValueError(f"{reprlib.repr(counts)} are not shape and counts of statistics")
    numbers = [spec[name] for name in ("minimum", "maximum", "mean", "std")]
    if any(item is not None and type(item) not in (int, float) and item not in _NOT_IN_JSON for item in numbers):
        raise ValueError(f"{reprlib.repr(numbers)} are not minimum, maximum, mean and std of statistics")
    low, high, mean, std = (None if item is None else float(item) for item in numbers)
    return Statistics(what, dtype, tuple(shape), low, high, mean, std, nan, inf, content)
