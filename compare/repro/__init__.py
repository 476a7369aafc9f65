"""Write a fault as a folder that reproduces it."""

from ._again import write_comparison
from ._result import Repro
from ._write import write_repro

__all__ = ["Repro", "write_comparison", "write_repro"]
