"""Faults of parallel code, and the value and ranks that a right verdict on each names.

The second set was written, with its truth, by someone who had not seen how `diff` judges it: all but
`pp_tied_reduced_to_one`, which shows what the first comparison left open.
"""

from ._by_hand import BY_HAND, reference_of
from ._faults import FIRST, SECOND, ParallelFault, record, record_clean, record_faulty, record_run, record_single
from ._transformer import KINDS

__all__ = [
    "BY_HAND", "FIRST", "KINDS", "SECOND", "ParallelFault", "record", "record_clean", "record_faulty", "record_run",
    "record_single", "reference_of",
]  # fmt: skip
