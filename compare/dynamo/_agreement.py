"""Whether a compiled call computes what it does in eager PyTorch, up to rounding."""

from collections.abc import Callable, Sequence

import torch

from filch.steal import Key
from filch.steal.ranks._join import is_same_bits as has_same_bits

from ..float64._verdict import SUSPICIOUS
from ..metrics._metrics import compare_tensors
from ..metrics._tolerance import ToleranceOption, given_limits
from ..runs._measured_levels import measured_levels

_CALL = Key("", 0, "V")  # names what the call computes


def agrees(
    actual: Sequence[torch.Tensor], run: Callable[[], Sequence[torch.Tensor]], tolerance: ToleranceOption
) -> bool:
    """Return whether tensors are what a function returns in eager PyTorch.

    What exceeds the tolerance is judged by its rounding level, if no tolerance is given.

    Args:
        actual: the tensors.
        run: the function; it runs twice more for rounding levels, and must return the same each time.
        tolerance: see `compare`.
    """
    expected = run()
    if len(actual) != len(expected):
        return False
    limits = given_limits(tolerance)
    pairs = list(zip(actual, expected, strict=True))
    close = [has_same_bits(*pair) or compare_tensors(*pair, tolerance=limits).close for pair in pairs]
    is_comparable = all(first.shape == second.shape and first.dtype == second.dtype for first, second in pairs)
    if all(close) or tolerance is not None or not is_comparable:
        return all(close)

    def put_all(put: Callable[[Key, str, torch.Tensor], None]) -> None:
        """Pass on what the function returns."""
        for index, tensor in enumerate(run()):
            put(_CALL, f"[{index}]", tensor)

    levels, _ = measured_levels(put_all, {_CALL: list(expected)})
    for index, (pair, is_close) in enumerate(zip(pairs, close, strict=True)):
        level = levels.get(f"{_CALL.label}[{index}]")
        if not is_close and (level is None or not level.reliable or not level.ratio(*reversed(pair)) <= SUSPICIOUS):
            return False
    return True
