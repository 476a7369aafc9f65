"""What becomes of each model on each backend, and how much of the compiled graph is judged (docs/evidence.md)."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass

import torch

from filch.compare import Report, Row, compare
from filch.export import export, optimize
from filch.export.backends import Backend, get_backend
from filch.steal import steal_forward
from support.models.zoo import MODELS

WANTED = ("ResNet-18", "resnet", "bert", "llama", "t5", "vit", "whisper", "clip")
LEVELS = ("basic", "extended", "layout", "all")
TITLES = (
    "model", "backend", "exported nodes", "survive", "fused", "folded", "removed", "compiled nodes", "with origins",
    "with an error", "wrong values", "largest error", "observer's effect",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """The results of one model on one backend."""

    name: str
    backend: str
    report: Report

    @property
    def nodes(self) -> list[list[Row]]:
        """The rows of each compiled node that depends on the inputs."""
        found: dict[str, list[Row]] = {}
        for row in self.report.rows:
            if row.stage == "compiled" and row.kind not in ("output", "constant"):
                found.setdefault(row.node, []).append(row)
        return list(found.values())

    @property
    def explained(self) -> float:
        """The fraction of compiled nodes that have origins and an error."""
        return sum(_has_origins(rows) and _has_error(rows) for rows in self.nodes) / len(self.nodes)

    def cells(self) -> tuple[str, ...]:
        """The cells of the table; errors as orders of magnitude, since they depend on the processor."""
        outcomes = Counter(outcome.kind for outcome in self.report.outcomes)
        kinds = [outcomes[kind] for kind in ("survives", "fused", "folded", "removed")]
        nodes, rows = self.nodes, [row for row in self.report.rows if row.stage == "compiled"]
        shares = (len(nodes), sum(map(_has_origins, nodes)), sum(map(_has_error, nodes)))
        wrong, worst = sum(row.diverged for row in rows), max(row.error for row in rows if row.error is not None)
        effect = "none" if self.report.observer_effect is None else f"{self.report.observer_effect.error:.0e}"
        counts = map(str, (outcomes.total(), *kinds, *shares, wrong))
        return (self.name, self.backend, *counts, f"{worst:.0e}", effect)


def _has_origins(rows: list[Row]) -> bool:
    return any(row.origins for row in rows)


def _has_error(rows: list[Row]) -> bool:
    return any(row.judged for row in rows)


def backends() -> dict[str, Backend]:
    """Return the backends of the table, by their names there."""
    levels = {f"ONNX Runtime, {level}": get_backend("onnxruntime-cpu", level=level) for level in LEVELS}
    return {**levels, "Inductor": get_backend("inductor"), "OpenVINO": get_backend("openvino")}


def measure(name: str, on: dict[str, Backend], *, optimized: bool = True) -> list[Line]:
    """Export one model, and compare it on each backend with its eager run."""
    model, args, kwargs = MODELS[name]()
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    given = optimize(program) if optimized else program
    return [
        Line(name, label, compare(capture, given, backend=backend, stages=["compiled"]))
        for label, backend in on.items()
    ]
