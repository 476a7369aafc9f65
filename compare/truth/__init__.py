"""Whether a difference is more than rounding: values held against float64."""

from ._judgement import Judgement, Truth, Verdict, judge, largest_distance, same
from ._reductions import reduction_length
from ._truths import CallTruth, Truths, unit_of

__all__ = [
    "CallTruth",
    "Judgement",
    "Truth",
    "Truths",
    "Verdict",
    "judge",
    "largest_distance",
    "reduction_length",
    "same",
    "unit_of",
]
