"""Evaluate the values of one call in float64: of the whole model, and of each node in isolation."""

from collections.abc import Collection, Mapping

import torch

from filch.export import ExportError, Program

from ..common._errors import CompareError
from ._evaluation import Float64, Float64NodeRun, Float64Run, Given
from ._verdict import Float64Value


class Float64Evaluator:
    """Evaluate the values of a program in float64.

    Args:
        program: the program.

    Raises:
        CompareError: the program has no exported PyTorch program.
    """

    def __init__(self, program: Program) -> None:
        original = program.original
        if original is None:
            missing = f": {program.missing!r} is not beside the ONNX file" if program.missing else ""
            raise CompareError(
                f"truth needs the exported program, which float64 is computed with{missing}; "
                "use what export() returned, or a file saved by Program.save with its .pt2 beside it"
            )
        try:
            self._units = {name: unit_of(dtype) for name, dtype in original.types.items() if unit_of(dtype)}
        except ExportError as error:
            raise CompareError(f"truth needs the exported program: {error}") from error
        self._original, self._random = original, original.unpredictable

    def of(self, inputs: Mapping[str, torch.Tensor], wanted: Collection[str], *, keep: bool) -> "Float64Values":
        """Return the values of one call of the model (see `Float64Run`)."""
        exact, noisy = (Float64Run(self._original, inputs, wanted, units, keep=keep) for units in (None, self._units))
        return Float64Values(exact, noisy, self._units, self._random.random, fully_cached=keep)

    def alone(self, inputs: Mapping[str, torch.Tensor], given: Given) -> "Float64Values":
        """Return the outputs of each node on its reference inputs in one call (see `Float64NodeRun`)."""
        exact, noisy = (Float64NodeRun(self._original, inputs, given, units) for units in (None, self._units))
        return Float64Values(exact, noisy, self._units, self._random.replaced)


class Float64Values:
    """The float64 values of one call.

    Args:
        exact: the values.
        noisy: the values computed with noise.
        units: half a unit in the last place of each value, relative.
        unknown: the names of values without a float64 value.

    Attributes:
        fully_cached: whether all values are still available.
    """

    def __init__(
        self,
        exact: Float64,
        noisy: Float64,
        units: Mapping[str, float],
        unknown: Collection[str] = (),
        *,
        fully_cached: bool = True,
    ) -> None:
        self._exact, self._noisy, self._units, self._unknown = exact, noisy, units, unknown
        self.fully_cached = fully_cached

    @property
    def problem(self) -> str:
        """Why values have no float64 value, or `""`."""
        return self._exact.problem or self._noisy.problem

    def get(self, name: str) -> Float64Value | None:
        """Return the float64 value of the exported graph's value `name`, or None if there is none."""
        value = None if name in self._unknown else self._exact.get(name)
        noisy = None if value is None else self._noisy.get(name)
        if value is None or noisy is None or value.shape != noisy.shape:
            return None
        return Float64Value(value, noisy, self._units.get(name, unit_of(torch.float32)))

    def unit(self, name: str) -> float:
        """Return half a unit in the last place of the exported graph's value `name`, relative; 0 if it has none."""
        return self._units.get(name, 0.0)

    def release(self, name: str) -> None:
        """Release one use of a value."""
        self._exact.release(name)
        self._noisy.release(name)


def unit_of(dtype: torch.dtype) -> float:
    """Return half a unit in the last place of a floating-point dtype, relative; 0 for other dtypes."""
    real = dtype.to_real() if dtype.is_complex else dtype
    return torch.finfo(real).eps / 2 if real.is_floating_point and real.itemsize > 1 else 0.0
