"""The driver runs each cell once, however its attempts end, and goes on where an earlier call ended."""

import itertools
import json

import pytest

from filch.compare.fleet import _driver, _ledger
from filch.compare.fleet._cell import CellSpec
from filch.compare.fleet._driver import run_fleet
from filch.compare.fleet._ledger import Ledger
from filch.compare.history._history import history
from filch.compare.history._ledger_rows import read_ledgers
from filch.steal import watch_phases


class FakeExecutor:
    """Ends each attempt at its second poll, with the outcomes given for its model in turn, or as close."""

    place = "test"

    def __init__(self, outcomes=None, slots=3):
        self.outcomes, self.slots = outcomes or {}, slots
        self.submitted, self.running, self.cancelled, self.most = [], {}, [], 0

    def submit(self, cell, *, timeout, gpu):
        handle = len(self.submitted)
        self.submitted.append(json.loads(json.dumps(cell))["factory"])
        self.running[handle] = 0
        self.most = max(self.most, len(self.running))
        return handle

    def poll(self, handle):
        self.running[handle] += 1
        if self.running[handle] < 2:
            return None
        del self.running[handle]
        planned = self.outcomes.get(self.submitted[handle], [])
        outcome = planned.pop(0) if planned else "close"
        if isinstance(outcome, BaseException):
            raise outcome
        return {"status": outcome, "detail": f"it was {outcome}"}

    def cancel(self, handle):
        self.cancelled.append(handle)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Don't wait; each ledger has a second of its own."""
    seconds = itertools.count()
    monkeypatch.setattr(_ledger, "now", lambda: f"2026-01-01T00:00:{next(seconds):02}Z")
    monkeypatch.setattr(_driver, "_POLL", 0.0)
    monkeypatch.setattr(_driver, "_NO_SLOTS_LIMIT", 0.05)


def _specs(*names):
    return [CellSpec(f"no.module:{name}", "", "eager") for name in names]


def _run(names, executor=None, path=None, **options):
    """Return the status of each cell, and what was submitted."""
    executor = executor or FakeExecutor()
    with Ledger(path) as ledger:
        cells = run_fleet(_specs(*names), executor, ledger, **options)
    return [cell.status for cell in cells], [name.removeprefix("no.module:") for name in executor.submitted]


def test_no_more_cells_are_submitted_than_there_are_slots():
    """They wait here, not in a queue in which a time limit might run."""
    executor = FakeExecutor(slots=2)
    statuses, submitted = _run("abcdefg", executor)

    assert (statuses, submitted) == (["close"] * 7, [*"abcdefg"])
    assert executor.most == 2


def test_outcomes_come_in_the_order_of_the_cells():
    """Whichever of them ends first; equal cells run once."""
    executor = FakeExecutor({"no.module:b": ["crashed"], "no.module:c": ["timeout"]})
    statuses, submitted = _run("abcb", executor)

    assert statuses == ["close", "crashed", "timeout", "crashed"]
    assert sorted(submitted) == ["a", "b", "c"]


def test_lost_cells_are_retried_three_times():
    """A crash and a time-out are outcomes and are not retried."""
    outcomes = {
        "no.module:a": ["lost", "lost", "lost", "close"],
        "no.module:b": ["lost"] * 5,
        "no.module:c": ["crashed", "close"],
    }
    with Ledger(None) as ledger:
        executor = FakeExecutor(outcomes)
        cells = run_fleet(_specs(*"abc"), executor, ledger)

    assert [cell.status for cell in cells] == ["close", "lost", "crashed"]
    assert sorted(row.attempt for row in ledger.rows.values()) == [1, 4, 4]
    assert len(executor.submitted) == 9


def test_cells_of_the_ledger_are_resumed(tmp_path):
    """Nothing runs twice, unless its status is asked for again."""
    path = tmp_path / "l.jsonl"
    outcomes = {"no.module:b": ["crashed"], "no.module:c": ["timeout"]}
    _run("abc", FakeExecutor(outcomes), path)

    assert _run("abcd", path=path) == (["close", "crashed", "timeout", "close"], ["d"])
    assert _run("abcd", path=path, again=("crashed",)) == (["close", "close", "timeout", "close"], ["b"])
    assert _run("abcd", path=path) == (["close", "close", "timeout", "close"], [])


def test_resumed_cells_say_so(tmp_path):
    """The table counts them."""
    path = tmp_path / "l.jsonl"
    _run("ab", path=path)
    with Ledger(path) as ledger:
        cells = run_fleet(_specs(*"abc"), FakeExecutor(), ledger)

    assert [cell.resumed for cell in cells] == [True, True, False]


def test_an_interruption_ends_what_runs_and_leaves_a_ledger(tmp_path):
    """Another call completes it, and no cell that has a row runs again."""
    path = tmp_path / "l.jsonl"
    executor = FakeExecutor({"no.module:d": [KeyboardInterrupt()]}, slots=2)
    with pytest.raises(KeyboardInterrupt):
        _run("abcdef", executor, path)
    done = [json.loads(line)["labels"]["model"] for line in path.read_text().splitlines()]

    assert done == ["no.module:a", "no.module:b"]
    assert len(executor.cancelled) == 2
    assert _run("abcdef", path=path) == (["close"] * 6, [*"cdef"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row["labels"]["model"][-1] for row in rows if row["reused"] is None) == [*"abcdef"]


def test_a_rollback_is_a_run_of_the_history(tmp_path, monkeypatch):
    """The result of the former version is reused: it has a row that names the run that compared it."""
    path, versions = tmp_path / "l.jsonl", [1]
    monkeypatch.setattr(CellSpec, "key", lambda spec, device: f"{spec.factory} {versions[-1]}")
    _run("ab", path=path)
    versions.append(2)
    _run("ab", FakeExecutor({"no.module:a": ["different"]}), path)
    assert history(read_ledgers([path])[0]).outcome == "different"
    versions.append(1)
    submitted = [_run("ab", path=path)[1] for _ in range(2)]

    rows, _ = read_ledgers([path])
    found = history(rows)
    first, second, third, fourth = found.runs
    assert submitted == [[], []]
    assert [(row.run, row.reused) for row in rows] == [
        (run, reused) for run, reused in ((first, None), (second, None), (third, first), (fourth, first)) for _ in "ab"
    ]
    assert (found.outcome, found.not_repeated, [cluster.fixed for cluster in found.clusters]) == ("close", 0, [third])


def test_cells_are_lost_if_no_node_is_left():
    """Without slots, the fleet ends after a while."""
    statuses, submitted = _run("ab", FakeExecutor(slots=0))

    assert (statuses, submitted) == (["lost", "lost"], [])


def test_progress_counts_the_cells_that_have_ended():
    """Resumed cells are not counted, and the text has the number of each outcome."""
    shown = []
    with watch_phases(lambda phases: shown.extend(map(str, phases))), Ledger(None) as ledger:
        run_fleet(_specs(*"abc"), FakeExecutor({"no.module:b": ["crashed"]}, slots=1), ledger)

    assert list(dict.fromkeys(shown)) == [
        "cell 0 of 3",
        "cell 1 of 3: starting",
        "cell 2 of 3: 0 running, 1 close",
        "cell 3 of 3: 0 running, 1 close, 1 crashed",
    ]
