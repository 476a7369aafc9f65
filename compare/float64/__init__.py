"""Tell rounding from errors by evaluating in float64."""

from ._reductions import is_product, reduction_length, running_length
from ._values import Float64Evaluator, Float64Values, unit_of
from ._verdict import Float64Value, Level, RoundingVerdict, Verdict, judge, largest_distance, level_of, same, times

__all__ = [
    "Float64Evaluator",
    "Float64Value",
    "Float64Values",
    "Level",
    "RoundingVerdict",
    "Verdict",
    "is_product",
    "judge",
    "largest_distance",
    "level_of",
    "reduction_length",
    "running_length",
    "same",
    "times",
    "unit_of",
]
