"""Write the results of a run as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from _steps import Result
from _tests import TestResult, counts

TAIL_LINES, TAIL_CHARACTERS = 40, 6000
MAX_CELL = 300
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\S\n]+$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """All results of a run.

    Attributes:
        date: when it began.
        seconds: how long it took.
        properties: the device and the versions, by name.
        probes: the results of looking for devices.
        tests: those of the tests.
        benchmarks: those of the benchmarks.
    """

    date: str
    seconds: float
    properties: Mapping[str, str]
    probes: Sequence[Result]
    tests: Sequence[TestResult]
    benchmarks: Sequence[Result]

    @property
    def problems(self) -> list[tuple[str, str, str]]:
        """What failed or was not run: its title, the reason and its output."""
        steps = [
            (item.title, item.reason, f"{item.output}\n{item.errors}")
            for item in (*self.probes, *self.benchmarks)
            if item.status in ("failed", "not run")
        ]
        tests = [(item.test, item.reason, item.text) for item in self.tests if item.status in ("failed", "not run")]
        return steps + tests


def render(run: Run) -> str:
    """Return the text of `GPU.md`."""
    problems = run.problems
    summary = f"Tests: {counts(run.tests) or 'none'}. Benchmarks: {counts(run.benchmarks) or 'none'}."
    lines = [
        "# Results on a GPU",
        "",
        f"Written by `make gpu` on {run.date}, in {run.seconds:.0f} seconds. {summary}",
        "",
        f"**{len(problems)} failed or not run: see [Failures](#failures).**" if problems else "Nothing failed.",
        "",
        "## Device and versions",
        "",
        *table(("property", "value"), run.properties.items()),
        *(f"\n{item.title}: {item.status}: {cell(item.reason)}" for item in run.probes if item.status != "passed"),
        "",
        "## Tests",
        "",
        *table(
            ("test", "result", "seconds", "reason"),
            ((item.test, item.status, f"{item.seconds:.1f}", item.reason) for item in run.tests),
        ),
        "",
        "## Benchmarks",
        "",
        *table(
            ("benchmark", "result", "seconds", "reason"),
            ((item.title, item.status, f"{item.seconds:.0f}", item.reason) for item in run.benchmarks),
        ),
    ]
    for item in run.benchmarks:
        if item.status in ("passed", "failed") and item.output.strip():
            lines += ["", f"### {item.title}", "", *block(item.output)]
    if problems:
        lines += ["", "## Failures"]
        for title, reason, text in problems:
            lines += ["", f"### {title}", "", cell(reason), *(["", *block(tail(text))] if text.strip() else [])]
    return "\n".join(lines) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *(tuple(map(cell, row)) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(text: str) -> str:
    """Return text for a cell of a table: one line, with nothing that ends the cell."""
    line = " ".join(_ESCAPES.sub("", text).split())
    line = line if len(line) <= MAX_CELL else f"{line[:MAX_CELL]}…"
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def block(text: str) -> list[str]:
    """Return the lines of a code block: the text without escape sequences and blank lines at its ends."""
    body = _ESCAPES.sub("", text.replace("\r", "\n")).strip("\n")
    longest = max((len(match) for match in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", body, fence]


def tail(text: str) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.strip().splitlines()[-TAIL_LINES:])[-TAIL_CHARACTERS:]
