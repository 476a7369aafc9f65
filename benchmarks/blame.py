"""Plant faults of ten kinds, alone and two at once, and count how often `compare` says where they were introduced."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from filch.steal import FilchError

# The models and the plants live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.faults.blaming import INSIDE, INT8, MISSED, NODE, Subject, Verdict, blamed, judge, wheres
from support.faults.kinds import KINDS, QDQ, Fault
from support.models.zoo import ZOO

MODELS = ("llama", "bert", "vit", "t5", "clip", "gpt2", "resnet")
PAIRS = "two at once"
ENOUGH = 0.95
SHOWN = 3  # of the rows that are blamed
PATIENCE = 6  # how often a model is asked in vain, in a graph each


def drawn(one: Subject, kind: str, where: str, random: Random, spare: set[str]) -> tuple[Fault, ...]:
    """A fault of a kind, not in the nodes to spare, or two of any two kinds; none if there is no place."""
    kinds = random.sample([kind for kind in KINDS if kind != QDQ], 2) if kind == PAIRS else [kind]
    found: list[Fault] = []
    for item in kinds:
        fault = one.faults[where].plant(item, random, beside=found, spare=spare)
        if fault is None:
            return ()
        found.append(fault)
    return tuple(found)


def tried(one: Subject, where: str, faults: Sequence[Fault]) -> Verdict:
    """Plant them, compare and judge; a miss is explained."""
    told = "\n    ".join(fault.text for fault in faults)
    try:
        report = one.compare(where, faults)
    except FilchError as error:
        print(f"MISSED {one.name}, {where}: {told}\n    failed: {error}", flush=True)
        return Verdict(MISSED, 0)
    verdict = judge(report, faults)
    if verdict.at == MISSED or verdict.besides:
        nodes = frozenset().union(*(fault.culprits for fault in faults))
        its = [f"{row.call}: {row.status} {row.reason}".strip() for row in report.rows if row.node in nodes]
        rows = "\n        ".join(map(str, blamed(report)[:SHOWN])) or "none"
        how = "MISSED" if verdict.at == MISSED else "ALSO BLAMED"
        print(f"{how} {one.name}, {where}: {told}\n    its rows: {its}\n    blamed: {rows}", flush=True)
    return verdict


def flagged_when_clean(one: Subject, where: str) -> int:
    """How many rows are blamed in a graph without a fault, in two calls, each repeated.

    Where there are no integers, on which errors add up to more than any rounding, no row may differ either.
    """
    report = one.compare(where)
    rows = blamed(report) if where == INT8 else [*blamed(report), *report.diverged]
    for row in rows[:SHOWN]:
        print(f"CLEAN {one.name}, {where}: {row}", flush=True)
    return len(rows)


def table(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """A row per kind, and their sum."""
    columns = (NODE, INSIDE, MISSED)
    rows: list[tuple[Any, ...]] = []
    for kind, found in verdicts.items():
        counted = Counter(verdict.at for verdict in found)
        rows.append((kind, len(found), *(counted[at] for at in columns), sum(verdict.besides for verdict in found)))
    total = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    head = ("kind", "planted", *columns, "also blamed")
    return "\n".join(f"{row[0]!s:26}" + "".join(f"{cell!s:>12}" for cell in row[1:]) for row in (head, *rows, total))


def main() -> int:
    """Run it; 1 if too few are found or a clean run blames anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=20, help="plants of each kind, and pairs")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, PAIRS], default=[*KINDS, PAIRS], metavar="KIND")
    parser.add_argument("--models", nargs="+", choices=sorted(ZOO), default=MODELS, metavar="MODEL")
    options = parser.parse_args()
    subjects = [Subject(name, *ZOO[name]()) for name in options.models]
    used = {where for kind in options.kinds for where in wheres(kind)}
    noisy = {(one.name, where): flagged_when_clean(one, where) for one in subjects for where in sorted(used)}
    print(f"{len(noisy)} clean runs flag {sum(noisy.values())} rows", flush=True)
    verdicts: dict[str, list[Verdict]] = {}
    for kind in options.kinds:
        random = Random(f"{options.seed} {kind}")  # noqa: S311  no secret
        verdicts[kind] = list(islice(plants(subjects, kind, random), options.each))
        print(f"{kind}: {dict(Counter(verdict.at for verdict in verdicts[kind]))}", flush=True)
    print(f"\n{table(verdicts)}\n")
    all_ = [verdict for found in verdicts.values() for verdict in found]
    right = sum(verdict.at != MISSED for verdict in all_)
    few = [kind for kind, found in verdicts.items() if len(found) < options.each]
    print(f"{right} of {len(all_)} found; {len(noisy)} clean runs flag {sum(noisy.values())} rows")
    if few:
        print(f"too few places for {', '.join(few)}")
    return int(bool(few) or any(noisy.values()) or right < ENOUGH * len(all_))


def plants(subjects: Sequence[Subject], kind: str, random: Random) -> Iterator[Verdict]:
    """The verdicts on faults of a kind, in all models and graphs by turns, in another node each.

    It ends where none of them has a place left.
    """
    barren, used = 0, defaultdict[tuple[str, str], set[str]](set)
    for number in count():
        one, where = subjects[number % len(subjects)], wheres(kind)[number % len(wheres(kind))]
        faults = drawn(one, kind, where, random, used[one.name, where])
        barren = 0 if faults else barren + 1
        if faults:
            used[one.name, where] |= {fault.node for fault in faults}
            yield tried(one, where, faults)
        elif barren >= PATIENCE * len(subjects):
            return


if __name__ == "__main__":
    sys.exit(main())
