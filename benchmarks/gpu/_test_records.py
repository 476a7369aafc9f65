"""A plugin of pytest that records the tests as they start and end, so that a crash does not lose those before it.

The environment variable `GPU_TEST_RECORDS` names the file: one JSON object per line, with `test` (the node id) and
`event` (`collected`, `started`, or the outcome with `seconds`, `reason` and `text`). Tests that were started in an
earlier run with the same file are left out.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest  # `_tests` reads the records where pytest may be missing

RECORDS = Path(os.environ.get("GPU_TEST_RECORDS", os.devnull))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records in a file, without one that a killed process did not finish."""
    records: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records


def _record(test: str, event: str, **values: Any) -> None:
    with RECORDS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "event": event, **values}) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that were started before."""
    started = {record["test"] for record in read_records(RECORDS) if record["event"] != "collected"}
    items[:] = [item for item in items if item.nodeid not in started]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Record what will run."""
    for item in session.items:
        _record(item.nodeid, "collected")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Record a start."""
    _record(nodeid, "started")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record an outcome: of the test itself, or of a fixture that did not pass."""
    if report.when == "call" or report.outcome != "passed":
        _record(
            report.nodeid, report.outcome, seconds=report.duration, reason=_reason(report), text=report.longreprtext
        )


def _reason(report: pytest.TestReport) -> str:
    """Return why a test did not pass, in one line."""
    details: Any = report.longrepr
    if report.outcome == "passed":
        return ""
    if isinstance(details, tuple):  # of a skipped test: file, line and reason
        return str(details[2]).removeprefix("Skipped: ")
    message = getattr(getattr(details, "reprcrash", None), "message", None) or str(details)
    return " ".join(str(message).split())
