"""Whether a difference is more than rounding: values held against float64."""

from ._reductions import is_product, reduction_length, running_length
from ._values import CallTruth, Truths, unit_of
from ._verdict import Judgement, Level, Truth, Verdict, judge, largest_distance, level_of, same, times

__all__ = [
    "CallTruth",
    "Judgement",
    "Level",
    "Truth",
    "Truths",
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
