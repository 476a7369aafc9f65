"""Whether a difference is more than rounding: values held against float64."""

from ._judgement import SUSPICIOUS, WRONG, Judgement, Truth, Verdict, judge, largest_distance, same
from ._reductions import reduction_length
from ._truths import CallTruth, Truths, unit_of

__all__ = [
    "SUSPICIOUS",
    "WRONG",
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
