"""Run the GPU-marked tests, each file in a process of its own, and again without the test that crashed it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _steps import Result, Status, Step, run_step
from _test_records import read_records

HERE = Path(__file__).resolve().parent
MARK = "pytest.mark.gpu"
HANGING_SECONDS = 45  # after which pytest writes where a test is


@dataclass(frozen=True)
class TestResult:
    """What became of a test; see `Result`.

    Attributes:
        test: its node id.
        status: see `Result`.
        reason: see `Result`.
        seconds: how long it took.
        text: what pytest, or the process that crashed, has written.
    """

    test: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    text: str = ""


def marked_files(root: Path) -> list[Path]:
    """Return the files of tests with the mark, in alphabetical order; those of this runner only write such files."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [path for path in files if path.parent.name != "house" and MARK in path.read_text("utf-8")]


def run_test_file(path: Path, root: Path, limit: float, left: float) -> list[TestResult]:
    """Run the marked tests of a file.

    A test that crashes or hangs has failed, and the tests after it run in a new process. A file without results is one
    failed result, with the reason.

    Args:
        path: the file.
        root: the root folder of the repository.
        limit: the seconds that a process may take.
        left: the seconds that all of them may take.
    """
    title = path.relative_to(root).as_posix()
    with tempfile.TemporaryDirectory(prefix="filch-gpu-") as name:
        records = Path(name) / "records.jsonl"
        search = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = ("-m", "gpu", "-p", "_test_records", "-p", "no:cacheprovider", "-o", "addopts=")
        options += ("--import-mode=importlib", "-o", f"faulthandler_timeout={HANGING_SECONDS}")
        # A warning about the device is no failure of what is tested.
        options += ("-W", "default", "-q", "-ra")
        step = Step(
            title,
            (sys.executable, "-m", "pytest", str(path), *options),
            limit,
            {"PYTHONPATH": search, "GPU_TEST_RECORDS": str(records)},
            root,
        )
        ended: list[TestResult] = []
        pending: list[TestResult] = []
        while True:
            records.write_text("".join(f"{_started(item.test)}\n" for item in ended), "utf-8")
            done = run_step(step, left)
            left -= done.seconds
            if done.status == "not run" and pending:
                return ended + pending
            results = _results(records, {item.test for item in ended}, done)
            pending = [item for item in results if item.status == "not run"]
            ended += [item for item in results if item.status != "not run"]
            if not pending or len(pending) == len(results):
                return ended + pending


def _started(test: str) -> str:
    return json.dumps({"test": test, "event": "started"})


def _results(records: Path, known: set[str], done: Result) -> list[TestResult]:
    """Return the results of one process: of each test that it collected."""
    events = [event for event in read_records(records) if event["test"] not in known]
    last = {event["test"]: event for event in events}  # a fixture may fail after its test has passed
    text = f"{done.output}\n{done.errors}"
    if not last:
        status = done.status if done.status in ("not run", "skipped") else "failed"
        return [TestResult(done.title, status, done.reason or "pytest collected no test", done.seconds, text)]
    results = [_result(test, event, done, text) for test, event in last.items()]
    if done.status == "failed" and all(item.status in ("passed", "skipped") for item in results):
        results.append(TestResult(f"{done.title}, after its tests", "failed", done.reason, text=text))
    return results


def _result(test: str, event: dict[str, object], done: Result, text: str) -> TestResult:
    if event["event"] == "started":
        return TestResult(test, "failed", done.reason or "the process ended during this test", done.seconds, text)
    if event["event"] == "collected":
        return TestResult(test, "not run", f"the process before it: {done.reason}", 0.0, text)
    status: Status = "passed" if event["event"] == "passed" else "skipped" if event["event"] == "skipped" else "failed"
    return TestResult(test, status, str(event["reason"]), float(str(event["seconds"])), str(event["text"]))


def counts(results: Sequence[Result | TestResult]) -> str:
    """Return how many passed, failed, were skipped and did not run, as text."""
    found = [item.status for item in results]
    return ", ".join(
        f"{found.count(status)} {status}" for status in ("passed", "failed", "skipped", "not run") if status in found
    )
