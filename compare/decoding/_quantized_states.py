"""Check that a quantized cache holds the keys and values that it was given, as exactly as its quantizer can."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

from filch.steal.private import _transformers

from ..common._errors import CompareError
from ..float64._noise import unit_of
from ..layouts._closeness import RELATIVE
from ..layouts._numbers import TensorNumbers
from ..results._invariance import InvarianceBreak

_TOKENS = -2  # the axis of the tokens in keys and values
_ROUNDING = 4  # units of the dtype, of the largest number: to divide by a scale, and to multiply by it
_SIDES = ("keys", "values")
_FORMATS = "(8-bit numbers, scale), (integers, dict) or a tensor of quanto"


@dataclass(frozen=True)
class _StoredLayer:
    """What a layer has quantized, after an update.

    Attributes:
        quantized: what `_quantize` returned.
        numbers: what `_dequantize` returns of it.
        coded: of codes and a scale: copies of the codes of these numbers, and of the scale, in float64; else None.
    """

    quantized: Any
    numbers: torch.Tensor
    coded: tuple[torch.Tensor, torch.Tensor] | None = None

    def kept(self, earlier: _StoredLayer) -> int:
        """Return how many of the first tokens have not been quantized since an earlier update."""
        count, is_kept = earlier.numbers.shape[_TOKENS], self.quantized is earlier.quantized
        if self.coded is not None and earlier.coded is not None:
            (codes, scale), (old_codes, old_scale) = self.coded, earlier.coded
            # The codes of the same object may have changed; with the same scale, the earlier ones are not made again.
            is_kept = (is_kept and _are_equal(codes, old_codes, count)) or _are_equal(scale, old_scale, count)
        return count if is_kept else 0

    def has_scale_of(self, earlier: _StoredLayer) -> bool:
        """Whether the scale is that of an earlier update, so that it was not made for later numbers."""
        return self.coded is not None and earlier.coded is not None and torch.equal(self.coded[1], earlier.coded[1])


class WatchedCache:
    """Compares what each layer of a cache holds after each update with what it held before and what it was given.

    Numbers that a layer does not quantize have to be the same, bit for bit. Those that it quantizes are rounded to the
    nearest step, so that they may change by half a step of its scale. With another scale, a layer quantizes its earlier
    numbers again.

    Args:
        cache: an empty cache of transformers. Its layers are derived from `BaseQuantizedLayer`, or keep all tokens as
            they are, as `DynamicLayer`. What `_quantize` returns is a tuple of floats or integers of 8 bits and a
            scale, as that of `fp8`, or of integers and a dict with `scale` and `zero`, as that of `hqq`, or a tensor of
            quanto.
        running: the paths of the modules that run, from outer to inner, whenever a layer is updated.

    Attributes:
        faults: what is wrong, by update: `keys`, `values` or `length`, the number of tokens that a layer says it has.
        others: the types of the layers that can't be compared.
        compared: the number of compared tensors.
        is_quantized: whether a quantized layer was updated.
        clipped: how many numbers were beyond the range of a scale that was made for earlier ones, by layer.
        excess: how many times the range the largest of them was.
    """

    def __init__(self, cache: Any, running: Sequence[str]) -> None:
        self.faults: list[InvarianceBreak] = []
        self.compared = 0
        self.is_quantized = False
        self.clipped: dict[int, int] = {}
        self.excess = 1.0
        self._running = running
        self._held: dict[tuple[int, str], torch.Tensor] = {}
        self._stored: dict[tuple[int, str], _StoredLayer] = {}
        dynamic = _transformers.DynamicLayer
        others = (item for item in cache.layers if not isinstance(item, dynamic) or item.is_sliding)
        self.others = sorted({type(item).__name__ for item in others})
        for index, layer in enumerate(cache.layers):
            layer.update = partial(self._update, index, layer, layer.update)

    def _update(
        self, index: int, layer: Any, update: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Update a layer in place of the method `update`, and compare what it holds and returns then.

        Args:
            index: the index of the layer in the cache.
            layer: the layer.
            update: its own method.
            keys: the keys that it is given.
            values: the values that it is given.
            *args: further arguments of the method.
            **kwargs: further arguments of the method.
        """
        given = keys.clone(), values.clone()
        returned = update(keys, values, *args, **kwargs)
        code = inspect.unwrap(type(layer).update).__code__
        source = f"{PurePath(code.co_filename).name}:{code.co_firstlineno}"
        module = self._running[-1]
        for what, new, result in zip(_SIDES, given, returned, strict=True):
            if (found := self._check(index, layer, what, new, result)) is not None:
                self.faults.append(InvarianceBreak(module, what, source, *found))
        count = self._held[index, "keys"].shape[_TOKENS]
        length = layer.get_seq_length()
        if (length, *layer.get_mask_sizes(1)) != (count, count + 1, 0):  # keys and offset of the mask of one more token
            self.faults.append(InvarianceBreak(module, "length", source, None, count - 1, abs(length - count)))
        return returned

    def _check(
        self, index: int, layer: Any, what: str, new: torch.Tensor, returned: torch.Tensor
    ) -> _FirstDifference | None:
        """Return where a layer returned or holds something else than it should; None if it does not.

        Args:
            index: the index of the layer in the cache.
            layer: the layer, after its update.
            what: `keys` or `values`.
            new: the keys or values that the layer was given.
            returned: those of all tokens that it returned.
        """
        before = self._held.get((index, what))
        expected = new if before is None else torch.cat([before, new], _TOKENS)
        allowed = torch.zeros_like(expected, dtype=torch.float64)
        held = getattr(layer, what).clone()
        if hasattr(layer, "_quantized_keys"):  # a quantized layer, not a `DynamicLayer`
            earlier = self._stored.get((index, what))
            stored = self._stored[index, what] = _stored_by(layer, getattr(layer, f"_quantized_{what}"))
            # `layer.keys` are the latest tokens, which are not quantized yet; without any, an empty vector.
            held = torch.cat([stored.numbers, *([held] if held.dim() == expected.dim() else [])], _TOKENS)
            if held.shape == expected.shape:
                first, errors = self._allowed(index, layer, expected, stored, earlier)
                allowed[..., first : first + errors.shape[_TOKENS], :] = errors
            self.is_quantized = True
        self._held[index, what] = held
        self.compared += 1
        return _first_difference(returned, expected, allowed) or _first_difference(held, expected, allowed)

    def _allowed(
        self, index: int, layer: Any, expected: torch.Tensor, stored: _StoredLayer, earlier: _StoredLayer | None
    ) -> tuple[int, torch.Tensor]:
        """Return the first token that was quantized in this update, and how far numbers may be off from there on."""
        first, count = 0 if earlier is None else stored.kept(earlier), stored.numbers.shape[_TOKENS]
        rounding = _ROUNDING * unit_of(expected.dtype) * float(expected.double().abs().amax())
        errors = (_largest_error(layer, stored) + rounding).nan_to_num(nan=0.0)[..., first:, :]
        if first < count and stored.coded is not None and earlier is not None and stored.has_scale_of(earlier):
            times = _times_of_range(*stored.coded, expected[..., :count, :])[..., first:, :]
            errors = errors.masked_fill(times > 1, torch.inf)
            self.clipped[index] = self.clipped.get(index, 0) + int((times > 1).sum())
            self.excess = max(self.excess, float(times.max()))
        return first, errors


class _FirstDifference(NamedTuple):
    """Where keys or values differ first by more than is allowed.

    Attributes:
        sequence: the first sequence in which they do.
        position: the first position of it.
        difference: the largest difference there, relative to the size of the number or of a typical one.
    """

    sequence: int
    position: int
    difference: float


def _first_difference(actual: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> _FirstDifference | None:
    """Return the first difference that is larger than allowed; None if there is none."""
    if actual.shape != expected.shape:
        counts = [item.shape[_TOKENS] for item in (actual, expected)]
        return _FirstDifference(0, min(*counts, max(counts) - 1), torch.inf)  # where the shorter one ends, or the last
    distance = (actual.double() - expected.double()).abs()
    wrong = ~(distance <= allowed)  # NaN is wrong
    if not bool(wrong.any()):
        return None
    sequence = int(wrong.flatten(1).any(1).nonzero()[0])
    position = int(wrong[sequence].movedim(_TOKENS, 0).flatten(1).any(1).nonzero()[0])
    sizes = TensorNumbers(expected.double()).closeness(RELATIVE).sizes(expected.double())
    relative = (distance / sizes)[sequence].movedim(_TOKENS, 0)[position]
    return _FirstDifference(sequence, position, float(relative.nan_to_num(nan=torch.inf).max()))


def _stored_by(layer: Any, quantized: Any) -> _StoredLayer:
    """Return what a layer has quantized.

    Raises:
        CompareError: it has another format than those of `WatchedCache`.
    """
    numbers = layer._dequantize(quantized)  # noqa: SLF001  what such layers define
    if hasattr(quantized, "_shift"):  # a tensor of quanto
        return _StoredLayer(quantized, numbers)
    match quantized:
        case (_, dict()):  # of HQQ
            return _StoredLayer(quantized, numbers)
        case (torch.Tensor() as codes, scale) if codes[..., : numbers.shape[_TOKENS], :].shape == numbers.shape:
            codes, scale = codes[..., : numbers.shape[_TOKENS], :].clone(), torch.as_tensor(scale).double()
            scale = scale.clone() if scale.dim() > 1 else scale.clone().reshape(1, -1)  # with an axis of tokens
            return _StoredLayer(quantized, numbers, (codes, scale))
    raise CompareError(f"{type(layer).__name__} does not quantize to {_FORMATS}")


def _are_equal(one: torch.Tensor, other: torch.Tensor, count: int) -> bool:
    """Whether tensors are equal for a number of tokens, or are the same for all tokens."""
    return torch.equal(one[..., :count, :], other[..., :count, :])


def _largest_error(layer: Any, stored: _StoredLayer) -> torch.Tensor:
    """Return how far each number may be from the one that was quantized: half a step of the scale, in float64.

    HQQ moves its zero points to fit all numbers of a group, by which those at its ends may be another half step away.
    """
    is_hqq = isinstance(layer, _transformers.HQQQuantizedLayer)
    return _steps(layer, stored) * (1.0 if is_hqq else 0.5)


def _steps(layer: Any, stored: _StoredLayer) -> torch.Tensor:
    """Return how far the neighbouring numbers are that a quantizer can represent, for each number, in float64."""
    if stored.coded is None:
        at, next_to = (_with_zero_points(layer, stored.quantized, more) for more in (0, 1))
        return (at - next_to).abs()
    codes, scale = stored.coded
    steps = torch.ones_like(codes, dtype=torch.float64)
    if codes.is_floating_point():
        info = torch.finfo(codes.dtype)
        _, exponents = torch.frexp(codes.float().abs().clamp(min=info.smallest_normal))
        steps = info.eps * torch.exp2(exponents.double() - 1)
    return steps * scale[..., : codes.shape[_TOKENS], :]


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


def _times_of_range(codes: torch.Tensor, scale: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return how many times the largest number of its scale each number is that was replaced by that one; else 0."""
    largest = (torch.finfo if codes.is_floating_point() else torch.iinfo)(codes.dtype).max
    is_largest = codes.float() * expected.sign() >= largest
    times = expected.double().abs() / (largest * scale[..., : codes.shape[_TOKENS], :])
    return torch.where(is_largest, times, 0.0)
