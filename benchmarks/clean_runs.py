"""Count the rows that a comparison flags although nothing is wrong, for the models of the zoo on each backend.

Each model is exported and compared with its own eager run: by tolerance, by the default verdict (float64, and isolated
runs of the nodes whose error rounding does not explain), and by float64 with each node in isolation. A row that is
reported as different, wrong or suspicious is a false alarm, and so is a problem of the program's inputs and outputs. A
backend that refuses a model is listed with the reason; one whose library or device is missing is skipped.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from filch.compare import Report, compare
from filch.export import export
from filch.export.backends import Backend, get_backend
from filch.steal import FilchError, steal_forward

# The models live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.models.zoo import MODELS

LEVELS = ("basic", "extended", "layout", "all")
BACKENDS = {
    "eager": lambda: get_backend("eager"),
    "reference": lambda: get_backend("reference"),
    **{f"onnxruntime-{level}": lambda level=level: get_backend("onnxruntime-cpu", level=level) for level in LEVELS},
    "openvino": lambda: get_backend("openvino"),
    "inductor": lambda: get_backend("inductor"),
    "eager-cuda": lambda: get_backend("eager", device="cuda"),
    "inductor-cuda": lambda: get_backend("inductor", device="cuda"),
    "onnxruntime-cuda": lambda: get_backend("onnxruntime-cuda"),
    "onnxruntime-cuda-float32": lambda: get_backend("onnxruntime-cuda", tf32=False),
}
MODES: dict[str, dict[str, Any]] = {
    "tolerance": {"tolerance": "default"},
    "default": {},
    "float64": {"truth": "float64"},
}
SHOWN = 3  # flagged rows to print of each comparison


def available_backends(labels: Sequence[str]) -> dict[str, Backend]:
    """Return the backends by label; print which ones are skipped because their library or device is missing."""
    backends: dict[str, Backend] = {}
    for label in labels:
        try:
            backends[label] = BACKENDS[label]()
        except FilchError as error:
            print(f"{label}: skipped: {error}", flush=True)
    return backends


def main() -> int:
    """Print the flagged rows of each comparison, and a table of all comparisons; return 1 if there is no backend."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=[*BACKENDS])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    options = parser.parse_args()
    backends = available_backends(options.backends)
    counts = Counter[tuple[str, str, str]]()
    for name in options.models:
        model, args, kwargs = MODELS[name]()
        program = export(model, args, kwargs)
        with torch.no_grad(), steal_forward(model, submodules=True) as capture:
            model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        for label, backend in backends.items():
            for mode in options.modes:
                try:
                    report = compare(capture, program, backend=backend, **MODES[mode])
                except FilchError as error:
                    print(f"{name} on {label} by {mode}: refused: {error}", flush=True)
                    counts[label, mode, "refused"] += 1
                    continue
                for kind, count in count_rows(report).items():
                    counts[label, mode, kind] += count
                print_flagged(f"{name} on {label} by {mode}", report)
    print()
    print("| backend | judged by | judged rows | different or wrong | suspicious | interface | refused |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for label in backends:
        for mode in options.modes:
            kinds = ("judged", "flagged", "suspicious", "interface", "refused")
            print(f"| {label} | {mode} | {' | '.join(f'{counts[label, mode, kind]:,}' for kind in kinds)} |")
    return int(not backends)


def count_rows(report: Report) -> Counter[str]:
    """Count the rows that were judged, and the false alarms among them."""
    return Counter(
        judged=sum(row.judged for row in report.rows),
        flagged=sum(row.diverged or row.introduced for row in report.rows),
        suspicious=sum(row.isolated is not None and row.isolated.verdict == "suspicious" for row in report.rows),
        interface=len(report.interface),
    )


def print_flagged(title: str, report: Report) -> None:
    """Print the false alarms of a comparison, if there are any."""
    counts = count_rows(report)
    if not (counts["flagged"] or counts["suspicious"] or counts["interface"]):
        return
    print(f"{title}: {counts['flagged']} flagged, {counts['suspicious']} suspicious of {counts['judged']}", flush=True)
    for problem in report.interface[:SHOWN]:
        print(f"  {problem}")
    flagged = [
        row
        for row in report.rows
        if row.diverged or row.introduced or (row.isolated and row.isolated.verdict == "suspicious")
    ]
    for row in flagged[:SHOWN]:
        print(f"  {row}: {row.isolated or row.difference}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
