"""What becomes of the module calls of each model in the zoo: the table in docs/evidence.md, which a test checks."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass

import torch

from filch.compare import Report, compare
from filch.export import export, optimize
from filch.steal import Capture, steal_forward
from support.models.zoo import MODELS

TITLES = (
    "model", "calls", "exact", "alias", "dead", "largest error", "optimized: exact", "alias", "folded", "fused",
    "dead",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One model: its calls, the resolution of their outputs before and after optimization, and the errors."""

    name: str
    calls: int
    plain: Counter[str]
    optimized: Counter[str]
    worst: float
    report: Report
    optimized_report: Report

    def cells(self) -> tuple[str, ...]:
        """The cells of the table; errors as orders of magnitude, since they depend on the processor."""
        before = [self.plain[kind] for kind in ("exact", "alias", "dead")]
        after = [self.optimized[kind] for kind in ("exact", "alias", "constant", "fused", "dead")]
        return (self.name, str(self.calls), *map(str, before), f"{self.worst:.0e}", *map(str, after))


def measure(name: str) -> Line:
    """Export one model, with and without optimization, and compare both with its eager run."""
    model, args, kwargs = MODELS[name]()
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    report, optimized = compare(capture, program), compare(capture, optimize(program))
    errors = [row.difference.error for row in report.modules if row.difference is not None]
    return Line(name, _calls(capture), _outputs(report), _outputs(optimized), max(errors), report, optimized)


def _calls(capture: Capture) -> int:
    return sum(key.kind == "I" for key in capture)


def _outputs(report: Report) -> Counter[str]:
    return Counter(row.resolution for row in report.modules if row.side == "output")
