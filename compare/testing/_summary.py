"""What all tests of a run came to, as a Markdown table of tests and backends."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ._expected_failures import without_backend

_PREFIX = "filch."
STALE = "filch_stale"


@dataclass(frozen=True)
class Result:
    """What one comparison of a test came to.

    Attributes:
        test: the test, without its backend.
        told: what the fixture said of it: `backend`, `result`, `worst_error`, `first_divergence` …
        is_expected: whether the test is expected to fail.
    """

    test: str
    told: dict[str, str]
    is_expected: bool

    @property
    def cell(self) -> str:
        """The result in short."""
        said, error = self.told.get("result", ""), self.told.get("worst_error", "")
        marked = {"close": error or "close", "different": f"**{error or 'differs'}**", "failed": "**failed**"}
        text = marked.get(said, said)
        return f"{text} (expected)" if self.is_expected and said != "close" else text


class Summary:
    """Gathers results from the reports of the tests, wherever they ran, and writes them at the end.

    Under xdist, the process that all results come to is the one that has one.

    Attributes:
        stale: what is wrong with the expected failures.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: list[Result] = []
        self._golden: list[str] = []
        self.stale: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what the fixture said, as soon as all is said."""
        if report.when != "call" and report.outcome == "passed":
            return
        for told in _groups(report):
            if golden := told.get("golden"):
                self._golden.append(golden)
            if "result" in told:
                test = without_backend(report.nodeid, told["backend"])
                self._results.append(Result(test, told, hasattr(report, "wasxfail")))

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Say which golden dumps were stored, and what is wrong with the expected failures."""
        if self._golden:
            terminalreporter.section("filch: golden dumps")
            for line in self._golden:
                terminalreporter.line(line)
        for line in sorted(self.stale):
            terminalreporter.line(f"ERROR {line}: mend or remove the entry", red=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of xdist found."""
        self.stale.update(getattr(node, "workeroutput", {}).get(STALE, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the table; expected failures of tests that are not there fail the run."""
        if self.stale and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        given = os.environ.get("GITHUB_STEP_SUMMARY")
        path = self._path or (Path(given) if given else None)
        if path is not None and self._results:
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write("\n".join(_lines(self._results)) + "\n")


def _groups(report: pytest.TestReport) -> list[dict[str, str]]:
    """What was said of each comparison; `backend` begins one."""
    groups: list[dict[str, str]] = []
    for name, value in report.user_properties:
        if not name.startswith(_PREFIX):
            continue
        short = name.removeprefix(_PREFIX)
        if short in ("backend", "golden") or not groups:
            groups.append({})
        groups[-1][short] = str(value)
    return groups


def _lines(results: list[Result]) -> list[str]:
    from ..rendering._markdown import Markup, escaped, table  # noqa: PLC0415  loads torch, which each start of pytest would do

    backends = list(dict.fromkeys(result.told["backend"] for result in results))
    cells: dict[tuple[str, str], list[str]] = {}
    for result in results:
        cells.setdefault((result.test, result.told["backend"]), []).append(result.cell)
    tests = list(dict.fromkeys(result.test for result in results))
    rows = [[test, *(Markup(", ".join(cells.get((test, backend), []))) for backend in backends)] for test in tests]
    lines = ["### Filch: tests and backends, by the largest error", "", *table(["test", *backends], rows), ""]
    told = [result for result in results if result.told.get("first_divergence")]
    return lines + [
        f"- {escaped(result.test)} on {escaped(result.told['backend'])}: {escaped(result.told['first_divergence'])}"
        for result in told
    ]
