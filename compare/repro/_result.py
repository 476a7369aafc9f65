"""The description of a written repro."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filch.steal.text._visible import short_line

ExpectedSource = Literal["model", "reference", "unoptimized", "torch", "float64"]
Culprit = Literal["translation", "optimizer", "runtime", "compiler", ""]


@dataclass(frozen=True)
class Size:
    """The size of a part of a program.

    Attributes:
        nodes: the number of its nodes.
        elements: the number of elements of its inputs and weights.
    """

    nodes: int
    elements: int

    def __str__(self) -> str:
        return f"{self.nodes} node{'s' if self.nodes != 1 else ''} with {self.elements} numbers"


@dataclass(frozen=True)
class Repro:
    """A folder that shows a difference without Filch, which was checked in a separate process.

    Attributes:
        folder: the folder.
        script: `repro.py` in it; exits with 1 if there is a difference, 0 if not.
        operators: the operators that it runs, in order.
        error: the largest harmonic error of the reduced part.
        expected_source: the source of the expected values: `model` (captured values), `reference` (onnx's evaluator,
            which agrees with the captured values), `unoptimized` (the same runtime with optimizations disabled, which
            agrees with them, too), `torch` (the operations of the exported program, run by the script itself) or
            `float64` (the nodes computed in float64, if the captured values have the same error).
        culprit: the faulty component: `translation` (onnx's evaluator agrees with the runtime and differs from
            PyTorch), `optimizer` (the same runtime is correct with optimizations disabled), `runtime` (it is not),
            `compiler` (of PyTorch), or `""` if unknown.
        before: the size of the part before the reduction.
        after: the size of the reduced part.
    """

    folder: Path
    script: Path
    operators: tuple[str, ...]
    error: float
    expected_source: ExpectedSource
    culprit: Culprit
    before: Size
    after: Size

    def __str__(self) -> str:
        operators = short_line(", ".join(self.operators))
        return f"{self.script}: {operators}, wrong by {self.error:.1e}; {self.after}, of {self.before}"
