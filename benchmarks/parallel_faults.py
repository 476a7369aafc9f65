"""Plant faults of parallel code, and count how often `diff` with one process names the wrong value and ranks first."""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator

from filch.compare import DumpDiff, diff
from filch.steal import Layouts, assemble
from support.faults.parallel_plants import FAULTS, ParallelFault, record, record_clean, record_faulty
from support.models.parallel import KINDS, run_jobs
from support.models.parallel_by_hand import BY_HAND, reference_of

RIGHT, RANKS, PLACE, PASSED = "right", "wrong ranks", "wrong value", "passed"
OUTCOMES = (RIGHT, RANKS, PLACE, PASSED)
MIN_DETECTION_RATE = 0.95
ONLY_ON = {"hsdp": 4, "fsdp_tensor": 4, "dropout": 2}  # how many processes a kind of parallelism needs


def clean_kinds(world: int) -> Iterator[str]:
    """Yield the kinds of parallelism that run on a number of processes."""
    for kind in (*KINDS, *BY_HAND):
        if kind != "single" and ONLY_ON.get(kind, world) == world:
            yield kind


def reference_file(kind: str, folder: str) -> str:
    """Return the dump of one process that a kind of parallelism must equal."""
    return f"{folder}/{'single' if kind in KINDS else kind}.onnx"


def record_all(names: list[str], folder: str) -> None:
    """Record one process, each kind of parallelism without a fault, and each fault."""
    for kind in ("single", *BY_HAND):
        record(reference_of(kind), reference_file(kind, folder))
    for world in (2, 4):
        jobs = [functools.partial(record_clean, kind, folder) for kind in clean_kinds(world)]
        faulty = [functools.partial(record_faulty, name, folder) for name in names if FAULTS[name].world == world]
        run_jobs(world, [*jobs, *faulty], folder)


def compare_run(kind: str, run: str, folder: str, learned: Layouts | None = None) -> DumpDiff:
    """Compare a run of several processes with one process."""
    return diff(reference_file(kind, folder), assemble(f"{folder}/{run}.[0-9].onnx", layouts=learned))


def outcome(result: DumpDiff, fault: ParallelFault) -> str:
    """Return what the verdict is worth."""
    first = result.first_divergence
    if first is None:
        return PASSED
    if not fault.is_at(first):
        return PLACE
    return RIGHT if fault.has_ranks(first) else RANKS


def clean_runs(folder: str) -> tuple[dict[tuple[str, int], Layouts], int]:
    """Compare the runs without a fault; return the layouts that were learned, and the number of false alarms."""
    learned, flagged = {}, 0
    for world in (2, 4):
        for kind in clean_kinds(world):
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
    totals = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))  # type: ignore[arg-type]
    lines = (header, *rows, totals)
    return "\n".join(f"{line[0]:38}" + "".join(f"{cell!s:>22}" for cell in line[1:]) for line in lines)


def main() -> int:
    """Plant and compare; return 1 if too few faults are named, one passes, or a clean run flags anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    options = parser.parse_args()
    found: dict[str, Counter[tuple[str, str]]] = {"inferred": Counter(), "learned": Counter()}
    with tempfile.TemporaryDirectory() as folder:
        record_all(options.faults, folder)
        learned, flagged = clean_runs(folder)
        for name in options.faults:
            fault = FAULTS[name]
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
    planted = len(options.faults)
    right, passed = (
        {how: sum(number for (_, name), number in counts.items() if name == which) for how, counts in found.items()}
        for which in (RIGHT, PASSED)
    )
    for how, number in right.items():
        print(f"{how} layouts: {number} of {planted} named with value and ranks, {passed[how]} passed")
    print(f"clean runs flag {flagged} rows")
    return int(flagged > 0 or any(passed.values()) or min(right.values()) < MIN_DETECTION_RATE * planted)


if __name__ == "__main__":
    sys.exit(main())
