"""Measure what a capture costs in each of several processes, beside the same step that is not sharded.

The shortest time of a training step with a capture of all modules, gradients and parameters, less that of the step
alone, is divided by the number of recorded values; the table shows the slowest process. The steps with and without
capture take turns in all processes, and a barrier before each keeps them together. All kinds are measured several
times in turn, in new processes. `single` is the step that is not sharded, which all processes run at the same time;
it comes before anything imports DTensor, as in a run without it.

Each capture writes a new file: to replace a dump, Filch reads it first. `processor` is the processor time that a value
takes, without the time that the process waits.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from _measure import describe_environment, format_target, table

from filch.steal import steal_forward
from support.models import parallel

LIMIT = 1.5  # times what a value costs if it is not sharded


def time_steps(kind: str, folder: str, rounds: int, rank: int, world: int) -> None:
    """Write the seconds and the seconds of processor time of each step, and the number of values."""
    models = {name: parallel.KINDS[kind](parallel.make_model()) for name in ("plain", "captured")}
    batch = parallel.batch_of(kind, rank, world)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    values = 0
    dump = Path(f"{folder}/{kind}.{rank}.onnx")
    for _ in range(rounds + 2):
        for name, model in models.items():
            dist.barrier()
            begin = time.perf_counter(), time.process_time()
            if name == "plain":
                parallel.step(model, batch)
            else:
                with steal_forward(model, dump_file=dump, submodules=True, gradients=True, parameters=True) as capture:
                    parallel.step(model, batch)
                values = capture.totals.records
            times[name].append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
            model.zero_grad()
            dump.unlink(missing_ok=True)
    warm = {name: steps[2:] for name, steps in times.items()}
    Path(f"{folder}/{kind}.{rank}.json").write_text(json.dumps(warm | {"values": values}), encoding="utf-8")


def shortest(kind: str, folders: list[str]) -> tuple[float, float, float, float]:
    """Return the seconds of a step, of one with capture, and of a value, and the processor time of a value."""
    costs = []
    for name in sorted(path.name for path in Path(folders[0]).glob(f"{kind}.*.json")):
        found = [json.loads((Path(folder) / name).read_text("utf-8")) for folder in folders]
        plain, captured = (
            [min(times) for times in zip(*(step for one in found for step in one[name]), strict=True)]
            for name in ("plain", "captured")
        )
        value, processor = (
            (after - before) / found[0]["values"] for before, after in zip(plain, captured, strict=True)
        )
        costs.append((plain[0], captured[0], value, processor))
    return max(costs, key=lambda cost: cost[2])  # of the slowest process


def main() -> None:
    """Measure all kinds of parallelism, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=2, help="number of processes")
    parser.add_argument("--rounds", type=int, default=40, help="steps with and without capture")
    parser.add_argument("--repeats", type=int, default=5, help="times that all kinds are measured in new processes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    small = options.world < 4
    kinds = [kind for kind in parallel.KINDS if not (small and kind in ("hsdp", "fsdp_tensor"))]
    with tempfile.TemporaryDirectory() as folder:
        folders = [f"{folder}/{repeat}" for repeat in range(options.repeats)]
        for one in folders:
            Path(one).mkdir()
            jobs = [functools.partial(time_steps, kind, one, options.rounds) for kind in kinds]
            parallel.run_jobs(options.world, jobs, one)
        rows = [(kind, shortest(kind, folders)) for kind in kinds]
    single = dict(rows)["single"]
    print(describe_environment("torch"))
    lines = [
        [
            kind,
            *(f"{seconds * 1e3:.1f} ms" for seconds in cost[:2]),
            f"{cost[2] * 1e6:.0f} µs",
            f"{cost[2] / single[2]:.2f}",
            f"{cost[3] * 1e6:.0f} µs",
            f"{cost[3] / single[3]:.2f}",
        ]
        for kind, cost in rows
    ]
    columns = ["kind", "step", "with capture", "a value", "unsharded is 1", "processor", "unsharded is 1"]
    print(table(columns, lines))
    worst = max(cost[2] / single[2] for _, cost in rows)
    print(format_target("a value in a sharded run", worst, at_most=LIMIT))


if __name__ == "__main__":
    main()
