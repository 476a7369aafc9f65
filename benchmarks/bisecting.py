"""Replace the effect of one of ONNX Runtime's optimisers, and count how often `bisect` names that one, and how fast."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from filch.compare import bisect
from filch.export import Program, export, optimize
from filch.export.backends import Switch, get_backend
from filch.steal import Capture, steal_forward

# The models and the plants live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.faults.optimizer_plants import candidates, faulty
from support.models.zoo import ZOO

MODELS = ("bert", "llama", "resnet", "vit", "whisper", "t5", "mobilenet_v2", "gpt2", "convnext", "swin")
PLANTS = 20
LEAST_OPTIMIZERS = 8


@dataclass(frozen=True)
class Subject:
    """A program of a model of the zoo, and what was stolen from the model."""

    name: str
    program: Program
    capture: Capture
    optimizers: list[Switch]


def subjects(name: str) -> Iterator[Subject]:
    """The program as it is exported, and as the exporter ships it."""
    model, args, kwargs = ZOO[name]()
    exported = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model) as capture:
        model(*args, **kwargs)
    sound = get_backend("onnxruntime-cpu")
    for how, program in ((name, exported), (f"{name}, optimized", optimize(exported))):
        yield Subject(how, program, capture, candidates(program, sound))


def chosen(pool: list[Subject], random: Random) -> Iterator[tuple[Subject, Switch]]:
    """Subjects and optimisers, those first that were planted least often yet."""
    planted_before: Counter[str] = Counter()
    left = [(one, culprit) for one in pool for culprit in one.optimizers]
    random.shuffle(left)
    while left:
        pair = min(left, key=lambda pair: planted_before[pair[1].name])
        left.remove(pair)
        planted_before[pair[1].name] += 1
        yield pair


def main() -> int:
    """Run it; 1 if one is not found, found too slowly, or a clean run has a culprit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plants", type=int, default=PLANTS)
    parser.add_argument("--models", nargs="+", choices=list(ZOO), default=MODELS, metavar="MODEL")
    options = parser.parse_args()
    random = Random(options.seed)  # noqa: S311  no secret
    pool = [one for name in options.models for one in subjects(name)]
    noisy = 0
    for one in pool:
        clean = bisect(one.capture, one.program)
        noisy += not clean.close
        print(f"{one.name}: clean: {clean.before}; {len(one.optimizers)} optimisers change the graph", flush=True)
    print(f"\n{'model':26}{'optimiser':36}{'of':>4}{'runs':>6}{'most':>6}  found")
    found = slow = tried = silent = 0
    names = set()
    for one, culprit in chosen(pool, random):
        if tried == options.plants:
            break
        report = bisect(one.capture, one.program, backend=faulty(culprit.name, program=one.program))
        if report.close:
            silent += 1  # no output depends on what it brings in, or that is no floating-point number
            continue
        tried += 1
        names.add(culprit.name)
        most = 2 * math.log2(len(report.candidates)) + 5
        right = [item.name for item in report.culprits] == [culprit.name]
        found += right
        slow += report.runs > most
        told = "yes" if right else f"NO: {', '.join(item.name for item in report.culprits) or report.best}"
        counts = f"{len(report.candidates):4}{report.runs:6}{most:6.1f}"
        print(f"{one.name:26}{culprit.name:36}{counts}  {told}", flush=True)
    print(f"\n{found} of {tried} found, {slow} with too many runs; {len(names)} optimisers; {noisy} clean runs flagged")
    print(f"{silent} more were planted and show in no output")
    return int(noisy > 0 or found < tried or slow > 0 or tried < options.plants or len(names) < LEAST_OPTIMIZERS)


if __name__ == "__main__":
    sys.exit(main())
