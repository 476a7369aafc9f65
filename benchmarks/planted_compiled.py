"""Plant faults in compiled graphs, one node each, and count how often `compare` names that node first."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import torch

from filch.compare import Report, compare
from filch.export import Program, export, optimize
from filch.export.backends import Backend
from filch.steal import Capture, ModuleInfo, argument_tensors, steal_forward

# The models and the plants live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.faults.compiled_plants import CompiledPlant, OrtPlants
from support.models.zoo import ZOO

ONNX_RUNTIME = ("resnet", "bert", "llama", "t5", "vit", "whisper", "clip")
# How many plants in each of which models. Inductor calls a C++ compiler, OpenVINO compiles many times to see all.
SHARES = {
    "onnxruntime-cpu extended": (3, ONNX_RUNTIME),
    "onnxruntime-cpu all": (3, ONNX_RUNTIME),
    "openvino": (2, ("resnet", "bert", "llama", "t5", "vit")),
    "inductor": (3, ("bert", "llama", "vit")),
}
ENOUGH = 58 / 60


@dataclass(frozen=True)
class Subject:
    """A model of the zoo with its program, and what was stolen from it."""

    program: Program
    capture: Capture
    inputs: Mapping[str, torch.Tensor]

    @cached_property
    def optimized(self) -> Program:
        """As the exporter ships it: it is of this one that ONNX Runtime fuses most."""
        return optimize(self.program)

    def planter(self, backend: str) -> Any:
        """What plants faults in what a backend makes of the program."""
        if backend == "inductor":
            from support.faults.inductor_plants import InductorPlants

            return InductorPlants(self.program, self.inputs)
        if backend == "openvino":
            from support.faults.openvino_plants import OpenVinoPlants

            return OpenVinoPlants(self.program, self.inputs)
        return OrtPlants(self.optimized, self.inputs, level=backend.split()[1])

    def compare(self, backend: Backend, planted: str) -> Report:
        """Compare the compiled graph alone."""
        program = self.optimized if planted.startswith("onnxruntime") else self.program
        return compare(self.capture, program, backend=backend, stages=("compiled",))


def subject(name: str) -> Subject:
    """Export a model of the zoo and steal its run."""
    model, args, kwargs = ZOO[name]()
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
    return Subject(program, capture, {value: taken[path] for value, path in program.inputs.items()})


def drawn(planter: Any, kinds: Iterator[str], count: int, random: Random) -> Iterator[CompiledPlant]:
    """Plants of all kinds by turns; a model may have no place for some."""
    tried = (planter.plant(kind, random) for kind in islice(kinds, count * len(planter.kinds)))
    return islice((plant for plant in tried if plant is not None), count)


def is_found(report: Report, plant: CompiledPlant) -> bool:
    """Whether the first row that differs is one of the node's."""
    first = report.first_divergence
    return first is not None and first.kind != "output" and first.node == plant.node


def explained(report: Report, plant: CompiledPlant) -> str:
    """What the report says of a node that it did not find, and what it says first."""
    rows = [f"{row.status} {row.reason}".strip() for row in report.rows if row.node == plant.node]
    return f"{plant.kind}: {plant.node}: {plant.text}\n    it: {rows}\n    first: {report.first_divergence}"


def table(found: Counter[tuple[str, str]], missed: Counter[tuple[str, str]]) -> str:
    """A row per backend and kind, and their sum."""
    rows = [(*key, found[key] + missed[key], found[key], missed[key]) for key in sorted(found.keys() | missed.keys())]
    total = ("all", "", found.total() + missed.total(), found.total(), missed.total())
    head = ("backend", "kind", "planted", "found", "missed")
    return "\n".join(
        f"{row[0]:26}{row[1]:16}" + "".join(f"{cell!s:>9}" for cell in row[2:]) for row in (head, *rows, total)
    )


def main() -> int:
    """Run it; 1 if too few are found or a clean run flags anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backends", nargs="+", choices=list(SHARES), default=list(SHARES), metavar="BACKEND")
    parser.add_argument("--models", nargs="+", choices=ONNX_RUNTIME, default=ONNX_RUNTIME, metavar="MODEL")
    options = parser.parse_args()
    found: Counter[tuple[str, str]] = Counter()
    missed: Counter[tuple[str, str]] = Counter()
    turns: dict[str, Iterator[str]] = {}
    noisy = 0
    for name in options.models:
        one = subject(name)
        for backend in options.backends:
            count, models = SHARES[backend]
            if name not in models:
                continue
            planter, random = one.planter(backend), Random(f"{options.seed} {backend} {name}")  # noqa: S311  no secret
            clean = one.compare(planter.clean, backend)
            noisy += len(clean.diverged) or int(not clean.close)
            print(f"{name} on {backend}: clean: {len(clean.diverged)} flagged, {clean.headline()}", flush=True)
            kinds = turns.setdefault(backend, cycle(planter.kinds))
            for plant in drawn(planter, kinds, count, random):
                report = one.compare(plant.backend, backend)
                (found if is_found(report, plant) else missed)[backend, plant.kind] += 1
                if not is_found(report, plant):
                    print(f"MISSED {name} on {backend}, {explained(report, plant)}", flush=True)
    print(f"\n{table(found, missed)}\n")
    counted = found.total() + missed.total()
    print(f"{found.total()} of {counted} found; clean runs flag {noisy} rows")
    return int(noisy > 0 or found.total() < ENOUGH * counted or not counted)


if __name__ == "__main__":
    sys.exit(main())
