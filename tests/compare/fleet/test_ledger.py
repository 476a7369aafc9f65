"""The ledger keeps each row that was written, whatever kills its writer."""

import json
import logging
import os

import pytest

from filch.compare import CompareError
from filch.compare.fleet._ledger import Ledger, row_of

BLAME = {"value": "v", "module": None, "operator": "MatMul", "times_rounding": 9.5}


def _row(key, run, status="close", **outcome):
    return row_of(key, {"model": "m", "dim:batch": "2"}, {"status": status, **outcome}, run=run, attempt=1)


def _fill(path, *keys):
    with Ledger(path) as ledger:
        for key in keys:
            ledger.add(_row(key, ledger.run, seconds=1.5, environment={"torch": "2"}))
    return ledger


def test_rows_are_read_as_they_were_written(tmp_path):
    """Also places of divergences and errors that are no numbers in JSON."""
    path = tmp_path / "l.jsonl"
    with Ledger(path) as ledger:
        ledger.add(_row("a", ledger.run, "different", error=float("inf"), blame=BLAME, detail="x\ny"))

    with Ledger(path) as again:
        assert again.rows == ledger.rows
    assert {*json.loads(path.read_text())} == {
        *("filch_ledger", "key", "run", "time", "seconds", "labels", "status", "error", "detail", "blame", "attempt"),
        *("reused", "gaps", "environment"),
    }


@pytest.mark.parametrize("kept", [1, 20, -2, -1])
def test_a_torn_last_line_is_removed(tmp_path, caplog, kept):
    """However much of the line was written; the rows before it and those that follow are whole."""
    path = tmp_path / "l.jsonl"
    with Ledger(path) as ledger:
        for key in "ab":
            ledger.add(_row(key, "2026-01-01T00:00:00Z"))
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + (second + b"\n")[:kept])

    with caplog.at_level(logging.WARNING, "filch"), Ledger(path) as ledger:
        ledger.add(_row("c", "2026-01-01T00:00:00Z"))
        assert [*ledger.rows] == ["a", "c"]
    assert "is incomplete and is removed" in caplog.text
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "c"]


def test_the_first_row_of_a_run_and_the_last_run_count(tmp_path):
    """A second row of one run is ignored; another run replaces the row."""
    path = tmp_path / "l.jsonl"
    with Ledger(path) as ledger:
        ledger.add(_row("a", "2026-01-01T00:00:00Z", "crashed"))
        ledger.add(_row("a", "2026-01-01T00:00:00Z", "close"))
        ledger.add(_row("b", "2026-01-01T00:00:00Z", "lost"))
        ledger.add(_row("b", "2026-01-02T00:00:00Z", "close"))

    with Ledger(path) as again:
        assert {key: row.status for key, row in again.rows.items()} == {"a": "crashed", "b": "close"}


def test_runs_that_start_within_a_second_are_told_apart(tmp_path):
    """Else a row of the second run would be taken for a second row of the first."""
    runs = [_fill(tmp_path / "l.jsonl", "a").run for _ in range(2)]

    assert runs[0] != runs[1]


def test_two_fleets_cant_write_to_one_ledger(tmp_path):
    """Each would run what the other one is running."""
    with Ledger(tmp_path / "l.jsonl"), pytest.raises(CompareError, match="another fleet is writing to the ledger"):
        Ledger(tmp_path / "l.jsonl")
    Ledger(tmp_path / "l.jsonl").close()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("no json\n", "is not a ledger: line 1"),
        ("a line without an end", "is not a ledger: line 1"),
        ('{"filch_bisect_journal": 1', "is not a ledger: line 1"),
        ('{"filch_bisect_journal": 1}\n', "is not a ledger: line 1"),
        (None, "can't use the ledger"),
    ],
)
def test_another_file_is_refused(tmp_path, contents, message):
    """A file that is no ledger, and a folder, stay as they are."""
    path = tmp_path / "l.jsonl"
    path.mkdir() if contents is None else path.write_text(contents)

    with pytest.raises(CompareError, match=message):
        Ledger(path)
    assert contents is None or path.read_text() == contents


def test_a_later_version_is_refused(tmp_path):
    """The message names both versions."""
    path = tmp_path / "l.jsonl"
    _fill(path, "a")
    path.write_text(path.read_text().replace('"filch_ledger": 1', '"filch_ledger": 2'))

    with pytest.raises(CompareError, match="has version 2, and 1 is supported"):
        Ledger(path)


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    """A row that is not written whole must not count as written."""
    with Ledger(tmp_path / "l.jsonl") as ledger:
        monkeypatch.setattr(os, "write", lambda file, line: len(line) - 1)
        with pytest.raises(
            CompareError, match=r"the disk of the ledger .* is full: [\d,]+ bytes are free on the disk of"
        ):
            ledger.add(_row("a", ledger.run))
