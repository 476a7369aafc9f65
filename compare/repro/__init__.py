"""A fault as a folder of its own: a node that is wrong, without Filch; or a whole comparison, with it."""

from ._again import write_comparison
from ._result import Repro
from ._write import write_repro

__all__ = ["Repro", "write_comparison", "write_repro"]
