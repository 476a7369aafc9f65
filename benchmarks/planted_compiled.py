"""Plant faults in compiled graphs, in one node each, and count how often `compare` names that node first."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from random import Random
from typing import Any

from _backends import available_backends
from _measure import table_with_totals
from _planting import parser_of, seeded
from _zoo import CapturedModel, load_model

from faults.nodes.compiled import CompiledPlant, OrtPlants
from filch.compare import Report, compare
from filch.export import Program, optimize
from filch.export.backends import get_backend

ONNX_RUNTIME = ("resnet", "bert", "llama", "t5", "vit", "whisper", "clip")
# Faults per model, and the models. Inductor is slow (a C++ compiler), and so is OpenVINO (several compilations).
SHARES = {
    "onnxruntime-cpu extended": (3, ONNX_RUNTIME),
    "onnxruntime-cpu all": (3, ONNX_RUNTIME),
    "onnxruntime-cuda all": (3, ("resnet", "bert", "llama")),
    "openvino": (2, ("resnet", "bert", "llama", "t5", "vit")),
    "inductor": (3, ("bert", "llama", "vit")),
}
MIN_DETECTION_RATE = 58 / 60


def make_planter(backend: str, model: CapturedModel, optimized: Program) -> tuple[Program, Any]:
    """Return the program to compile, and the object that plants faults in its compiled graph."""
    if backend == "inductor":
        from faults.nodes.inductor import InductorPlants

        return model.program, InductorPlants(model.program, model.inputs)
    if backend == "openvino":
        from faults.nodes.openvino import OpenVinoPlants

        return model.program, OpenVinoPlants(model.program, model.inputs)
    name, level = backend.split()
    # TF32 would hide small faults. ONNX Runtime fuses most in the program as the exporter optimizes it.
    clean = get_backend(name, level=level, **({"tf32": False} if name == "onnxruntime-cuda" else {}))
    return optimized, OrtPlants(optimized, model.inputs, clean)


def plant_faults(planter: Any, kinds: Iterator[str], count: int, random: Random) -> Iterator[CompiledPlant]:
    """Yield `count` faults, of each kind in turn; a model may have no node for some kinds."""
    faults = (planter.plant(kind, random) for kind in islice(kinds, count * len(planter.kinds)))
    return islice((fault for fault in faults if fault is not None), count)


def is_found(report: Report, fault: CompiledPlant) -> bool:
    """Return whether the first row that differs is one of the wrong node."""
    first = report.first_divergence
    return first is not None and first.kind != "output" and first.node == fault.node


def explain_miss(report: Report, fault: CompiledPlant) -> str:
    """Describe a fault that was missed: the rows of its node, and the first row that differs."""
    rows = [f"{row.status} {row.reason}".strip() for row in report.rows if row.node == fault.node]
    return f"{fault.kind}: {fault.node}: {fault.text}\n    its rows: {rows}\n    first: {report.first_divergence}"


def table(found: Counter[tuple[str, str]], missed: Counter[tuple[str, str]]) -> str:
    """Format a row for each backend and kind, and a row of totals."""
    rows = [(*key, found[key] + missed[key], found[key], missed[key]) for key in sorted(found.keys() | missed.keys())]
    return table_with_totals(("backend", "kind", "planted", "found", "missed"), rows)


def main() -> int:
    """Plant and compare; return 1 if too few faults are found or a clean run flags anything."""
    parser = parser_of(__doc__, ONNX_RUNTIME, ONNX_RUNTIME)
    parser.add_argument("--backends", nargs="+", choices=list(SHARES), default=list(SHARES), metavar="BACKEND")
    options = parser.parse_args()
    found: Counter[tuple[str, str]] = Counter()
    missed: Counter[tuple[str, str]] = Counter()
    kinds_of: dict[str, Iterator[str]] = {}
    false_alarms = 0
    backends = available_backends(options.backends, lambda label: get_backend(label.split()[0]))
    for name in options.models:
        model = load_model(name)
        optimized = optimize(model.program)
        for backend in backends:
            count, models = SHARES[backend]
            if name not in models:
                continue
            program, planter = make_planter(backend, model, optimized)
            random = seeded(options.seed, backend, name)
            clean = compare(model.capture, program, backend=planter.clean, stages=("compiled",))
            false_alarms += len(clean.diverged) or int(not clean.close)
            print(f"{name} on {backend}: clean: {len(clean.diverged)} flagged, {clean.headline}", flush=True)
            kinds = kinds_of.setdefault(backend, cycle(planter.kinds))
            for fault in plant_faults(planter, kinds, count, random):
                report = compare(model.capture, program, backend=fault.backend, stages=("compiled",))
                (found if is_found(report, fault) else missed)[backend, fault.kind] += 1
                if not is_found(report, fault):
                    print(f"MISSED {name} on {backend}, {explain_miss(report, fault)}", flush=True)
    print(f"\n{table(found, missed)}\n")
    total = found.total() + missed.total()
    print(f"{found.total()} of {total} found; clean runs flag {false_alarms} rows")
    return int(false_alarms > 0 or found.total() < MIN_DETECTION_RATE * total or not total)


if __name__ == "__main__":
    sys.exit(main())
