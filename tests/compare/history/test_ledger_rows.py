"""Read ledgers of unknown origin: what is read, what is left out, and what is refused."""

import json
import os
from functools import partial

import pytest

from filch.compare import CompareError
from filch.compare.history import _ledger_rows
from filch.compare.history._ledger_rows import read_ledgers
from filch.steal.files._kinds import budget_of
from support.faults.ledgers import MadeLedger, run_name
from support.hostile.reports import FILES, LEDGERS, SECRET


def test_all_rows_are_read_in_the_order_of_the_runs(tmp_path):
    """Of several ledgers, in any order."""
    made = MadeLedger(runs=4)
    early, late = MadeLedger(runs=4), MadeLedger(runs=4)
    early.rows, late.rows = made.of(last=1), made.of(first=2)

    rows, notes = read_ledgers([late.write(tmp_path / "late.jsonl"), early.write(tmp_path / "early.jsonl")])

    assert [row.run for row in rows] == [row["run"] for row in made.rows]
    assert [row.error for row in rows] == [row["error"] for row in made.rows]
    assert notes == []


def test_a_torn_last_line_is_left_out_and_told(tmp_path):
    """The driver was killed while it wrote."""
    path = MadeLedger(runs=2).write(tmp_path / "ledger.jsonl")
    os.truncate(path, path.stat().st_size - 20)

    rows, notes = read_ledgers([path])

    assert len(rows) == 23
    assert notes == [f"The last line of {str(path)!r} is incomplete and was left out."]


def test_a_last_line_without_an_end_is_read_if_it_is_complete(tmp_path):
    """An editor may have removed the end; a part of a row is never JSON."""
    path = MadeLedger(runs=1).write(tmp_path / "ledger.jsonl")
    os.truncate(path, path.stat().st_size - 1)

    rows, notes = read_ledgers([path])

    assert (len(rows), notes) == (12, [])


def test_a_damaged_line_is_left_out_and_told(tmp_path):
    """A disk was full, and the next run appended to the incomplete line."""
    path = MadeLedger(runs=1).write(tmp_path / "ledger.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], lines[4][:50] + lines[5], *lines[6:]]))

    rows, notes = read_ledgers([path])

    assert len(rows) == 10
    assert notes == [f"Damaged lines of {str(path)!r} were left out: 5."]


@pytest.mark.parametrize(("statuses", "valid"), [(("lost", "close"), "close"), (("crashed", "close"), "crashed")])
def test_the_first_row_of_a_key_in_a_run_counts_unless_it_is_lost(statuses, valid, tmp_path):
    """A cell whose worker disappeared is tried again."""
    made = MadeLedger(runs=1)
    made.rows = [made.rows[0] | {"status": status} for status in statuses]

    ((row,), _) = read_ledgers([made.write(tmp_path / "ledger.jsonl")])

    assert row.status == valid


def test_a_resumed_run_counts_what_was_changed_since(tmp_path):
    """The key of the later row is another one."""
    made = MadeLedger(runs=1)
    made.rows = [made.rows[0], made.rows[0] | {"key": "other", "status": "different"}]

    ((row,), _) = read_ledgers([made.write(tmp_path / "ledger.jsonl")])

    assert row.status == "different"


def test_rows_without_an_environment_are_read(tmp_path):
    """The worker was lost before it could say where it ran."""
    made = MadeLedger(runs=1)
    made.rows = [made.rows[0] | {"environment": None, "status": "lost", "error": None}]

    ((row,), _) = read_ledgers([made.write(tmp_path / "ledger.jsonl")])

    assert row.environment == {}


@pytest.mark.parametrize("case", [*FILES, *LEDGERS])
def test_a_hostile_ledger_is_refused_with_one_sentence(case, tmp_path):
    """This holds for hostile contents and for paths that are no regular files."""
    write, reason = (FILES | LEDGERS)[case]
    write(tmp_path / "ledger.jsonl")

    with pytest.raises(CompareError, match=reason) as caught:
        read_ledgers([tmp_path / "ledger.jsonl"])

    message = str(caught.value)
    assert message.isprintable() and len(message) < 700 and SECRET not in message


def test_ledgers_together_are_limited(tmp_path, monkeypatch):
    """In bytes and in rows."""
    paths = [MadeLedger(runs=1).write(tmp_path / f"{name}.jsonl") for name in "ab"]

    size = paths[0].stat().st_size + 100
    for limit, message in (({"items": 23}, "more than 23 lines"), ({"size": size}, f"at most {size:,} are read")):
        monkeypatch.setattr(_ledger_rows, "budget_of", partial(budget_of, **limit))
        with pytest.raises(CompareError, match=message):
            read_ledgers(paths)


def test_empty_lines_count_as_lines(tmp_path):
    """A file of line ends takes no more time than one with as many rows."""
    (tmp_path / "ledger.jsonl").write_bytes(b"\n" * 2**19)
    with pytest.raises(CompareError, match=r"can't read the ledgers up to .*: it has more than 262,144 lines"):
        read_ledgers([tmp_path / "ledger.jsonl"])


def test_the_time_of_a_run_is_not_a_part_of_its_environment(tmp_path):
    """It differs in each run; else, rows share their environment in memory."""
    rows, _ = read_ledgers([MadeLedger(runs=2).write(tmp_path / "ledger.jsonl")])

    assert {id(row.environment) for row in rows} == {id(rows[0].environment)}
    assert json.dumps(dict(rows[0].environment)).count(run_name(0)) == 0
