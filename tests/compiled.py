"""What becomes of each model on each backend, and how much of the compiled graph is judged: the table in the README.

Run as a script, with names of models if not all are wanted, it prints the table.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from architectures import MODELS

from filch.compare import Report, compare
from filch.export import export, optimize
from filch.export.backends import Backend, get_backend
from filch.steal import steal_forward

WANTED = ("ResNet-18", "resnet", "bert", "llama", "t5", "vit", "whisper", "clip")
LEVELS = ("basic", "extended", "layout", "all")
TITLES = (
    "model",
    "backend",
    "exported nodes",
    "survive",
    "fused",
    "folded",
    "removed",
    "compiled values",
    "with origins",
    "with error",
    "wrong",
    "undisturbed",
)


@dataclass(frozen=True)
class Line:
    """One model on one backend."""

    name: str
    backend: str
    report: Report

    @property
    def compiled(self) -> list[Any]:
        """The rows of the compiled graph's values."""
        return [row for row in self.report.rows if row.stage == "compiled" and row.kind != "output"]

    def cells(self) -> tuple[str, ...]:
        """The line as the table shows it."""
        fates = Counter(fate.how for fate in self.report.fates)
        rows = self.compiled
        counts = (
            len(rows),
            sum(bool(row.origins) for row in rows),
            sum(row.judged for row in rows),
            sum(row.diverged for row in self.report.rows if row.stage == "compiled"),
        )
        kinds = [fates[how] for how in ("survives", "fused", "folded", "removed")]
        undisturbed = "yes" if self.report.undisturbed else str(self.report.effect)
        return (self.name, self.backend, str(fates.total()), *map(str, kinds), *map(str, counts), undisturbed)


def backends() -> dict[str, Backend]:
    """The backends of the table, by what it calls them."""
    return {f"onnxruntime-cpu {level}": get_backend("onnxruntime-cpu", level=level) for level in LEVELS}


def measure(name: str, on: dict[str, Backend], *, optimized: bool = True) -> list[Line]:
    """Export one model, and compare it on each backend with its eager run."""
    model, args, kwargs = MODELS[name]()
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    given = optimize(program) if optimized else program
    return [Line(name, label, compare(capture, given, backend=backend)) for label, backend in on.items()]


def markdown(lines: list[Line]) -> str:
    """The table."""
    rows = [TITLES, tuple("---" for _ in TITLES), *(line.cells() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(markdown([line for name in sys.argv[1:] or WANTED for line in measure(name, backends())]))
