"""Let rounding decide which experts, codes, boxes and buckets are chosen, plant faults in routers, and count verdicts.

Each model has rows with near-ties whose margins are known from float64. Its program, or a compiler, moves the scores by
a unit in the last place; or ONNX Runtime and Inductor compute them as they do. A decision that differs from the model's
has to be named, with its margin, and nothing may be called wrong. Of faults in routers, the node has to be named, also
if scores are moved as well.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from _measure import describe_environment, table

from faults.decisions import FAULTS, MODELS, Subject, faulty, flipped, flipped_in_compiler, subject
from filch.compare import Report, Row, compare

SEEDS = 20  # inputs that are tried until the backend decides otherwise
SAME_MARGIN = 1e-6  # relative difference of two margins


@dataclass(frozen=True)
class Way:
    """A way in which rounding changes decisions.

    Attributes:
        name: its name.
        dtype: the dtype of the model.
        run: compares a model, with a seed.
        models: the names of the models.
    """

    name: str
    dtype: torch.dtype
    run: Callable[[Subject, int], Report]
    models: Sequence[str] = tuple(MODELS)


def on(backend: str) -> Callable[[Subject, int], Report]:
    """Return a function that compares a model on a backend as it is."""
    return lambda one, _seed: compare(one.capture, one.program, backend=backend)


WAYS = (
    Way("ONNX, moved by a unit", torch.float32, lambda one, seed: flipped(one, seed=seed)),
    Way("ONNX, moved by a unit", torch.float16, lambda one, seed: flipped(one, seed=seed)),
    Way("torch.compile, moved by a unit", torch.bfloat16, lambda one, seed: flipped_in_compiler(one, seed=seed)),
    Way("torch.compile, moved by a unit", torch.float32, lambda one, seed: flipped_in_compiler(one, seed=seed)),
    Way("ONNX Runtime by itself", torch.float32, on("onnxruntime-cpu")),
    Way("ONNX Runtime by itself", torch.float16, on("onnxruntime-cpu")),
    # The other models' scores are computed by the same kernels as in eager mode.
    Way("Inductor by itself", torch.float32, on("inductor"), ("nearest code",)),
    Way("Inductor by itself", torch.float16, on("inductor"), ("nearest code", "threshold", "rounded", "sign")),
    Way("Inductor by itself", torch.bfloat16, on("inductor"), ("nearest code", "rounded", "sign")),
)


def differs(row: Row) -> bool:
    """Return whether a row has integers that are not the model's, or a decision that is inside of a node."""
    is_integer = (row.dtype or "").startswith(("int", "bool")) or row.op.lower() in ("round", "floor", "sign")
    return row.decides or bool(is_integer and row.difference is not None and row.difference.absolute)


def judged(one: Subject, report: Report) -> str:
    """Return `named` if a decision is, with the right margin, and nothing is wrong; else what is not right."""
    if not report.close or report.introduced:
        return "called a fault"
    rows = [row for row in report.rows if row.decides and row.float64 is not None]
    flips = [row.float64.flips for row in rows if row.float64 is not None]
    if not flips or report.explanation is None or not report.explanation.decisions:
        return "not named"
    for found in flips:
        if found is None or found.margin is None or found.ratio is None or found.ratio > 2:
            return "without margin"
        if float((one.margins - found.margin).abs().min()) > SAME_MARGIN * found.margin + 1e-15:
            return "another margin"
    return "named"


def flip(way: Way, name: str) -> tuple[str, str]:
    """Return how a decision is judged that differs from the model's, and its margins; `no flip` if none does."""
    for seed in range(SEEDS):
        one = subject(name, way.dtype, seed=seed)
        report = way.run(one, seed)
        if not report.close or any(map(differs, report.rows)):
            flips = (row.float64.flips for row in report.rows if row.decides and row.float64 is not None)
            return judged(one, report), "; ".join(dict.fromkeys(map(str, flips)))
    return "no flip", ""


def clean_runs() -> Iterator[tuple[str, Report]]:
    """Yield reports of models without near-ties."""
    for name in MODELS:
        one = subject(name, ties=False)
        yield f"{name}, ONNX Runtime", compare(one.capture, one.program, backend="onnxruntime-cpu")
        yield f"{name}, Inductor", compare(one.capture, one.program, backend="inductor")


def main() -> int:
    """Judge all; return 1 if a decision is called a fault or is not named, or if a fault is not."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    start = time.perf_counter()
    by_way: dict[str, Counter[str]] = {}
    for way in WAYS:
        for name in way.models:
            result, text = flip(way, name)
            label = f"{way.name}, {str(way.dtype).removeprefix('torch.')}"
            by_way.setdefault(label, Counter())[result] += 1
            if result != "no flip":
                print(f"{result}: {name}, {label}: {text}", flush=True)
    missed = planted = 0
    for name, fault in FAULTS.items():
        for model in fault.models:
            one = subject(model)
            for moved in (False, True):
                report, node = faulty(one, fault, moved=moved)
                first = report.first_divergence
                planted += 1
                # What moves the result of the node itself is a node without a reference of its own.
                if report.close or first is None or node not in (first.node, *first.unjudged):
                    missed += 1
                    print(f"MISSED {name}, {model}: {node}: {first}", flush=True)
    noisy = [name for name, report in clean_runs() if not report.close or any(map(differs, report.rows))]
    total = sum(by_way.values(), Counter[str]())
    flips = total.total() - total["no flip"]
    columns = ("named", "called a fault", "not named", "without margin", "another margin", "no flip")
    rows = [[label, *(str(count[column]) for column in columns)] for label, count in by_way.items()]
    print()
    print(table(("decisions changed by", *columns), rows), end="\n\n")
    print(f"{total['named']} of {flips} flips are named as decisions")
    print(f"{planted - missed} of {planted} faults in routers are named at their node, half of them with moved scores")
    print(f"{len(noisy)} of {2 * len(MODELS)} clean runs show anything {noisy or ''}")
    print(f"{time.perf_counter() - start:.0f} s", end="\n\n")
    print(describe_environment("torch", "onnxruntime-gpu"))
    return int(total["named"] < flips or bool(missed) or bool(noisy))


if __name__ == "__main__":
    sys.exit(main())
