"""Count the clean comparisons that are close, and the rows that others flag, for the models of the zoo on each backend.

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch
from _backends import BACKENDS, available_backends
from _zoo import MODELS

from filch.compare import Report, compare
from filch.export import export
from filch.steal import FilchError, steal_forward

DEFAULT = [label for label in BACKENDS if label != "onnxruntime-cpu"]  # which is that of all levels
MODES: dict[str, dict[str, Any]] = {
    "tolerance": {"tolerance": "default"},
    "default": {},
    "float64": {"every_node": True},
}
SHOWN = 3  # flagged rows to print of each comparison


Counts = Counter[tuple[str, str, str]]  # by backend, mode and kind


def main() -> int:
    """Print the flagged rows of each comparison, and a table of all comparisons; return 1 if there is no backend."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=[*DEFAULT])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--jobs", type=int, default=1, help="models to check at the same time")
    options = parser.parse_args()
    labels = available_backends(options.backends)
    counts, models = Counts(), 0
    for found in checked(options.models, labels, options.modes, options.jobs):
        counts += found
        models += 1
    print()
    print(f"{models} models")
    print("| backend | judged by | close | judged rows | different or wrong | suspicious | interface | refused |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for label in labels:
        for mode in options.modes:
            kinds = ("close", "judged", "flagged", "suspicious", "interface", "refused")
            print(f"| {label} | {mode} | {' | '.join(f'{counts[label, mode, kind]:,}' for kind in kinds)} |")
    return int(not labels)


def checked(models: Sequence[str], labels: Sequence[str], modes: Sequence[str], jobs: int) -> Iterator[Counts]:
    """Yield the counts of each model; those of one job at a time are made in this process."""
    if jobs == 1:
        yield from (check_model(name, labels, modes) for name in models)
        return
    context = get_context("spawn")  # CUDA does not work after a fork
    with ProcessPoolExecutor(jobs, context) as pool:
        pending = {pool.submit(check_model, name, labels, modes): name for name in models}
        for future in as_completed(pending):
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001  the other models are checked all the same
                print(f"{pending[future]}: failed: {type(error).__name__}: {error}", flush=True)


def check_model(name: str, labels: Sequence[str], modes: Sequence[str]) -> Counts:
    """Compare a model with its own eager run on each backend; print the false alarms, and return the counts."""
    model, args, kwargs = MODELS[name]()
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    counts = Counts()
    for label in labels:
        for mode in modes:
            try:
                report = compare(capture, program, backend=BACKENDS[label](), **MODES[mode])
            except FilchError as error:
                print(f"{name} on {label} by {mode}: refused: {error}", flush=True)
                counts[label, mode, "refused"] += 1
                continue
            for kind, count in count_rows(report).items():
                counts[label, mode, kind] += count
            print_flagged(f"{name} on {label} by {mode}", report)
    return counts


def count_rows(report: Report) -> Counter[str]:
    """Count the comparisons that are close, the rows that were judged, and the false alarms among them."""
    return Counter(
        close=report.close,
        judged=sum(row.judged for row in report.rows),
        flagged=sum(row.diverged or row.introduced for row in report.rows),
        suspicious=sum(row.isolated is not None and row.isolated.verdict == "suspicious" for row in report.rows),
        interface=len(report.interface),
    )


def print_flagged(title: str, report: Report) -> None:
    """Print the false alarms of a comparison and the outputs that were not judged, if there are any."""
    counts = count_rows(report)
    if report.close and not counts["suspicious"]:
        return
    print(
        f"{title}: {report.outcome}, {counts['flagged']} flagged, {counts['suspicious']} suspicious of"
        f" {counts['judged']}",
        flush=True,
    )
    for problem in [*report.interface, *report.gap_sentences()][:SHOWN]:
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
