"""Run all GPU-marked tests and the CUDA rows of the benchmarks, and write `benchmarks/GPU.md`.

Each step runs in a process of its own, with a time limit. Several run at once; what measures time runs alone. A step
that fails, hangs or crashes is listed with the last line of its error, and the run goes on. What is missing is skipped,
with the reason. Without a GPU nothing is written.

Exit status: 0 if nothing failed, 1 if something failed or was not run, 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from _probe import versions
from _report import Run, render
from _steps import Budget, Result, Step, run_step
from _tests import TestResult, counts, marked_files, run_test_file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 570.0  # under ten minutes
JOBS = max(1, (os.cpu_count() or 1) // 2)
PROBE_LIMIT, FILE_LIMIT, BENCHMARK_LIMIT = 60.0, 240.0, 240.0
ALONE = "steal"  # the folder of the tests that measure whether the device waits
NO_GPU = 2


@dataclass(frozen=True)
class Benchmark:
    """The CUDA rows of a script.

    Attributes:
        command: the script in `benchmarks/`, and its arguments.
        needs: the library that has to see the device.
    """

    command: tuple[str, ...]
    needs: str

    @property
    def title(self) -> str:
        """The command."""
        return " ".join(self.command)


CUDA_BACKENDS = {
    "eager-cuda": "torch",
    "inductor-cuda": "torch",
    "onnxruntime-cuda": "onnxruntime",
    "onnxruntime-cuda-float32": "onnxruntime",
}
DEFAULT_SIZE = ("default_size.py", "--device", "cuda", "--memory", "0", "--weights", "trained-like")
DEFAULT_SIZES = {"gpt2": "float32", "vit": "float16", "qwen2": "bfloat16", "mixtral": "float32", "llama": "bfloat16"}
TIMED = (Benchmark(("capture.py", "--models", "CUDA", "--rounds", "1", "--scale", "0.2", "--no-peers"), "torch"),)
BENCHMARKS = (
    *(
        Benchmark(("clean_runs.py", "--backends", backend, "--modes", "default", "--jobs", "4"), needs)
        for backend, needs in CUDA_BACKENDS.items()
    ),
    Benchmark(("planted_compiled.py", "--backends", "onnxruntime-cuda all"), "onnxruntime"),
    *(
        Benchmark((*DEFAULT_SIZE, "--models", model, "--dtypes", dtype, "--backends", *CUDA_BACKENDS), "torch")
        for model, dtype in DEFAULT_SIZES.items()
    ),
)


def find_devices(budget: Budget) -> tuple[list[Result], dict[str, str]]:
    """Ask each library for a GPU: the results, and the properties that they report."""
    results, properties = [], {}
    for library in ("torch", "onnxruntime"):
        command = (sys.executable, str(HERE / "_probe.py"), library)
        result = run_step(Step(f"a GPU for {library}", command, PROBE_LIMIT), budget.left())
        results.append(result)
        if result.status == "passed":
            properties |= json.loads(result.output.splitlines()[-1])
    return results, properties


def run_tests(budget: Budget, path: Path, root: Path = ROOT, limit: float = FILE_LIMIT) -> list[TestResult]:
    """Run the tests of a file."""
    if find_spec("pytest") is None:
        return [TestResult(path.name, "skipped", "pytest is not installed")]
    try:
        found = run_test_file(path, root, limit, budget.left())
    except Exception as error:  # noqa: BLE001  the run goes on, whatever it is
        reason = f"{type(error).__name__}: {error}"
        found = [TestResult(path.name, "failed", reason, text=traceback.format_exc())]
    print(f"{path.relative_to(root)}: {counts(found)}", flush=True)
    return found


def run_benchmark(budget: Budget, item: Benchmark, probes: Sequence[Result]) -> Result:
    """Run a benchmark whose library sees the device."""
    missing = {probe.title.rpartition(" ")[2]: probe.reason for probe in probes if probe.status != "passed"}
    if item.needs in missing:
        result = Result(item.title, "skipped", missing[item.needs])
    else:
        script, *arguments = item.command
        command = (sys.executable, str(HERE.parent / script), *arguments)
        result = run_step(Step(item.title, command, BENCHMARK_LIMIT, folder=ROOT), budget.left())
    print(f"{result.title}: {result.status}{result.reason and f': {result.reason}'}", flush=True)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, and write the file."""
    parser = argparse.ArgumentParser(
        prog="make gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=HERE.parent / "GPU.md", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=JOBS, help="steps that run at the same time; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything; default: %(default)s")
    options = parser.parse_args(arguments)
    budget, date = Budget(options.seconds), datetime.now(UTC).strftime("%Y-%m-%d")
    probes, properties = find_devices(budget)
    if not properties:
        reasons = "; ".join(item.reason for item in probes)
        print(f"make gpu: nothing was run, because there is no GPU: {reasons}", file=sys.stderr)
        return NO_GPU
    files = marked_files(ROOT)
    alone = [path for path in files if ALONE in path.parts]
    tests = [result for path in alone for result in run_tests(budget, path)]
    benchmarks = [run_benchmark(budget, item, probes) for item in TIMED]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [pool.submit(run_tests, budget, path) for path in files if path not in alone]
        measured = [pool.submit(run_benchmark, budget, item, probes) for item in BENCHMARKS]
    tests += [result for future in found for result in future.result()]
    benchmarks += [future.result() for future in measured]
    run = Run(date, budget.used, {**properties, **versions()}, probes, tests, benchmarks)
    options.output.write_text(render(run), "utf-8")
    print(f"{options.output}: {counts([*tests, *benchmarks])}")
    return int(bool(run.problems))


if __name__ == "__main__":
    sys.exit(main())
