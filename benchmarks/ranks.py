"""Measure what a capture costs in each of several processes, beside the same step that is not sharded.

The time of a training step with a capture of all modules, gradients and parameters, less that of the step alone, is
divided by the number of recorded values. The steps with and without capture take turns in all processes, and a barrier
before each keeps them together; the table shows medians of the slowest process. `single` is the step that is not
sharded, which all processes run at the same time.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _measure import describe_environment, format_target, table

from filch.steal import steal_forward

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the tests are not installed

from support.models import parallel

LIMIT = 1.5  # times what a value costs if it is not sharded


def time_steps(kind: str, folder: str, rounds: int, rank: int, world: int) -> None:
    """Write the seconds of each step with and without capture, and the number of values."""
    models = {name: parallel.KINDS[kind](parallel.make_model()) for name in ("plain", "captured")}
    batch = parallel.batch_of(kind, rank, world)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    values = 0
    for _ in range(rounds + 2):
        for name, model in models.items():
            if dist.is_initialized():
                dist.barrier()
            begin = time.perf_counter()
            if name == "plain":
                parallel.step(model, batch)
            else:
                path = f"{folder}/{kind}{world}.{rank}.onnx"
                options: dict[str, Any] = {"submodules": True, "gradients": True, "parameters": True}
                with steal_forward(model, dump_file=path, **options) as capture:
                    parallel.step(model, batch)
                values = capture.totals.records
            seconds[name].append(time.perf_counter() - begin)
            model.zero_grad()
    warm = {name: steps[2:] for name, steps in seconds.items()}
    Path(f"{folder}/{kind}{world}.{rank}.json").write_text(json.dumps(warm | {"values": values}), encoding="utf-8")


def medians(kind: str, folder: str, world: int) -> tuple[float, float, float]:
    """Return the seconds of a step, of one with capture, and of a value, in the slowest process."""
    found = [json.loads(path.read_text("utf-8")) for path in Path(folder).glob(f"{kind}{world}.*.json")]
    costs = []
    for one in found:
        plain, captured = (statistics.median(one[name]) for name in ("plain", "captured"))
        differences = [after - before for before, after in zip(one["plain"], one["captured"], strict=True)]
        costs.append((plain, captured, statistics.median(differences) / one["values"]))
    return max(costs, key=lambda cost: cost[2])


def main() -> None:
    """Measure all kinds of parallelism, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2, help="number of processes")
    parser.add_argument("--rounds", type=int, default=15, help="steps with and without capture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    small = options.world < 4
    kinds = [kind for kind in parallel.KINDS if not (small and kind in ("hsdp", "fsdp_tensor"))]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [functools.partial(time_steps, kind, folder, options.rounds) for kind in kinds]
        parallel.run_jobs(options.world, jobs, folder)
        rows = [(kind, medians(kind, folder, options.world)) for kind in kinds]
    single = dict(rows)["single"]
    print(describe_environment("torch"))
    lines = [
        [
            kind,
            *(f"{seconds * 1e3:.1f} ms" for seconds in cost[:2]),
            f"{cost[2] * 1e6:.0f} µs",
            f"{cost[2] / single[2]:.2f}",
        ]
        for kind, cost in rows
    ]
    print(table(["kind", "step", "with capture", "a value", "unsharded is 1"], lines))
    worst = max(value / single[2] for _, (_, _, value) in rows)
    print(format_target("a value in a sharded run", worst, at_most=LIMIT))


if __name__ == "__main__":
    main()
