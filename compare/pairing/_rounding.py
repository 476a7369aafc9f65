"""`RoundingLevels`: which arrays of a lower precision are the values of a run in float64, apart from rounding."""

from collections.abc import Mapping

import torch

from ..float64._verdict import WRONG, Float64Value, rounding_level, rounding_verdict
from ..layouts._closeness import LARGEST, RELATIVE
from ..layouts._layout import Layout
from ..layouts._numbers import TensorNumbers
from ..runs._execution import Tensors

FINEST = 2.0**-30  # half a unit in the last place of arrays for which `RELATIVE` is enough, as of float64
_LOOSEST = 0.25  # of what is looked for, relative to the root mean square
_GROWTH, _FLOAT32 = 16.0, 2.0**-24  # assumed noise in units; half a unit in the last place of float32


class RoundingLevels:
    """How far arrays may be from values in float64.

    Args:
        truths: the values of one side by name, with their noise (see `measured` and `assumed`).
        arrays: the numbers of the other side by name, as float64.
        units: half a unit in the last place of the precision of each array, relative.
        value_units: the same of the values; 0 if they are exact.
    """

    def __init__(
        self,
        truths: Mapping[str, Float64Value],
        arrays: Tensors,
        units: Mapping[str, float],
        value_units: Mapping[str, float] | None = None,
    ) -> None:
        self._truths, self._arrays, self._units, self._value_units = truths, arrays, units, value_units or {}

    def relative(self, value: str) -> float:
        """Return the largest difference of an element of a value that rounding to the coarsest unit explains.

        It is relative to the root mean square, and decides only what is looked for; `explain` judges what was found.
        """
        unit = max((*self._units.values(), self._value_units.get(value, 0.0)))
        truth = self._truths.get(value)
        if unit < FINEST or truth is None or not truth.value.numel():
            return RELATIVE
        level = rounding_level(truth.value, truth, unit=unit)
        size = WRONG * level.largest * float(level.scale.max()) / max(TensorNumbers(truth.value).scale, 1e-300)
        return min(max(size, RELATIVE), _LOOSEST)

    def are_known(self, value: str, array: str) -> bool:
        """Whether rounding judges a value and an array; else they are equal or not."""
        return max(self._units.get(array, 0.0), self._value_units.get(value, 0.0)) >= FINEST and value in self._truths

    def explain(self, value: str, array: str, layout: Layout, *, whole_array: bool) -> bool:
        """Return whether rounding explains the difference of an array and a value.

        It is judged as the values of an exported program are: by the worst element and by the root mean square. What
        rounding does not judge (see `are_known`) was found to be equal: True.

        Args:
            value: the name of the value.
            array: the name of the array.
            layout: where the elements of the one are in the other one.
            whole_array: whether those of the array are in the value; else those of the value are in the array.
        """
        unit = max(self._units[array], self._value_units.get(value, 0.0))
        truth = self._truths.get(value)
        if unit < FINEST or truth is None:
            return True
        numbers, exact, noisy = without_infinity(self._arrays[array]), truth.value, truth.noisy
        if whole_array:
            exact, noisy = layout.select(exact), layout.select(noisy)
        else:
            numbers = layout.select(numbers)
        flat = Float64Value(exact.reshape(-1), noisy.reshape(-1), truth.unit)
        verdict = rounding_verdict(numbers.reshape(-1), flat.value, flat, unit=unit)
        return verdict is not None and verdict.verdict != "wrong"


def measured(values: Tensors, noisy: Tensors, units: Mapping[str, float]) -> dict[str, Float64Value]:
    """Return values with the noise of a second run, in which half a unit in the last place was added everywhere.

    Args:
        values: the values in float64.
        noisy: those of the second run.
        units: half a unit in the last place on the way to each value, relative.
    """
    return {
        name: Float64Value(without_infinity(value), without_infinity(noisy[name].reshape(value.shape)), units[name])
        for name, value in values.items()
        if value.is_floating_point() and name in noisy and noisy[name].numel() == value.numel() and units.get(name)
    }


def assumed(values: Tensors) -> dict[str, Float64Value]:
    """Return values with an assumed noise: 16 units of a typical number."""
    found = {}
    for name, value in values.items():
        if value.is_floating_point():
            finite = without_infinity(value)
            found[name] = Float64Value(finite, finite + _GROWTH * _FLOAT32 * TensorNumbers(finite).scale, _FLOAT32)
    return found


def without_infinity(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with 0 in place of NaN and what stands for infinity, as masks do; they are compared before."""
    return tensor.masked_fill(~(tensor.abs() < LARGEST), 0.0)
