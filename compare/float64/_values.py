"""What the values of one call are in float64: as the model computes them, and as each node does by itself."""

from collections.abc import Collection, Mapping

import torch

from filch.export import ExportError, Program

from ..common._errors import CompareError
from ._evaluation import Float64, Float64NodeRun, Float64Run, Given
from ._verdict import Float64Value


class Float64Evaluator:
    """Where the truth of a program's values comes from.

    Args:
        program: it.

    Raises:
        CompareError: there is no exported program behind it.
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
        """What the model computes in one call (see `Float64Run`)."""
        exact, noisy = (Float64Run(self._original, inputs, wanted, units, keep=keep) for units in (None, self._units))
        return Float64Values(exact, noisy, self._units, self._random.random, fully_cached=keep)

    def alone(self, inputs: Mapping[str, torch.Tensor], given: Given) -> "Float64Values":
        """What each node makes in one call, if it is given what it should be (see `Float64NodeRun`)."""
        exact, noisy = (Float64NodeRun(self._original, inputs, given, units) for units in (None, self._units))
        return Float64Values(exact, noisy, self._units, self._random.replaced)


class Float64Values:
    """The truth of one call's values.

    Args:
        exact: the values.
        noisy: them again, with noise.
        units: half a unit in the last place of each, relative.
        unknown: the names of those that have no truth.

    Attributes:
        is_whole: whether all can be asked for again.
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
        """Why there is no truth of a value, or `""`."""
        return self._exact.problem or self._noisy.problem

    def get(self, name: str) -> Float64Value | None:
        """The truth of a value, by its name in the exported graph; None if it is not known."""
        value = None if name in self._unknown else self._exact.get(name)
        noisy = None if value is None else self._noisy.get(name)
        if value is None or noisy is None or value.shape != noisy.shape:
            return None
        return Float64Value(value, noisy, self._units.get(name, unit_of(torch.float32)))

    def unit(self, name: str) -> float:
        """Half a unit in the last place of a value, relative, by its name in the exported graph; 0 if it has none."""
        return self._units.get(name, 0.0)

    def release(self, name: str) -> None:
        """Say that a value will not be asked for again."""
        self._exact.release(name)
        self._noisy.release(name)


def unit_of(dtype: torch.dtype) -> float:
    """Half a unit in the last place of a floating-point type, relative; 0 of what has none."""
    real = dtype.to_real() if dtype.is_complex else dtype
    return torch.finfo(real).eps / 2 if real.is_floating_point and real.itemsize > 1 else 0.0
