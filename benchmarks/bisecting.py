"""Make one of ONNX Runtime's optimizers produce a wrong result, and count how often and how fast `bisect` names it."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from _zoo import ZOO

from faults.nodes.optimizers import candidates, faulty
from filch.compare import bisect
from filch.export import Program, export, optimize
from filch.export.backends import Switch, get_backend
from filch.steal import Capture, steal_forward

MODELS = ("bert", "llama", "resnet", "vit", "whisper", "t5", "mobilenet_v2", "gpt2", "convnext", "swin")
FAULTS = 20
MIN_OPTIMIZERS = 8


@dataclass(frozen=True)
class Subject:
    """A program of a model of the zoo, a capture of the model, and the optimizers that change the program."""

    name: str
    program: Program
    capture: Capture
    optimizers: list[Switch]


def load_subjects(name: str) -> Iterator[Subject]:
    """Yield the exported program of a model, and the same program optimized by the exporter."""
    model, args, kwargs = ZOO[name]()
    exported = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model) as capture:
        model(*args, **kwargs)
    backend = get_backend("onnxruntime-cpu")
    for title, program in ((name, exported), (f"{name}, optimized", optimize(exported))):
        yield Subject(title, program, capture, candidates(program, backend))


def draw_optimizers(subjects: list[Subject], random: Random) -> Iterator[tuple[Subject, Switch]]:
    """Yield each subject with each of its optimizers, beginning with the optimizers that were drawn least often."""
    times_drawn: Counter[str] = Counter()
    remaining = [(subject, optimizer) for subject in subjects for optimizer in subject.optimizers]
    random.shuffle(remaining)
    while remaining:
        pair = min(remaining, key=lambda pair: times_drawn[pair[1].name])
        remaining.remove(pair)
        times_drawn[pair[1].name] += 1
        yield pair


def main() -> int:
    """Plant and bisect; return 1 if a culprit is not found, or too slowly, or if a clean run has one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plants", type=int, default=FAULTS, help="faults to plant")
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=MODELS, metavar="MODEL")
    options = parser.parse_args()
    random = Random(options.seed)  # noqa: S311  not for security
    subjects = [subject for name in options.models for subject in load_subjects(name)]
    false_alarms = 0
    for subject in subjects:
        clean = bisect(subject.capture, subject.program)
        false_alarms += not clean.close
        print(
            f"{subject.name}: clean: {clean.before}; {len(subject.optimizers)} optimizers change the graph", flush=True
        )
    print(f"\n{'model':26}{'optimizer':36}{'of':>4}{'runs':>6}{'most':>6}  found")
    found = slow = planted = invisible = 0
    names = set()
    for subject, culprit in draw_optimizers(subjects, random):
        if planted == options.plants:
            break
        backend = faulty(culprit.name, program=subject.program)
        report = bisect(subject.capture, subject.program, backend=backend)
        if report.close:
            invisible += 1  # no output depends on the changed nodes, or they compute no floating-point numbers
            continue
        planted += 1
        names.add(culprit.name)
        max_runs = 2 * math.log2(len(report.candidates)) + 5
        culprits = [switch.name for switch in report.culprits]
        found += culprits == [culprit.name]
        slow += report.runs > max_runs
        answer = "yes" if culprits == [culprit.name] else f"NO: {', '.join(culprits) or report.best}"
        counts = f"{len(report.candidates):4}{report.runs:6}{max_runs:6.1f}"
        print(f"{subject.name:26}{culprit.name:36}{counts}  {answer}", flush=True)
    print(f"\n{found} of {planted} found, {slow} with too many runs; {len(names)} optimizers;", end=" ")
    print(f"{false_alarms} clean runs flagged\n{invisible} more faults do not change any output")
    failed = false_alarms > 0 or found < planted or slow > 0
    return int(failed or planted < options.plants or len(names) < MIN_OPTIMIZERS)


if __name__ == "__main__":
    sys.exit(main())
