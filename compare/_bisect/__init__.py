"""Which transformation is to blame: what makes the error go if it is left out."""

from ._bisect import bisect
from ._report import BisectReport, Culprit, Step

__all__ = ["BisectReport", "Culprit", "Step", "bisect"]
