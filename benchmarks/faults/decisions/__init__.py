"""Rounding before decisions, and faults in routers, in exported programs and in compiled graphs."""

from ._faults import (
    FAULTS,
    RouterFault,
    Subject,
    deciding_node,
    faulty,
    flipped,
    flipped_in_compiler,
    replaced,
    subject,
)
from ._near_ties import MODELS, Dispatch

__all__ = [
    "FAULTS", "MODELS", "Dispatch", "RouterFault", "Subject", "deciding_node", "faulty", "flipped",
    "flipped_in_compiler", "replaced", "subject",
]  # fmt: skip
