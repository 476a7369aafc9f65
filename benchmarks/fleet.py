"""Run 64 comparisons, with crashes, hangs and killed workers, on each executor, and resume an interrupted fleet.

    python benchmarks/fleet.py                        # processes, resumed, submitit and ray
    python benchmarks/fleet.py processes resumed      # those that need nothing else

Stops if a cell has no row or two rows, if the outcomes depend on the executor, or if a cell runs again that has a row.
On submitit and Ray, the process that supervises a worker is killed; on Ray, a cluster of three nodes on this machine,
one node is killed, too. Needs `filch[slurm]` and `filch[ray]`; what is not installed is skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _measure import describe_environment, table

from support.processes.fleets import Fleet, outcomes, ray_cluster

SPEC = """
[[matrix]]
models = ["models.py:linear", "models.py:mlp", "models.py:norm", "models.py:softmax",
          "models.py:silu", "models.py:tanh", "models.py:conv", "models.py:pool"]
backends = ["eager", "reference", "onnxruntime-cpu"]
dtypes = ["float32", "float64"]

[[matrix]]
models = ["models.py:segfault", "models.py:exits", "models.py:killed", "models.py:hang", "models.py:raises"]
backends = ["eager"]
dtypes = ["float32", "float64"]

[[matrix]]
models = ["models.py:evicted"]
backends = ["eager"]

[[sweep]]
model = "models.py:sized"
dims = {batch = [1, 3, 16]}
backends = ["eager"]

[[sweep]]
model = "models.py:sized"
dims = {batch = [7, 33]}
backends = ["onnxruntime-cpu"]
"""
CELLS = 64
TIMEOUT = 60.0  # seconds
INTERRUPT = 20  # rows


def run_processes(folder: Path) -> tuple[Fleet, str]:
    """Run in processes of this machine; nothing is between the driver and its workers that could be killed."""
    fleet = Fleet(folder, SPEC)
    (folder / "evicted").touch()
    with fleet.running("processes:3", timeout=TIMEOUT):
        pass
    return fleet, ""


def run_resumed(folder: Path) -> tuple[Fleet, str]:
    """Interrupt the fleet as Ctrl-C does, and run it again."""
    fleet = Fleet(folder, SPEC)
    (folder / "evicted").touch()
    with fleet.running("processes:3", timeout=TIMEOUT) as process:
        fleet.wait_for_rows(INTERRUPT, process)
        process.send_signal(signal.SIGINT)
    before = fleet.rows()
    assert process.returncode == 130, process.returncode
    with fleet.running("processes:3", timeout=TIMEOUT):
        pass
    after = fleet.rows()
    assert after[: len(before)] == before
    assert not {row["key"] for row in before} & {row["key"] for row in after[len(before) :]}
    return fleet, f"interrupted with {len(before)} rows, then {len(after) - len(before)} more"


def run_submitit(folder: Path) -> tuple[Fleet, str]:
    """Run as jobs of submitit, one of which is killed."""
    fleet = Fleet(folder, SPEC)
    with fleet.running("submitit:local:3", timeout=TIMEOUT) as process:
        fleet.evict(process)
    return fleet, "a job killed"


def run_ray(folder: Path) -> tuple[Fleet, str]:
    """Run as tasks of a Ray cluster of three nodes, one of which is killed, as is a worker of Ray."""
    fleet = Fleet(folder, SPEC)
    with ray_cluster(3) as (address, kill_node), fleet.running("ray", timeout=TIMEOUT, RAY_ADDRESS=address) as process:
        fleet.wait_for_rows(INTERRUPT, process)
        kill_node()
        fleet.evict(process)
        process.wait()
    return fleet, "a node and a worker of Ray killed"


RUNS: dict[str, tuple[Any, str]] = {
    "processes": (run_processes, ""),
    "resumed": (run_resumed, ""),
    "submitit": (run_submitit, "submitit"),
    "ray": (run_ray, "ray"),
}


def main() -> None:
    """Run the fleet on the executors that are asked for, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=[*RUNS], metavar="RUN", help=", ".join(RUNS))
    names = parser.parse_args().runs
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs would pass on that it is ignored
    print(describe_environment("filch", "torch", "submitit", "ray"))
    expected: dict[str, Any] = {}
    lines = []
    for name in names:
        run, library = RUNS[name]
        if library and importlib.util.find_spec(library) is None:
            print(f"{name}: skipped, {library} is not installed")
            continue
        with tempfile.TemporaryDirectory(prefix="filch-fleet-") as folder:
            started = time.monotonic()
            fleet, events = run(Path(folder))
            seconds = time.monotonic() - started
            rows = fleet.rows()
            assert len(rows) == len({row["key"] for row in rows}) == CELLS, Counter(row["key"] for row in rows)
            found = outcomes(rows)
            differing = {key: (found[key], value) for key, value in expected.items() if found.get(key) != value}
            assert not differing, differing
            expected = expected or found
            counts = Counter(row["status"] for row in rows)
            retried = sum(row["attempt"] > 1 for row in rows)
            statuses = ", ".join(f"{count} {status}" for status, count in counts.most_common())
            lines.append((name, len(rows), statuses, retried, fleet.starts(), f"{seconds:.0f} s", events))
            print(lines[-1], flush=True)
    print(table(("run", "rows", "statuses", "retried cells", "factory calls", "time", "events"), lines))


if __name__ == "__main__":
    main()
