"""Check that a quantized cache holds the keys and values that it was given, as exactly as its quantizer can."""

import importlib
import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..float64 import unit_of
from ..layouts._closeness import RELATIVE
from ..layouts._numbers import Numbers

_TOKENS = -2  # the axis of the tokens in keys and values
_ROUNDING = 4  # units of the dtype, of the largest number: to divide by a scale, and to multiply by it
_SIDES = ("keys", "values")


@dataclass(frozen=True)
class StateFault:
    """A tensor of a layer of a cache that is not what it was given.

    Attributes:
        layer: the index of the layer.
        what: `keys`, `values`, or `length`: the number of tokens that the layer says it has.
        source: the line of code of the layer's `update`.
        sequence: the index of the first sequence with other numbers; None for the length.
        position: its first position with other numbers.
        difference: the largest difference there, relative to the size of the number or of a typical one.
    """

    layer: int
    what: str
    source: str
    sequence: int | None
    position: int
    difference: float


class WatchedCache:
    """Compares what each layer of a cache holds after each update with what it held before and what it was given.

    Numbers that a layer does not quantize have to be the same, bit for bit. Those that it quantizes are rounded to the
    nearest step, so that they may change by half a step of its scale. A layer quantizes its numbers again when it
    quantizes new ones with them.

    Args:
        cache: an empty cache of transformers. Its layers that are derived from `BaseQuantizedLayer` are watched. Their
            `_quantize` returns a tuple of numbers and a scale, as that of `fp8`, or of integers and a dict with `scale`
            and `zero`, as that of `hqq`, or a tensor of quanto.

    Attributes:
        faults: what is wrong, by update.
        compared: the number of compared tensors.
        clipped: how many numbers were beyond the range of a scale that was made for earlier ones, by layer.
        excess: how many times the range the largest of them was.
    """

    def __init__(self, cache: Any) -> None:
        self.faults: list[StateFault] = []
        self.compared = 0
        self.clipped: dict[int, int] = {}
        self.excess = 1.0
        self._held: dict[tuple[int, str], torch.Tensor] = {}
        self._quantized: dict[tuple[int, str], Any] = {}
        for index, layer in enumerate(cache.layers):
            if hasattr(layer, "_quantized_keys"):
                layer.update = partial(self._update, index, layer, layer.update)

    def _update(
        self, index: int, layer: Any, update: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        given = keys.clone(), values.clone()
        returned = update(keys, values, *args, **kwargs)
        code = inspect.unwrap(type(layer).update).__code__
        source = f"{code.co_filename}:{code.co_firstlineno}"
        for what, new, result in zip(_SIDES, given, returned, strict=True):
            if (found := self._check(index, layer, what, new, result)) is not None:
                self.faults.append(StateFault(index, what, source, *found))
        count = self._held[index, "keys"].shape[_TOKENS]
        length = layer.get_seq_length()
        if (length, *layer.get_mask_sizes(1)) != (count, count + 1, 0):
            self.faults.append(StateFault(index, "length", source, None, count - 1, abs(length - count)))
        return returned

    def _check(
        self, index: int, layer: Any, what: str, new: torch.Tensor, returned: torch.Tensor
    ) -> tuple[int, int, float] | None:
        """Return where a layer returned or holds something else than it should; see `_first_difference`."""
        before = self._held.get((index, what))
        expected = new if before is None else torch.cat([before, new], _TOKENS)
        quantized, residual = getattr(layer, f"_quantized_{what}"), getattr(layer, what)
        dequantized = layer._dequantize(quantized)  # noqa: SLF001  what such layers define
        held = torch.cat([dequantized, *([residual] if residual.dim() == expected.dim() else [])], _TOKENS)
        is_quantized_now = quantized is not self._quantized.get((index, what))
        self._held[index, what], self._quantized[index, what] = held, quantized
        self.compared += 1
        allowed = torch.zeros_like(expected, dtype=torch.float64)
        if is_quantized_now and held.shape == expected.shape:
            rounding = _ROUNDING * unit_of(expected.dtype) * float(expected.double().abs().amax())
            room = allowed.narrow(_TOKENS, 0, dequantized.shape[_TOKENS])
            room.copy_((_largest_error(layer, quantized) + rounding).nan_to_num(nan=0.0))
            if before is not None and (times := _times_of_range(quantized, expected)) is not None:
                times[..., : before.shape[_TOKENS], :] = 0.0  # those are at the end of the range already
                room.masked_fill_(times > 1, torch.inf)
                self.clipped[index] = self.clipped.get(index, 0) + int((times > 1).sum())
                self.excess = max(self.excess, float(times.max()))
        return _first_difference(returned, expected, allowed) or _first_difference(held, expected, allowed)


def _first_difference(
    actual: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor
) -> tuple[int, int, float] | None:
    """Return the first sequence and its first position with larger differences than allowed, and the largest there."""
    if actual.shape != expected.shape:
        counts = [item.shape[_TOKENS] for item in (actual, expected)]
        return 0, min(*counts, max(counts) - 1), torch.inf
    distance = (actual.double() - expected.double()).abs()
    wrong = ~(distance <= allowed)  # NaN is wrong
    if not bool(wrong.any()):
        return None
    sequence = int(wrong.flatten(1).any(1).nonzero()[0])
    along = wrong[sequence].movedim(_TOKENS, 0).flatten(1).any(1)
    position = int(along.nonzero()[0])
    sizes = Numbers(expected.double()).closeness(RELATIVE).sizes(expected.double())
    relative = (distance / sizes)[sequence].movedim(_TOKENS, 0)[position]
    return sequence, position, float(relative.nan_to_num(nan=torch.inf).max())


def _largest_error(layer: Any, quantized: Any) -> torch.Tensor:
    """Return how far each number may be from the one that was quantized: half a step of the scale, in float64.

    HQQ moves its zero points to fit all numbers of a group, by which those at its ends may be another half step away.
    """
    is_hqq = isinstance(layer, importlib.import_module("transformers.cache_utils").HQQQuantizedLayer)
    return _steps(layer, quantized) * (1.0 if is_hqq else 0.5)


def _steps(layer: Any, quantized: Any) -> torch.Tensor:
    """Return how far the neighbouring numbers are that a quantizer can represent, for each number, in float64."""
    if isinstance(quantized, tuple) and not isinstance(quantized[1], dict):  # numbers of 8 bits with an exponent
        numbers, scale = quantized
        info = torch.finfo(numbers.dtype)
        _, exponents = torch.frexp(numbers.float().abs().clamp(min=info.smallest_normal))
        steps: torch.Tensor = info.eps * torch.exp2(exponents.double() - 1) * scale.double()
        return steps
    at, next_to = _with_zero_points(layer, quantized, 0), _with_zero_points(layer, quantized, 1)
    return (at - next_to).abs()


def _with_zero_points(layer: Any, quantized: Any, more: int) -> torch.Tensor:
    """Return the numbers of integers whose zero points are larger by a number of steps, in float64."""
    if isinstance(quantized, tuple):
        integers, about = quantized
        exact = {"scale": about["scale"].float(), "zero": about["zero"].float() + more, "compute_dtype": torch.float32}
        numbers: torch.Tensor = layer._dequantize((integers, about | exact))  # noqa: SLF001  what such layers define
        return numbers.double()
    before = quantized._shift  # noqa: SLF001  quanto has no other names
    quantized._shift = before + more * (quantized._scale if before.is_floating_point() else 1)  # noqa: SLF001
    numbers = quantized.dequantize()
    quantized._shift = before  # noqa: SLF001  as above
    return numbers.double()


def _times_of_range(quantized: Any, expected: torch.Tensor) -> torch.Tensor | None:
    """Return how many times the largest number of its scale each number is that was replaced by that one; else 0.

    None if the scale is made for all numbers each time.
    """
    if not isinstance(quantized, tuple) or isinstance(quantized[1], dict):
        return None
    numbers, scale = quantized
    largest = torch.finfo(numbers.dtype).max
    is_largest = numbers.float() * expected.sign() >= largest
    return torch.where(is_largest, expected.double().abs() / (largest * scale.double()), 0.0)
