"""Faults of caches, masks, positions and states: in programs, in what runs them step by step, and in models.

The second set has other kinds of faults, in other families of models, than the first. Who wrote it had not read the
code that names them.
"""

from ._models import ModelFault, logits_of
from ._programs import FIRST, SLOTS, ProgramFault, reached, same_operation
from ._runners import Runner, RunnerFault
from ._sets import SETS, Fault

__all__ = [
    "FIRST", "SETS", "SLOTS", "Fault", "ModelFault", "ProgramFault", "Runner", "RunnerFault", "logits_of", "reached",
    "same_operation",
]  # fmt: skip
