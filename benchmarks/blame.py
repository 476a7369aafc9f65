"""Plant faults of ten kinds, one or two at once, and count how often `compare` names the node that introduces them."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from random import Random

from _measure import table_with_totals
from _planting import OUTCOMES, parser_of, seeded
from _zoo import ZOO

from faults.nodes.blaming import INT8, MISSED, Subject, Verdict, blamed, judge, wheres
from faults.nodes.kinds import KINDS, QDQ, Fault
from filch.steal import FilchError

MODELS = ("llama", "bert", "vit", "t5", "clip", "gpt2", "resnet")
TWO_FAULTS = "two at once"
MIN_DETECTION_RATE = 0.95
MAX_ROWS = 3  # rows to print of each comparison
MAX_FAILURES = 6  # failed attempts per model to plant a fault, before a kind is given up


def draw_faults(subject: Subject, kind: str, graph: str, random: Random, used_nodes: set[str]) -> tuple[Fault, ...]:
    """Draw a fault of a kind, or two of different kinds, in unused nodes; () if there are none left."""
    kinds = random.sample([kind for kind in KINDS if kind != QDQ], 2) if kind == TWO_FAULTS else [kind]
    faults: list[Fault] = []
    for item in kinds:
        fault = subject.faults[graph].plant(item, random, beside=faults, spare=used_nodes)
        if fault is None:
            return ()
        faults.append(fault)
    return tuple(faults)


def judge_faults(subject: Subject, graph: str, faults: Sequence[Fault]) -> Verdict:
    """Plant the faults, compare, and judge the report; print it if a fault is missed or another node is blamed."""
    description = f"{subject.name}, {graph}: " + "\n    ".join(fault.text for fault in faults)
    try:
        report = subject.compare(graph, faults)
    except FilchError as error:
        print(f"MISSED {description}\n    failed: {error}", flush=True)
        return Verdict(MISSED, 0)
    verdict = judge(report, faults)
    if verdict.at == MISSED or verdict.besides:
        nodes = frozenset().union(*(fault.culprits for fault in faults))
        rows = [f"{row.call}: {row.status} {row.reason}".strip() for row in report.rows if row.node in nodes]
        blamed_rows = "\n        ".join(map(str, blamed(report)[:MAX_ROWS])) or "none"
        outcome = "MISSED" if verdict.at == MISSED else "ALSO BLAMED"
        print(f"{outcome} {description}\n    its rows: {rows}\n    blamed: {blamed_rows}", flush=True)
    return verdict


def count_false_alarms(subject: Subject, graph: str) -> int:
    """Count the rows that are blamed in a graph without a fault, in two calls, each repeated.

    Rows that differ count too, except in the int8 graph, where the errors of integers exceed rounding.
    """
    report = subject.compare(graph)
    rows = blamed(report) if graph == INT8 else [*blamed(report), *report.diverged]
    for row in rows[:MAX_ROWS]:
        print(f"CLEAN {subject.name}, {graph}: {row}", flush=True)
    return len(rows)


def plant_faults(subjects: Sequence[Subject], kind: str, random: Random) -> Iterator[Verdict]:
    """Yield the verdicts on faults of a kind, in each model and graph in turn, always in another node.

    Stops when no model has a node left for the kind.
    """
    failures, used_nodes = 0, defaultdict[tuple[str, str], set[str]](set)
    for number in count():
        subject, graph = subjects[number % len(subjects)], wheres(kind)[number % len(wheres(kind))]
        faults = draw_faults(subject, kind, graph, random, used_nodes[subject.name, graph])
        failures = 0 if faults else failures + 1
        if faults:
            used_nodes[subject.name, graph] |= {fault.node for fault in faults}
            yield judge_faults(subject, graph, faults)
        elif failures >= MAX_FAILURES * len(subjects):
            return


def table(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """Format a row for each kind, and a row of totals."""
    rows = []
    for kind, of_kind in verdicts.items():
        counts = Counter(verdict.at for verdict in of_kind)
        also_blamed = sum(verdict.besides for verdict in of_kind)
        rows.append((kind, len(of_kind), *(counts[outcome] for outcome in OUTCOMES), also_blamed))
    return table_with_totals(("kind", "planted", *OUTCOMES, "also blamed"), rows)


def main() -> int:
    """Plant and compare; return 1 if too few faults are found or a clean run blames anything."""
    parser = parser_of(__doc__, MODELS)
    parser.add_argument("--each", type=int, default=20, help="faults of each kind, and pairs of faults")
    parser.add_argument(
        "--kinds", nargs="+", choices=[*KINDS, TWO_FAULTS], default=[*KINDS, TWO_FAULTS], metavar="KIND"
    )
    options = parser.parse_args()
    subjects = [Subject(name, *ZOO[name]()) for name in options.models]
    graphs = sorted({graph for kind in options.kinds for graph in wheres(kind)})
    false_alarms = [count_false_alarms(subject, graph) for subject in subjects for graph in graphs]
    clean = f"{len(false_alarms)} clean runs flag {sum(false_alarms)} rows"
    print(clean, flush=True)
    verdicts: dict[str, list[Verdict]] = {}
    for kind in options.kinds:
        random = seeded(options.seed, kind)
        verdicts[kind] = list(islice(plant_faults(subjects, kind, random), options.each))
        print(f"{kind}: {dict(Counter(verdict.at for verdict in verdicts[kind]))}", flush=True)
    print(f"\n{table(verdicts)}\n")
    total = sum(map(len, verdicts.values()))
    found = sum(verdict.at != MISSED for of_kind in verdicts.values() for verdict in of_kind)
    incomplete = [kind for kind, of_kind in verdicts.items() if len(of_kind) < options.each]
    print(f"{found} of {total} found; {clean}")
    if incomplete:
        print(f"too few nodes for {', '.join(incomplete)}")
    return int(bool(incomplete) or any(false_alarms) or found < MIN_DETECTION_RATE * total)


if __name__ == "__main__":
    sys.exit(main())
