"""Align models with re-implementations of them, and with the same that have bugs; count what is found where it is."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from _measure import describe_environment, table

from filch.compare import Alignment, align

# The models that are ported live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ports import FIRST_PORTS, PORTS, Port

EVIDENCE = ("proved", "anchored", "by value", "ambiguous")
PLACES = ("operation", "module", "elsewhere")
COLUMNS = ("weights", "outputs in B", *EVIDENCE, "false", "missed", "seconds", *PLACES, "more", "s a bug")


def timed_align(port: Port, bug: str | None) -> tuple[Alignment, float]:
    """Align a model with its port, and return the seconds that it takes."""
    pair = port.make(bug)
    start = time.perf_counter()
    return align(*pair), time.perf_counter() - start


def clean_row(name: str, port: Port) -> list[float | str]:
    """Return the cells of a run without a bug; print what is false or missed."""
    result, seconds = timed_align(port, None)
    computed = [value for value in result.values if port.places(value)]
    false = [value for value in result.values if port.is_false(value)]
    missed = [value for value in computed if not port.is_paired(value) and value not in false]
    for text, values in (("FALSE", false), ("MISSED", missed)):
        for value in values:
            print(f"{text} {name}: {value.module}{value.path}: {value.evidence} {', '.join(value.places)}", flush=True)
    if result.outcome == "different":
        print(f"DIFFERENT {name}: {'; '.join(result.wrong_outputs)}", flush=True)
    counts = Counter(value.evidence for value in computed if port.is_paired(value))
    weights = f"{sum(weight.complete for weight in result.weights)}/{len(result.weights)}"
    return [weights, len(computed), *(counts[item] for item in EVIDENCE), len(false), len(missed), seconds]


def bug_row(name: str, port: Port) -> list[float | str]:
    """Return the cells of the runs with a bug; print the departures of those that are not named precisely.

    `more` counts departures after the first one that are not at the operation of the bug, in whatever layer.
    """
    found: Counter[str] = Counter()
    more, total = 0, 0.0
    for bug, expected in port.bugs.items():
        result, seconds = timed_align(port, bug)
        place = expected.found(next(iter(result.departures), None))
        found[place] += 1
        total += seconds
        more += sum(not expected.is_at(departure) for departure in result.departures[1:])
        if place != "operation":
            print(f"{place.upper()} {name}, {bug}: {'; '.join(map(str, result.departures[:3]))}", flush=True)
    return [*(found[place] for place in PLACES), more, total / max(len(port.bugs), 1)]


def cell(value: float | str) -> str:
    """Format a number or text."""
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def main() -> int:
    """Align; return 1 if a pair is false, an output is missed or a bug is named elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", nargs="+", choices=sorted(PORTS), default=sorted(FIRST_PORTS), metavar="PORT")
    options = parser.parse_args()
    rows = [[name, *clean_row(name, PORTS[name]), *bug_row(name, PORTS[name])] for name in options.ports]
    sums = [sum(row[index] for row in rows) for index in range(2, len(COLUMNS) + 1)]  # type: ignore[misc]
    sums[-1] /= len(rows)
    print(f"\n{table(('port', *COLUMNS), [[cell(value) for value in row] for row in [*rows, ['all', '', *sums]]])}\n")
    print(describe_environment("torch", "transformers"))
    false, missed, elsewhere = (sums[COLUMNS.index(name) - 1] for name in ("false", "missed", "elsewhere"))
    return int(bool(false or missed or elsewhere))


if __name__ == "__main__":
    sys.exit(main())
