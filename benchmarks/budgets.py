"""Measure again what commands of Filch cost, and compare it with `budgets.toml`, which says what they may cost.

Each command runs in a new process. A count has to be what is written there, and a ratio has a margin. Exits with 1 if a
figure is above what is allowed; a figure that is below means that the file can be tightened, with `--write`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from _costs import COMMANDS, Figures, Place, count, measure
from _measure import describe_environment, run_in_subprocess, table

FILE = Path(__file__).with_suffix(".toml")
SIZES = ("small", "50m", "1b")
# By how much a ratio may be larger than measured. Memory depends on threads and on what the allocator keeps, passes on
# which values are bitwise equal, and so on the processor. Figures that are not listed are counts.
MARGINS = {"peak / weights": 0.1, "written / weights": 0.03, "written / values": 0.03, "passes": 0.05}
LEAST = 0.05  # the least margin
SUMMARIZED = (
    *("forward runs", "exports", "compilations", "sessions", "session runs"),
    *("evaluations", "float64 evaluations", "passes"),
)
ATTEMPTS = 3  # at a ratio that is above: the smallest counts, as what a change adds is in each run
ABOVE, BELOW, NEW, GONE = "ABOVE", "below", "NEW", "GONE"
HEADER = """\
# What commands of Filch cost: counts with a small model, and ratios as [measured, allowed]. benchmarks/_costs.py says
# what each figure is. `python benchmarks/budgets.py` compares; with --write, it writes what it has measured.
"""

Budget = float | list[float]
Budgets = dict[str, dict[str, dict[str, Budget]]]


def load() -> Budgets:
    """Return what is allowed, by size, command and figure."""
    content = tomllib.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    return {size: content.get(size, {}) for size in SIZES}


def torch_version() -> str:
    """Return the version of torch that was measured; another one may run other operations."""
    return str(tomllib.loads(FILE.read_text("utf-8"))["torch"])


def verdict(value: float | None, budget: Budget | None) -> str:
    """Return what is wrong with a figure, or `""`; a ratio is below if it is so by more than its margin."""
    if value is None or budget is None:
        return "" if value is budget else NEW if budget is None else GONE
    measured, allowed = budget if isinstance(budget, list) else (budget, budget)
    if value > allowed:
        return ABOVE
    return BELOW if value < 2 * measured - allowed else ""


def problems(figures: Figures, budgets: Mapping[str, Budget]) -> dict[str, str]:
    """Return what is wrong with each figure that is not as it is written, with both."""
    found = {}
    for name in dict.fromkeys((*budgets, *figures)):
        value, budget = figures.get(name), budgets.get(name)
        if what := verdict(value, budget):
            found[name] = f"{what}: {value}, where budgets.toml has {budget}"
    return found


def counts(command: str, folder: Path) -> Figures:
    """Return the counts of a command with a small model, whose files are in a folder."""
    return count(command, Place(COMMANDS[command].counted, folder))


def run_child(command: str, size: str, folder: Path) -> Figures:
    """Measure a command in this process; an empty name only makes the files of all commands."""
    if size == "small":
        torch.set_num_threads(1)
        return counts(command, folder)
    place = Place(size, folder)
    if command:
        return measure(command, place)
    place.prepare(*(file for item in COMMANDS.values() if size in item.measured for file in item.files))
    return {}


def measured(command: str, size: str, folder: Path, budgets: Mapping[str, Budget]) -> Figures:
    """Measure a command in a new process; again, if a ratio is above what is allowed."""
    found: list[Figures] = []
    best: Figures = {}
    for _ in range(ATTEMPTS):
        found.append(run_in_subprocess(__file__, "--child", command, "--size", size, "--folder", folder))
        best = {name: round(min(figures[name] for figures in found), 3) for name in found[0]}
        if not any(verdict(best[name], budgets.get(name)) == ABOVE for name in MARGINS.keys() & best.keys()):
            break
    return best


def measure_all(size: str, commands: Sequence[str], budgets: Budgets) -> dict[str, Figures]:
    """Measure commands with a size of model."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="filch-budgets-") as folder:
        if size != "small":
            run_in_subprocess(__file__, "--child", "", "--size", size, "--folder", folder)
        for command in commands:
            if size == "small" or size in COMMANDS[command].measured:
                print(f"{size}: {command}", file=sys.stderr, flush=True)
                place = Path(folder) / COMMANDS[command].counted if size == "small" else Path(folder)
                found[command] = measured(command, size, place, budgets[size].get(command, {}))
    return found


def format_table(found: Mapping[str, Figures], budgets: Mapping[str, Mapping[str, Budget]]) -> str:
    """Format the figures of a size: each as measured and as allowed, and what is wrong with it."""
    names = dict.fromkeys(name for command in found for name in (*budgets.get(command, {}), *found[command]))
    rows = [
        (command, *(_cell(figures.get(name), budgets.get(command, {}).get(name)) for name in names))
        for command, figures in found.items()
    ]
    return table(("command", *names), rows)


def _cell(value: float | None, budget: Budget | None) -> str:
    """Format a figure: what was measured and what is allowed."""
    if value is None and budget is None:
        return ""
    allowed = budget[1] if isinstance(budget, list) else budget
    texts = ["-" if item is None else f"{item:g}" for item in (value, allowed)]
    return " ".join(filter(None, ("/".join(texts), verdict(value, budget))))


def summary(budgets: Budgets) -> str:
    """Format what was measured, of all sizes, as the table of RESULTS.md; 0 is left out."""
    columns = [("small", name, name) for name in SUMMARIZED]
    columns += [
        (size, name, f"{name}, {size}") for name in ("peak / weights", "written / weights") for size in SIZES[1:]
    ]
    lines = [["command", *(title for *_, title in columns)], ["---"] * (len(columns) + 1)]
    for command in COMMANDS:
        found = [budgets[size].get(command, {}).get(name) for size, name, _ in columns]
        values = [item[0] if isinstance(item, list) else item for item in found]
        lines.append([f"`{command}`", *(f"{value:.3g}" if value else "" for value in values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def budget_of(figure: str, value: float) -> Budget:
    """Return what is allowed of a figure from now on."""
    if figure in MARGINS:
        return [value, round(value + max(value * MARGINS[figure], LEAST), 3)]
    return int(value) if value == int(value) else value


def save(budgets: Budgets) -> None:
    """Write what is allowed."""
    lines = [f'{HEADER}\ntorch = "{torch.__version__.partition("+")[0]}"']
    for size, commands in budgets.items():
        for command, figures in commands.items():
            lines += ["", f"[{json.dumps(size)}.{json.dumps(command)}]"]
            lines += [f"{json.dumps(name)} = {json.dumps(budget)}" for name, budget in figures.items()]
    FILE.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> int:
    """Measure and print tables; return 1 if a figure is above what is allowed, not in the file, or only there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=SIZES[:2], help="1b takes minutes and 10 GB")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=[*COMMANDS], metavar="COMMAND")
    parser.add_argument("--write", action="store_true", help="write what was measured to budgets.toml")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(run_child(options.child, options.size[0], options.folder)))
        return 0
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # of the new processes; the command `filch` sets it, too
    budgets, failed = load(), False
    for size in options.size:
        found = measure_all(size, options.commands, budgets)
        print(f"\n{size}, measured/allowed", format_table(found, budgets[size]), sep="\n", flush=True)
        wrong = [what for name in found for what in problems(found[name], budgets[size].get(name, {})).values()]
        failed |= not all(what.startswith(BELOW) for what in wrong)
        if wrong and all(what.startswith(BELOW) for what in wrong):
            print("figures are below what is written: python benchmarks/budgets.py --write tightens the file")
        for command, figures in found.items():
            budgets[size][command] = {name: budget_of(name, value) for name, value in figures.items()}
    print(describe_environment("filch", "torch", "onnx", "onnxruntime-gpu", "onnxruntime", "transformers"))
    if options.write:
        save(budgets)
        print(f"\nfor RESULTS.md:\n\n{summary(budgets)}")
    return int(failed and not options.write)


if __name__ == "__main__":
    sys.exit(main())
