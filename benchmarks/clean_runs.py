"""How many rows a comparison flags where nothing is wrong: the models of the zoo on each backend, in both modes.

Each model is exported and compared with its own eager run, by the default tolerance and by float64. A row that is
called different, wrong or suspicious is a false alarm, and so is an interface that is called wrong. A backend that
refuses a model is listed with its reason.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import Counter
from pathlib import Path

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
}
MODES = {"tolerance": None, "float64": "float64"}
SHOWN = 3  # flagged rows of a comparison that are printed


def main() -> None:
    """Print a line for each comparison that flags something, and a table of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=[*BACKENDS])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    wanted = parser.parse_args()
    counts = Counter[tuple[str, str, str]]()
    for name in wanted.models:
        model, args, kwargs = MODELS[name]()
        program = export(model, args, kwargs)
        with torch.no_grad(), steal_forward(model, submodules=True) as capture:
            model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        for label in wanted.backends:
            backend: Backend = BACKENDS[label]()
            for mode in wanted.modes:
                try:
                    report = compare(capture, program, backend=backend, truth=MODES[mode])
                except FilchError as error:
                    print(f"{name} on {label} by {mode}: refused: {error}", flush=True)
                    counts[label, mode, "refused"] += 1
                    continue
                for kind, count in tally(report).items():
                    counts[label, mode, kind] += count
                tell(f"{name} on {label} by {mode}", report)
    print()
    print("| backend | judged by | judged rows | different or wrong | suspicious | interface | refused |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for label in wanted.backends:
        for mode in wanted.modes:
            kinds = ("judged", "flagged", "suspicious", "interface", "refused")
            print(f"| {label} | {mode} | {' | '.join(f'{counts[label, mode, kind]:,}' for kind in kinds)} |")


def tally(report: Report) -> Counter[str]:
    """How many rows were judged, and how many of them are false alarms."""
    return Counter(
        judged=sum(row.judged for row in report.rows),
        flagged=sum(row.diverged for row in report.rows),
        suspicious=sum(row.isolated is not None and row.isolated.verdict == "suspicious" for row in report.rows),
        interface=len(report.interface),
    )


def tell(title: str, report: Report) -> None:
    """Print what is flagged, if anything."""
    found = tally(report)
    if not (found["flagged"] or found["suspicious"] or found["interface"]):
        return
    print(f"{title}: {found['flagged']} flagged, {found['suspicious']} suspicious of {found['judged']}", flush=True)
    for problem in report.interface[:SHOWN]:
        print(f"  {problem}")
    odd = [row for row in report.rows if row.diverged or (row.isolated and row.isolated.verdict == "suspicious")]
    for row in odd[:SHOWN]:
        print(f"  {row}: {row.isolated or row.difference}", flush=True)


if __name__ == "__main__":
    main()
