"""Plant faults of parallel code, and count how often `diff` with one process names the wrong value and ranks first."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _measure import table_with_totals

from faults.parallel import (
    BY_HAND,
    FIRST,
    SECOND,
    ParallelFault,
    record,
    record_clean,
    record_faulty,
    record_run,
    record_single,
    reference_of,
)
from faults.parallel import KINDS as SECOND_KINDS
from filch.compare import DumpDiff, diff
from filch.steal import Layouts, assemble
from support.models.parallel import KINDS, run_jobs

RIGHT, RANKS, PLACE, PASSED = "right", "wrong ranks", "wrong value", "passed"
OUTCOMES = (RIGHT, RANKS, PLACE, PASSED)
MIN_DETECTION_RATE = 0.95
ONLY_ON = {"hsdp": 4, "fsdp_tensor": 4, "dropout": 2}  # how many processes a kind of parallelism needs


@dataclass(frozen=True)
class Plants:
    """Faults, and how they and the runs without a fault are recorded.

    Attributes:
        faults: by name.
        clean: the kinds of parallelism and numbers of processes that run without a fault.
        record_references: records the runs of one process in a folder.
        clean_job: returns what a process runs, given the kind of parallelism, the number of processes and a folder.
        faulty_job: the same, given the name of the fault and a folder.
    """

    faults: Mapping[str, ParallelFault]
    clean: Sequence[tuple[str, int]]
    record_references: Callable[[str], None]
    clean_job: Callable[[str, int, str], Callable[[int, int], None]]
    faulty_job: Callable[[str, str], Callable[[int, int], None]]


def _record_planted_references(folder: str) -> None:
    for kind in ("single", *BY_HAND):
        record(reference_of(kind), f"{folder}/{kind}.onnx")


def _record_held_out_references(folder: str) -> None:
    for kind in SECOND_KINDS:
        record_single(kind, f"{folder}/{kind}.onnx")


def _held_out_job(kind: str, fault: str, run: str) -> Callable[[int, int], None]:
    return functools.partial(record_run, kind=kind, fault=fault, files=f"{run}.{{rank}}.onnx")


SETS = {
    "planted": Plants(
        FIRST,
        [
            (kind, world)
            for world in (2, 4)
            for kind in (*KINDS, *BY_HAND)
            if kind != "single" and ONLY_ON.get(kind, world) == world
        ],
        _record_planted_references,
        lambda kind, _, folder: functools.partial(record_clean, kind, folder),
        lambda name, folder: functools.partial(record_faulty, name, folder),
    ),
    "held out": Plants(
        SECOND,
        [*((kind, 2) for kind in SECOND_KINDS), *((kind, 4) for kind in ("tp", "sp", "cp", "zigzag", "ep"))],
        _record_held_out_references,
        lambda kind, world, folder: _held_out_job(kind, "", f"{folder}/{kind}.{world}"),
        lambda name, folder: _held_out_job(SECOND[name].parallelism, name, f"{folder}/fault_{name}"),
    ),
}


def record_all(plants: Plants, names: list[str], folder: str) -> None:
    """Record one process, each kind of parallelism without a fault, and each fault."""
    plants.record_references(folder)
    for world in (2, 4):
        jobs = [plants.clean_job(kind, world, folder) for kind, size in plants.clean if size == world]
        jobs += [plants.faulty_job(name, folder) for name in names if plants.faults[name].world == world]
        run_jobs(world, jobs, folder)


def compare_run(kind: str, run: str, folder: str, learned: Layouts | None = None) -> DumpDiff:
    """Compare a run of several processes with that of one process which it must equal."""
    own = Path(folder, f"{kind}.onnx")
    reference = own if own.exists() else own.with_stem("single")
    return diff(reference, assemble(f"{folder}/{run}.[0-9].onnx", layouts=learned))


def outcome(result: DumpDiff, fault: ParallelFault) -> str:
    """Return what the verdict is worth."""
    first = result.first_divergence
    if first is None:
        return PASSED
    if not fault.is_at(first):
        return PLACE
    return RIGHT if fault.has_ranks(first) else RANKS


def clean_runs(plants: Plants, folder: str) -> tuple[dict[tuple[str, int], Layouts], int]:
    """Compare the runs without a fault; return the layouts that were learned, and the number of false alarms."""
    learned, flagged = {}, 0
    for kind, world in plants.clean:
        result = compare_run(kind, f"{kind}.{world}", folder)
        layouts = learned[kind, world] = Layouts(learned=result.learned)
        again = compare_run(kind, f"{kind}.{world}", folder, layouts)
        unjudged = sum(not row.judged for row in result.rows)
        flagged += len(result.diverged) + len(again.diverged) + unjudged
        print(f"{kind} on {world}: {result.headline}; with learned layouts {again.headline}", flush=True)
    return learned, flagged


def table(found: dict[str, Counter[tuple[str, str]]]) -> str:
    """Format a row for each kind of fault: its outcomes with inferred and with learned layouts."""
    header = ("kind of fault", "planted", *(f"{name}, {how}" for how in found for name in OUTCOMES))
    kinds = sorted({fault for counts in found.values() for fault, _ in counts})
    rows = [
        (
            kind,
            sum(next(iter(found.values()))[kind, name] for name in OUTCOMES),
            *(counts[kind, name] for counts in found.values() for name in OUTCOMES),
        )
        for kind in kinds
    ]
    return table_with_totals(header, rows)


def judge(plants: Plants, names: list[str]) -> bool:
    """Plant and compare; return whether enough faults are named, none passes, and clean runs flag nothing."""
    found: dict[str, Counter[tuple[str, str]]] = {"inferred": Counter(), "learned": Counter()}
    with tempfile.TemporaryDirectory() as folder:
        record_all(plants, names, folder)
        learned, flagged = clean_runs(plants, folder)
        for name in names:
            fault = plants.faults[name]
            for how, layouts in (("inferred", None), ("learned", learned[fault.parallelism, fault.world])):
                result = compare_run(fault.parallelism, f"fault_{name}", folder, layouts)
                verdict = outcome(result, fault)
                found[how][fault.kind, verdict] += 1
                if verdict != RIGHT:
                    wanted = f"{' or '.join(fault.places)} on rank {fault.ranks or 'all'}"
                    print(
                        f"{verdict.upper()} {name}, {how}: wanted {wanted}, got {result.first_divergence}", flush=True
                    )
    print(f"\n{table(found)}\n")
    planted = len(names)
    right, passed = (
        {how: sum(number for (_, name), number in counts.items() if name == which) for how, counts in found.items()}
        for which in (RIGHT, PASSED)
    )
    for how, number in right.items():
        print(f"{how} layouts: {number} of {planted} named with value and ranks, {passed[how]} passed")
    print(f"clean runs flag {flagged} rows\n")
    return not flagged and not any(passed.values()) and min(right.values()) >= MIN_DETECTION_RATE * planted


def main() -> int:
    """Judge the sets of faults; return 1 if too few are named, one passes, or a clean run flags anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [name for plants in SETS.values() for name in plants.faults]
    parser.add_argument("--faults", nargs="+", choices=every, default=every, metavar="FAULT")
    options = parser.parse_args()
    failed = False
    for title, plants in SETS.items():
        names = [name for name in plants.faults if name in options.faults]
        if names:
            print(f"{title}:")
            failed |= not judge(plants, names)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
