"""Plant porting bugs that were held out, align, and count how many are named where they are, and what else is named."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from _measure import describe_environment, table
from torch import Tensor
from torch.utils._pytree import tree_leaves

from filch.compare import Alignment, align

# The models that are ported live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from faults.porting import SETS, STYLES, PortingBug, Style, make, read_set

OUTCOMES = OPERATION, MODULE, ELSEWHERE, UNNAMED, PASSED = ("operation", "module", "elsewhere", "unnamed", "passed")
LEAST_CHANGE = 1e-5  # of the outputs, in float64
MIN_MODULES, MIN_OPERATIONS, MIN_PAIRS, MAX_CLAIMS = 0.95, 0.75, 0.8, 0.05


def style_of(index: int) -> Style:
    """Return the style of the weights: every other bug is in a model like a trained one."""
    return STYLES[index % len(STYLES)]


def outputs(bugs: Sequence[PortingBug], port: str, style: Style) -> Tensor:
    """Return the outputs of a port in float64, as one vector."""
    _, model, _, args = make(tuple(bugs), port, style)
    args = tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)
    torch.set_default_dtype(torch.float64)  # also for constants that are made in `forward`
    try:  # with gradients, as `TransformerEncoderLayer` has another path without them
        values = tree_leaves(model.double()(*args))
    finally:
        torch.set_default_dtype(torch.float32)
    return torch.cat([value.detach().flatten() for value in values if isinstance(value, Tensor)])


def has_effect(bugs: Sequence[PortingBug], others: Sequence[PortingBug], port: str, style: Style) -> bool:
    """Whether bugs change the outputs of a port that has others already."""
    before, after = outputs(others, port, style), outputs([*others, *bugs], port, style)
    return bool((before - after).norm() > LEAST_CHANGE * before.norm())


def aligned(bugs: Sequence[PortingBug], port: str, style: Style) -> tuple[Alignment, float]:
    """Align a model with its port, and return the seconds that it takes."""
    pair = make(tuple(bugs), port, style)
    start = time.perf_counter()
    return align(*pair), time.perf_counter() - start


def is_claim(result: Alignment, bugs: Sequence[PortingBug]) -> list[str]:
    """Return the departures that name none of the bugs."""
    return [str(item) for item in result.departures if all(bug.found(item) == ELSEWHERE for bug in bugs)]


def outcome(result: Alignment, bug: PortingBug) -> str:
    """Return what the first departure is worth."""
    if result.outcome != "different":
        return PASSED
    return bug.found(result.departures[0]) if result.departures else UNNAMED


def report(label: str, style: Style, result: Alignment) -> None:
    """Print what was found."""
    print(f"{label} ({style}): {'; '.join(map(str, result.departures[:6])) or result.headline}", flush=True)


def clean_runs(ports: Sequence[str]) -> int:
    """Align ports without a bug; return how many are flagged."""
    flagged = 0
    for port in ports:
        for style in STYLES:
            result, seconds = aligned((), port, style)
            wrong = bool(result.departures or result.outcome == "different")
            flagged += wrong
            if wrong:
                report(f"FLAGGED {port}", style, result)
            print(f"clean {port}, {style}: {result.headline}, {seconds:.1f} s", flush=True)
    return flagged


def single_bugs(
    planted: Mapping[str, PortingBug], names: Sequence[str]
) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Plant one bug at a time; return the outcomes and the number of bugs with claims elsewhere by kind."""
    found: Counter[tuple[str, str]] = Counter()
    claims: Counter[str] = Counter()
    for index, (name, bug) in enumerate(planted.items()):
        if name not in names:
            continue
        style = style_of(index)
        result, seconds = aligned((bug,), bug.port, style)
        verdict = outcome(result, bug)
        further = [
            item for item in is_claim(result, [bug]) if verdict != ELSEWHERE or item != str(result.departures[0])
        ]
        found[bug.kind, verdict] += 1
        claims[bug.kind] += len(further)
        print(f"{verdict}, {len(further)} further, {seconds:.1f} s: {name}", flush=True)
        if verdict != OPERATION or further:
            report(f"  {verdict.upper()} {name}", style, result)
    return found, claims


def pairs(
    planted: Mapping[str, PortingBug], paired: Sequence[tuple[str, str]], ports: Sequence[str]
) -> tuple[int, int, int]:
    """Plant two bugs at a time; return how many there are, how often both are found, and the claims elsewhere."""
    count, both, claims = 0, 0, 0
    for index, names in enumerate(paired):
        bugs = [planted[name] for name in names]
        port, style = bugs[0].port, style_of(index)
        if port not in ports:
            continue
        result, seconds = aligned(bugs, port, style)
        named = [any(bug.found(item) != ELSEWHERE for item in result.departures) for bug in bugs]
        further = is_claim(result, bugs)
        count, both, claims = count + 1, both + all(named), claims + len(further)
        print(f"{sum(named)} of 2, {len(further)} further, {seconds:.1f} s: {' + '.join(names)}", flush=True)
        if not all(named) or further:
            report(f"  {' + '.join(names)}", style, result)
    return count, both, claims


def without_effect(
    planted: Mapping[str, PortingBug], paired: Sequence[tuple[str, str]], names: Sequence[str]
) -> list[str]:
    """Return the bugs, alone or in a pair, that do not change the outputs."""
    idle = []
    for index, (name, bug) in enumerate(planted.items()):
        if name in names and not has_effect([bug], [], bug.port, style_of(index)):
            idle.append(name)
    for index, pair in enumerate(paired):
        for name, other in (pair, pair[::-1]):
            bug = planted[name]
            if name in names and not has_effect([bug], [planted[other]], bug.port, style_of(index)):
                idle.append(f"{name} after {other}")
    return idle


def main() -> int:
    """Judge the bugs; return 1 if too few are named, too much else is, or a run without a bug is flagged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--set", choices=SETS, default="first", help="which bugs: those of which ports (default: first)"
    )
    parser.add_argument("--ports", nargs="+", metavar="PORT", help="only these ports (default: all of the set)")
    parser.add_argument("--only-effects", action="store_true", help="check that each bug changes the outputs")
    options = parser.parse_args()
    gc.freeze()  # `align` collects garbage, which takes a second if it looks at all imported modules
    bugs, paired = read_set(options.set).bugs, read_set(options.set).pairs
    every = {bug.port for bug in bugs.values()}
    ports = sorted(every if options.ports is None else options.ports)
    if unknown := {*ports} - every:
        parser.error(f"no such port in the set: {', '.join(sorted(unknown))}")
    names = [name for name, bug in bugs.items() if bug.port in ports]
    idle = without_effect(bugs, paired, names)
    for name in idle:
        print(f"NO EFFECT {name}", flush=True)
    if options.only_effects:
        return int(bool(idle))
    found, claims = single_bugs(bugs, names)
    planted, both, further = pairs(bugs, paired, ports)
    flagged = clean_runs(ports)
    rows = [
        [kind, *(found[kind, name] for name in OUTCOMES), claims[kind]] for kind in sorted({kind for kind, _ in found})
    ]
    sums = [sum(row[index] for row in rows) for index in range(1, len(OUTCOMES) + 2)]  # type: ignore[misc]
    lines = [[str(cell) for cell in row] for row in [*rows, ["all", *sums]]]
    print(f"\n{table(('kind of bug', *OUTCOMES, 'further'), lines)}\n")
    modules, operations = sums[0] + sums[1], sums[0]
    print(f"{len(names)} bugs: {modules} at the module, {operations} at the operation, {sums[-1]} claims elsewhere")
    print(f"{planted} pairs: both found in {both}, {further} claims elsewhere; {flagged} runs without a bug flagged")
    print(describe_environment("torch", "transformers"))
    good = modules >= MIN_MODULES * len(names) and operations >= MIN_OPERATIONS * len(names)
    good &= sums[-1] <= MAX_CLAIMS * len(names) and both >= MIN_PAIRS * planted
    return int(not good or bool(idle) or flagged > 0)


if __name__ == "__main__":
    sys.exit(main())
