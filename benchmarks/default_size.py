"""Judge models of published sizes by the default verdict: clean ones, and those with planted faults.

Each model is exported and compared with its own eager run, with fresh weights and with weights whose numbers are
distributed as after training, in each dtype; no row may be flagged, and the outcome has to be close. Each model runs in
a new process, whose memory is limited: some backends need more than a machine has, and the table then says so.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch
from _backends import BACKENDS
from _default_models import MODELS, WEIGHTS
from _measure import GIB, limit_memory, peak_memory, table
from _planting import seeded
from onnx import ModelProto, helper, numpy_helper
from onnx_ir import serde

from faults.nodes.plants import KINDS, MUL, Planter
from filch.compare import Report, compare
from filch.compare._compare_export import compare_export
from filch.export import Program, export
from filch.steal import Capture, FilchError, ModuleInfo, steal_forward
from filch.steal.values._arguments import argument_tensors

CPU_BACKENDS = ("onnxruntime-cpu", "inductor", "openvino")
DTYPES = ("float32", "float16", "bfloat16")
PLANTED_MODELS = ("resnet50", "gpt2", "bert", "vit", "t5")
SMALL, SMALL_RATIO = "small factor", 3.0  # a factor whose error is so many times the rounding level of the value
LEAST_RATIO, MOST_RATIO = 2.0, 4.5  # of a small fault that counts
MIN_DETECTION_RATE = 0.98
MIN_CLOSE_RATE = 0.98  # of clean comparisons
SHOWN = 3  # flagged rows to print of each comparison
TIMEOUT_S = 1800


def capture_and_export(options: argparse.Namespace) -> tuple[Capture, Program, dict[str, torch.Tensor]]:
    """Return the capture and the program of the model of a child process, and the program's inputs."""
    model, inputs = MODELS[options.models[0]].make(options.weights[0], getattr(torch, options.dtypes[0]))
    model, inputs = model.to(options.device), {name: x.to(options.device) for name, x in inputs.items()}
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(**copy.deepcopy(inputs))
    program = export(model, (), inputs)
    tensors = argument_tensors(ModuleInfo.of(model).parameters, (), inputs)
    return capture, program, {value: tensors[path] for value, path in program.inputs.items()}


def judge_clean(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the result of a clean comparison on each backend."""
    capture, program, _ = capture_and_export(options)
    for backend in options.backends:
        start = time.perf_counter()
        try:
            report = compare_export(capture, program, backend=BACKENDS[backend]())
        except FilchError as error:
            yield {"backend": backend, "failed": " ".join(str(error).split())[:200]}
            continue
        flagged = [row for row in report.rows if row.diverged or row.introduced]
        yield {
            "backend": backend,
            "outcome": report.outcome,
            "judged": sum(row.judged for row in report.rows),
            "rows": len(report.rows),
            "flagged": len(flagged) + len(report.interface),
            "by tolerance": sum(row.judged and row.float64 is None for row in report.rows),
            "worst": max((row.float64.ratio for row in report.rows if row.float64 is not None), default=0.0),
            "seconds": round(time.perf_counter() - start, 1),
            "peak": peak_memory(),
            "shown": [f"{row}: {row.float64 or row.difference}" for row in flagged[:SHOWN]]
            + [*report.interface, *report.gap_sentences()][:SHOWN],
        }


class SmallFaults:
    """Plant factors whose errors are a few times the rounding level of a value, which no tolerance would find."""

    def __init__(self, capture: Capture, program: Program, clean: Report) -> None:
        """Select the values of the clean report with an error of their own."""
        self.capture, self.program = capture, program
        self.rows = [
            row
            for row in clean.rows
            if row.kind == "node" and row.float64 is not None and row.dtype == "float32" and row.float64.rounding > 0
        ]

    def plant(self, random: Random) -> tuple[str, Report, float] | None:
        """Return a node, the report with its fault and the error as a multiple of the level; None if it misses."""
        row = random.choice(self.rows)
        factor = 1e-5
        for _ in range(3):  # the error is proportional to the factor, except for its rounding
            report = self.compare(row.value, factor)
            verdict = next(item.float64 for item in report.rows if item.value == row.value and item.kind != "output")
            if verdict is None or not verdict.ratio:
                return None
            if LEAST_RATIO <= verdict.ratio <= MOST_RATIO:
                return MUL, report, verdict.ratio
            factor *= SMALL_RATIO / verdict.ratio
        return None

    def compare(self, value: str, factor: float) -> Report:
        """Compare the program with a value that is multiplied by a factor slightly larger than 1."""
        proto = serde.serialize_model(self.program.model)
        _multiply(proto, value, 1 + factor)
        changed = replace(self.program, model=serde.deserialize_model(proto))
        return compare(self.capture, changed, stages=["exported"])


def _multiply(proto: ModelProto, value: str, factor: float) -> None:
    """Let a Mul take the name of a value, so that everything reads the product."""
    index, node = next((index, node) for index, node in enumerate(proto.graph.node) if value in node.output)
    node.output[:] = [f"{name}_right" if name == value else name for name in node.output]
    scale = numpy_helper.from_array(torch.tensor(factor, dtype=torch.float32).numpy(), f"{value}_factor")
    proto.graph.initializer.append(scale)
    proto.graph.node.insert(index + 1, helper.make_node("Mul", [f"{value}_right", scale.name], [value], name=MUL))


def judge_planted(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the result of each planted fault: its kind, and whether the report names its node first."""
    capture, program, inputs = capture_and_export(options)
    random = seeded(options.seed, options.models[0])
    clean = compare(capture, program, stages=["exported"])
    yield {"kind": "clean", "flagged": sum(row.diverged or row.introduced for row in clean.rows)}
    small = SmallFaults(capture, program, clean)
    planter = Planter(serde.serialize_model(program.model), {name: x.numpy() for name, x in inputs.items()})
    kinds = [SMALL, *KINDS] if not options.kinds else options.kinds
    for index in range(options.plants):
        kind, ratio = kinds[index % len(kinds)], None
        if kind == SMALL:
            planted = small.plant(random)
            if planted is None:
                continue
            node, report, ratio = planted
        else:
            fault = planter.plant(kind, random)
            if fault is None:
                continue
            node = fault.node
            report = compare(capture, replace(program, model=serde.deserialize_model(fault.model)), stages=["exported"])
        first = report.first_divergence
        named = not report.close and first is not None and node in (first.node, *first.origins)
        yield {"kind": kind, "named": named, "ratio": ratio, "node": node, "first": str(first)}


def run_child(options: argparse.Namespace) -> None:
    """Judge one model in this process, and print each result as a line of JSON."""
    limit_memory(int(options.memory * GIB), None)
    for result in judge_planted(options) if options.plants else judge_clean(options):
        print(json.dumps(result), flush=True)


def results_of(arguments: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the results of a child process; the last one says why it failed, if it did."""
    command = [sys.executable, __file__, "--child", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        errors = f"not finished after {TIMEOUT_S} s"
    lines = [line for line in output.splitlines() if line.startswith("{")]
    yield from map(json.loads, lines)
    if process.returncode:
        yield {"failed": (errors.strip() or f"killed by signal {-process.returncode}").splitlines()[-1][:200]}


def measure_clean(options: argparse.Namespace) -> int:
    """Print a row for each clean comparison; return how many rows were flagged or comparisons failed.

    A backend that refuses a program is listed. A process that failed counts as a failure, and so do no comparisons.
    """
    rows, flagged, crashed = [], 0, 0
    counted = ("judged", "flagged", "by tolerance")
    for model in options.models:
        for weights in options.weights:
            for dtype in options.dtypes:
                label = f"{model} {weights} {dtype}"
                arguments = ["--models", model, "--weights", weights, "--dtypes", dtype, "--device", options.device]
                arguments += ["--memory", str(options.memory), "--backends", *options.backends]
                for result in results_of(arguments):
                    print(label, json.dumps(result), flush=True)
                    backend = result.get("backend", "")
                    if "failed" in result:
                        crashed += not backend
                        rows.append((label, backend or "process failed", *[""] * 7))
                        continue
                    flagged += result["flagged"]
                    cells = (result["outcome"], *(f"{result[name]:,}" for name in counted))
                    peak = f"{result['peak'] / GIB:.1f}"
                    rows.append((label, backend, *cells, f"{result['worst']:.2f}", result["seconds"], peak))
    header = ("model", "backend", "outcome", *counted, "largest ratio", "seconds", "peak GiB")
    print("", table(header, rows), sep="\n")
    compared = [row for row in rows if row[2]]
    close = sum(row[2] == "close" for row in compared)
    print(f"\n{flagged} rows are flagged, {crashed} processes failed; {close} of {len(compared)} comparisons are close")
    return flagged + crashed + (close < MIN_CLOSE_RATE * len(compared)) + (not compared)


def measure_planted(options: argparse.Namespace) -> int:
    """Print how many faults of each kind are named; return 1 if too few, or if a clean run or a process fails."""
    counted, named, flagged, crashed = Counter[str](), Counter[str](), 0, 0
    for model in options.models:
        arguments = ["--models", model, "--weights", "trained-like", "--dtypes", "float32", "--seed", str(options.seed)]
        arguments += ["--plants", str(options.plants), "--memory", str(options.memory)]
        for result in results_of([*arguments, *(["--kinds", *options.kinds] if options.kinds else [])]):
            print(model, json.dumps(result), flush=True)
            flagged += result.get("flagged", 0)
            crashed += "failed" in result
            if "named" in result:
                counted[result["kind"]] += 1
                named[result["kind"]] += result["named"]
    rows = [(kind, counted[kind], named[kind]) for kind in sorted(counted)]
    print("", table(("kind", "counted", "named"), [*rows, ("all", counted.total(), named.total())]), sep="\n")
    print(f"\n{named.total()} of {counted.total()} named; clean runs flag {flagged} rows, {crashed} processes failed")
    too_few = not counted.total() or named.total() < MIN_DETECTION_RATE * counted.total()
    return int(flagged > 0 or crashed > 0 or too_few)


def main() -> int:
    """Print a table of the clean runs, or of the planted faults with `--plants`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", help="some of: %(choices)s")
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=[*WEIGHTS])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=[*DTYPES])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=[*CPU_BACKENDS], metavar="BACKEND")
    parser.add_argument("--plants", type=int, default=0, help="attempts to plant a fault in each model")
    parser.add_argument("--kinds", nargs="+", choices=[SMALL, *KINDS], metavar="KIND", help="some of: %(choices)s")
    parser.add_argument("--device", default="cpu", help="of the model whose values are the reference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=float, default=18, help="GiB of private memory that a process may use; 0: all")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options)
        return 0
    options.models = options.models or [*(PLANTED_MODELS if options.plants else MODELS)]
    return measure_planted(options) if options.plants else int(measure_clean(options) > 0)


if __name__ == "__main__":
    sys.exit(main())
