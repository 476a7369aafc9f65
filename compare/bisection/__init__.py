"""Which transformation is to blame: what makes the error go if it is left out."""

from ._bisect import bisect
from ._report import BisectReport, Culprit, Step, Version

__all__ = ["BisectReport", "Culprit", "Step", "Version", "bisect"]
