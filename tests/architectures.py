"""What becomes of the module calls of each model in the zoo: the table in docs/evidence.md, which a test checks.

Run as a script, it prints the table.
"""

from __future__ import annotations

import copy
import runpy
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from zoo import HARD, ZOO

from filch.compare import Report, compare, tiny_llm
from filch.export import export, optimize
from filch.steal import Capture, steal_forward

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet18_correctness.py"


def _resnet18() -> tuple[nn.Module, tuple[torch.Tensor], dict[str, torch.Tensor]]:
    """The example's model, on a small image."""
    model, _ = runpy.run_path(str(EXAMPLE))["resnet18"]()
    return model, (torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)),), {}


MODELS = {"tiny LLM": lambda: (*tiny_llm(), {}), "ResNet-18": _resnet18} | ZOO | HARD
TITLES = (
    "model",
    "calls",
    "exact",
    "alias",
    "dead",
    "largest error",
    "optimised: exact",
    "alias",
    "folded",
    "fused",
    "dead",
)


@dataclass(frozen=True)
class Line:
    """One model: its calls, how their outputs are resolved before and after optimisation, and the errors."""

    name: str
    calls: int
    plain: Counter[str]
    optimized: Counter[str]
    worst: float
    report: Report
    optimized_report: Report

    def cells(self) -> tuple[str, ...]:
        """The line as the table shows it; the error by its order of magnitude, since it depends on the processor."""
        before = [self.plain[kind] for kind in ("exact", "alias", "dead")]
        after = [self.optimized[kind] for kind in ("exact", "alias", "constant", "fused", "dead")]
        return (self.name, str(self.calls), *map(str, before), f"{self.worst:.0e}", *map(str, after))


def measure(name: str) -> Line:
    """Export one model, with and without optimisation, and compare both with its eager run."""
    model, args, kwargs = MODELS[name]()
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    report, optimized = compare(capture, program), compare(capture, optimize(program))
    errors = [row.difference.error_max for row in report.modules if row.difference is not None]
    return Line(name, _calls(capture), _outputs(report), _outputs(optimized), max(errors), report, optimized)


def _calls(capture: Capture) -> int:
    return sum(key.kind == "I" for key in capture)


def _outputs(report: Report) -> Counter[str]:
    return Counter(row.resolution for row in report.modules if row.side == "output")


def markdown(lines: list[Line]) -> str:
    """The table."""
    rows = [TITLES, tuple("---" for _ in TITLES), *(line.cells() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(markdown([measure(name) for name in sys.argv[1:] or MODELS]))
