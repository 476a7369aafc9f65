"""Which transformation is to blame: what makes the error go if it is left out."""

from ..results._bisection import BisectReport, Culprit, Step, Version
from ._bisect import bisect

__all__ = ["BisectReport", "Culprit", "Step", "Version", "bisect"]
