"""What a tensor's numbers are like, for runs too large to keep them."""

import dataclasses
import hashlib
import math
from typing import Any

import torch

from ._dtypes import dtype_name, short
from ._raw import bytes_of, plain, untouched

_CHUNK = 2**17  # numbers at a time, so that the float64 copies stay in the processor's cache


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Stands for a tensor of which only this was kept.

    Attributes:
        what: dtype and shape, as `describe` writes them (`f32[2, 3]`).
        dtype: its dtype, without `torch.`.
        shape: its shape.
        minimum: of the finite numbers (of complex ones, the absolute value); None if there is none.
        maximum: likewise.
        mean: likewise, summed in float64.
        std: their standard deviation, over n.
        nan: how many are NaN.
        inf: how many are infinite.
        content: BLAKE2b (128 bits, hexadecimal) of the bytes in row-major order: equal for equal bits alone.
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


_Numbers = tuple[float | None, float | None, float | None, float | None, int, int]


def statistics(tensor: torch.Tensor, *, content: bool = True) -> Statistics:
    """What a tensor's numbers are like.

    Args:
        tensor: of any shape and dtype, on any device; one that a dump could store.
        content: hash its bytes, too, which takes longer than all the rest; else `Statistics.content` is `""`.
    """
    raw = plain(tensor)
    digest = hashlib.blake2b(bytes_of(raw) if raw.nbytes else b"", digest_size=16).hexdigest() if content else ""
    with untouched():
        numbers = _numbers(raw.detach())
    low, high, mean, std, nan, inf = numbers
    shape = tuple(tensor.shape)
    return Statistics(short(tensor), dtype_name(tensor.dtype), shape, low, high, mean, std, nan, inf, digest)


def _numbers(tensor: torch.Tensor) -> _Numbers:
    if tensor.dtype == torch.float4_e2m1fn_x2:  # torch computes nothing with two numbers in a byte
        return None, None, None, None, 0, 0
    lowest, highest, count, nan, inf = math.inf, -math.inf, 0, 0, 0
    mean = spread = 0.0
    for chunk in torch.split(tensor.reshape(-1), _CHUNK):
        wide = chunk.to(torch.complex64) if chunk.dtype == torch.complex32 else chunk
        finite = (wide.abs() if wide.is_complex() else wide).to(torch.float64)
        if not math.isfinite(float(finite.sum())):  # a NaN, an infinity, or a sum that overflows: seldom any
            nan += int(finite.isnan().sum())
            inf += int(finite.isinf().sum())
            finite = finite[finite.isfinite()]
        if size := finite.numel():
            # Chan, Golub and LeVeque (1979): mean and sum of squares of two parts, put together without cancellation
            here = float(finite.mean())
            delta, apart = here - mean, finite - here
            spread += float(torch.dot(apart, apart)) + delta**2 * count * size / (count + size)
            mean += delta * size / (count + size)
            count += size
            low, high = finite.aminmax()
            lowest, highest = min(lowest, float(low)), max(highest, float(high))
    if not count:
        return None, None, None, None, nan, inf
    return lowest, highest, mean, math.sqrt(spread / count), nan, inf


def to_json(found: Statistics) -> dict[str, Any]:
    """As a dump holds it."""
    # Python's JSON keeps every bit of a float; a sum that overflows is the one way to get an infinity here.
    return {
        name: str(item) if isinstance(item, float) and not math.isfinite(item) else item
        for name, item in dataclasses.asdict(found).items()
    }


def from_json(spec: dict[str, Any]) -> Statistics:
    """The inverse of `to_json`; of a file that is not trusted."""
    names = ("minimum", "maximum", "mean", "std")
    numbers = {name: None if spec[name] is None else float(spec[name]) for name in names}
    texts = {name: str(spec[name]) for name in ("what", "dtype", "content")}
    shape = tuple(map(int, spec["shape"]))
    return Statistics(shape=shape, nan=int(spec["nan"]), inf=int(spec["inf"]), **numbers, **texts)  # type: ignore[arg-type]
