"""Find the transformations that cause an error."""

from ..results._bisection import BisectReport, Culprit, Step, Version
from ._bisect import bisect

__all__ = ["BisectReport", "Culprit", "Step", "Version", "bisect"]
