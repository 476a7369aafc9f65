"""The commands `fleet`, `matrix` and `sweep` with an executor; all cells are in the ledger, so that nothing runs."""

import json

import pytest

from filch.compare.fleet._cell import local_device
from filch.compare.fleet._ledger import Ledger, row_of
from filch.compare.fleet._spec import read_fleet
from support.processes.commands import run

FLEET = """
[[matrix]]
models = ["models/a.py:make"]
backends = ["eager", "reference"]
dtypes = ["float32"]
options = {dtype = "float16"}
tolerance = 1e-3

[[sweep]]
model = "models/a.py:make"
dims = {batch = [3]}
backends = ["eager"]
lower_precision = true
"""
BLAME = {"value": "y", "module": "m", "operator": "Add", "times_rounding": 12.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a fleet and, below it, a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleets" / "models").mkdir(parents=True)
    (tmp_path / "fleets" / "models" / "a.py").write_text("def make(): ...\n")
    (tmp_path / "fleets" / "f.toml").write_text(FLEET)
    return tmp_path


def _fill(path, specs, *statuses):
    with Ledger(path) as ledger:
        for spec, status in zip(specs, statuses, strict=True):
            outcome = {"status": status, "detail": f"{status} in the ledger", "error": 0.5, "blame": BLAME}
            key = spec.key(local_device())
            ledger.add(row_of(key, spec.labels, outcome, run=ledger.run, attempt=1))


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (("close", "close", "close"), 0),
        (("close", "crashed", "close"), 2),
        (("timeout", "lost", "failed"), 2),
        (("close", "crashed", "different"), 1),
    ],
)
def test_the_exit_code_is_that_of_a_matrix(folder, capsys, statuses, code):
    """What crashed, exceeded its time or was lost could not be compared."""
    _fill(folder / "fleets" / "f.jsonl", read_fleet("fleets/f.toml"), *statuses)

    assert run("fleet", "fleets/f.toml", "--json") == code
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["status"], cell["resumed"]) for cell in cells] == [(status, True) for status in statuses]
    assert cells[0]["blame"] == BLAME


def test_the_table_has_a_column_for_each_label_of_any_cell(folder, capsys):
    """A matrix has a dtype, a sweep a size; the reason of what could not be compared stands below."""
    _fill(folder / "fleets" / "f.jsonl", read_fleet("fleets/f.toml"), "close", "crashed", "lost")
    run("fleet", "fleets/f.toml")
    lines = capsys.readouterr().out.splitlines()

    assert lines[0] == "INCOMPLETE: 3 comparisons: 1 close, 1 crashed, 1 lost; resumed: 3 of them ran"
    assert lines[2].split() == ["model", "dtype", "backend", "batch", "error", "first", "divergence"]
    assert lines[6].split()[:3] == ["models/a.py:make", "eager", "3"]
    assert "crashed in the ledger" in lines


@pytest.mark.parametrize(
    ("statuses", "command"),
    [
        (
            ("crashed", "different", "close"),
            "filch check fleets/models/a.py:make -b reference --dtype float32 --option dtype=float16 --tolerance 0.001",
        ),
        (
            ("close", "timeout", "failed"),
            "filch check fleets/models/a.py:make -b eager --dim batch=3 --lower-precision",
        ),
        (("close", "close", "close"), None),
    ],
)
def test_the_next_command_examines_the_first_that_differs(folder, capsys, statuses, command):
    """With the options of the TOML file, and the path from the current folder."""
    _fill(folder / "fleets" / "f.jsonl", read_fleet("fleets/f.toml"), *statuses)
    run("fleet", "fleets/f.toml", "--json")

    assert (json.loads(capsys.readouterr().out)["command"] or None) == command


def test_a_matrix_and_a_sweep_take_a_ledger(folder, capsys):
    """The next command of a matrix does not repeat what says where it runs."""
    matrix, _, sweep = read_fleet("fleets/f.toml")
    _fill(folder / "l.jsonl", [matrix, sweep], "different", "close")
    options = ("-b", "eager", "--executor", "processes:1", "--ledger", "../l.jsonl", "--json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "fleets")
        judged = ("--dtype", "float32", "--option", "dtype=float16", "--tolerance", "1e-3")
        assert run("matrix", "models/a.py:make", *judged, *options) == 1
        found = json.loads(capsys.readouterr().out)
        assert run("sweep", "models/a.py:make", "--dim", "batch=3", "--lower-precision", *options) == 0
        swept = json.loads(capsys.readouterr().out)

    assert found["command"].startswith("filch check --option dtype=float16 --tolerance 1e-3 models/a.py:make ")
    assert "processes" not in found["command"] and "l.jsonl" not in found["command"]
    assert [cell["labels"] for cell in swept["cells"]] == [{"batch": "3"}]


WRONG = {
    "no executor": (["matrix", "models/a.py:make", "--ledger", "l"], "--ledger needs an executor"),
    "no executor for a time": (["sweep", "a:b", "--dim", "n=1", "--timeout", "3"], "--timeout needs an executor"),
    "unknown executor": (["fleet", "f.toml", "--executor", "slrum:p"], "there is no executor 'slrum:p'"),
    "unknown status": (["fleet", "f.toml", "--again", "crash"], "--again takes statuses: crashed, timeout, lost"),
    "no spec": (["fleet", "gone.toml"], "can't read 'gone.toml'"),
    "no model": (["matrix", "gone.py:make", "--executor", "processes:1"], "there is no file 'gone.py'"),
    "unknown dtype": (["matrix", "a:b", "--dtype", "fp16", "--executor", "ray"], "did you mean 'float16'?"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_anything_runs(folder, monkeypatch, capsys, name):
    """The exit code is 2, and no ledger is made."""
    monkeypatch.chdir(folder / "fleets")
    arguments, message = WRONG[name]

    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
    assert [*folder.rglob("*.jsonl")] == []
