"""A summary of a test run: a Markdown table of tests and backends."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ._expected_failures import without_backend

_PREFIX = "filch."
STALE = "filch_stale"


@dataclass(frozen=True)
class ComparisonResult:
    """The result of one comparison of a test.

    Attributes:
        test: the test, without its backend.
        properties: those that the fixture recorded: `backend`, `result`, `worst_error`, `first_divergence` …
        is_expected: whether the test is expected to fail.
    """

    test: str
    properties: dict[str, str]
    is_expected: bool

    @property
    def cell(self) -> str:
        """The text of the result's cell in the table."""
        result, error = self.properties.get("result", ""), self.properties.get("worst_error", "")
        texts = {"close": error or "close", "different": f"**{error or 'differs'}**"}
        texts |= {"incomplete": "**incomplete**", "failed": "**failed**"}
        text = texts.get(result, result)
        return f"{text} (expected)" if self.is_expected and result != "close" else text


class Summary:
    """Collects results from the reports of the tests and writes them at the end of the run.

    Under xdist only the controller has one, since it receives the reports of all workers.

    Attributes:
        stale: error messages about the expected failures.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: list[ComparisonResult] = []
        self._golden: list[str] = []
        self.stale: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the properties of a test once it has ended."""
        if report.when != "call" and report.outcome == "passed":  # a setup or teardown without a fault
            return
        for properties in _comparisons(report):
            if golden := properties.get("golden"):
                self._golden.append(golden)
            if "result" in properties:
                test = without_backend(report.nodeid, properties["backend"])
                self._results.append(ComparisonResult(test, properties, hasattr(report, "wasxfail")))

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print which golden dumps were stored, and the errors in the table of expected failures."""
        if self._golden:
            terminalreporter.section("filch: golden dumps")
            for line in self._golden:
                terminalreporter.line(line)
        for line in sorted(self.stale):
            terminalreporter.line(f"ERROR {line}: correct or remove the entry", red=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the stale entries that a worker of xdist found."""
        self.stale.update(getattr(node, "workeroutput", {}).get(STALE, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the table; fail the run if a test that is expected to fail does not exist."""
        if self.stale and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        default = os.environ.get("GITHUB_STEP_SUMMARY")
        path = self._path or (Path(default) if default else None)
        if path is not None and self._results:
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write("\n".join(_lines(self._results)) + "\n")


def _comparisons(report: pytest.TestReport) -> list[dict[str, str]]:
    """Return the properties of each comparison, which `backend` starts; `golden`, of an update, starts a group, too."""
    groups: list[dict[str, str]] = []
    for name, value in report.user_properties:
        if not name.startswith(_PREFIX):
            continue
        short = name.removeprefix(_PREFIX)
        if short in ("backend", "golden") or not groups:
            groups.append({})
        groups[-1][short] = str(value)
    return groups


def _lines(results: list[ComparisonResult]) -> list[str]:
    """Return the lines of the summary: a table with a row for each test, and the first divergences."""
    from ..rendering._markdown import Markup, escaped, table  # noqa: PLC0415  loads torch, which each start of pytest would do

    backends = list(dict.fromkeys(result.properties["backend"] for result in results))
    cells = defaultdict[str, dict[str, list[str]]](lambda: {backend: [] for backend in backends})
    for result in results:
        cells[result.test][result.properties["backend"]].append(result.cell)
    rows = [[test, *(Markup(", ".join(texts)) for texts in row.values())] for test, row in cells.items()]
    lines = ["### Filch: tests and backends, by the largest error", "", *table(["test", *backends], rows), ""]
    return lines + [
        f"- {escaped(result.test)} on {escaped(result.properties['backend'])}: {escaped(first)}"
        for result in results
        if (first := result.properties.get("first_divergence"))
    ]
