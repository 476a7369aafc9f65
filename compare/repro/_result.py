"""What is known of a repro that was written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filch.steal.text import named

Float64Value = Literal["model", "reference", "unoptimised", "torch"]
Culprit = Literal["translation", "optimiser", "runtime", "compiler", ""]


@dataclass(frozen=True)
class Size:
    """How large a part of a program is.

    Attributes:
        nodes: its operations.
        elements: the numbers that it is fed and holds.
    """

    nodes: int
    elements: int

    def __str__(self) -> str:
        return f"{self.nodes} node{'s' if self.nodes != 1 else ''} with {self.elements} numbers"


@dataclass(frozen=True)
class Repro:
    """A folder that shows a fault without Filch, and was seen to do so in a process of its own.

    Attributes:
        folder: it.
        script: `repro.py` in it; exits with 1 if the difference shows, 0 if not.
        operators: the operators that it runs, in order.
        error: the largest harmonic error of what is left.
        truth: where the expected values are from: `model` (what the model itself had), `reference` (onnx's evaluator,
            which gives what the model had where that is known), `unoptimised` (the same runtime with its optimisations
            off, likewise) or `torch` (the operations of the exported program, run by the script itself).
        culprit: what is to blame, as far as was seen: `translation` (onnx's evaluator gives for the ONNX nodes what the
            runtime gives, and PyTorch something else), `optimiser` (the same runtime is right with its optimisations
            off), `runtime` (it is not), `compiler` (of PyTorch), or `""`.
        before: the size of the part that was begun with.
        after: the size of what is left of it.
    """

    folder: Path
    script: Path
    operators: tuple[str, ...]
    error: float
    truth: Float64Value
    culprit: Culprit
    before: Size
    after: Size

    def __str__(self) -> str:
        what = named(", ".join(self.operators))
        return f"{self.script}: {what}, wrong by {self.error:.1e}; {self.after}, of {self.before}"
