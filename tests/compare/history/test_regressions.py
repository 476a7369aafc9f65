"""Planted regressions in the history of 30 runs of 12 cells, and ledgers of unknown origin."""

import json
import os
from functools import partial

import pytest

from filch.compare import CompareError
from filch.compare.history import _ledger_rows
from filch.compare.history._history import history
from filch.compare.history._ledger_rows import read_ledgers
from filch.compare.history._regressions import Change, without_layers
from filch.steal.files._kinds import budget_of
from support.faults.ledgers import MadeLedger, run_name
from support.hostile.reports import FILES, LEDGERS, SECRET
from support.processes.commands import run
from support.thorough import slow

TORCH = Change("torch", "2.12.0", "2.13.0")


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a ledger and returns its history."""

    def history_of(made):
        rows, notes = read_ledgers([made.write(tmp_path / "ledger.jsonl")])
        return history(rows, notes=notes)

    return history_of


def test_a_clean_history_is_silent(read):
    """Errors at the rounding level vary, and torch is upgraded; nothing is reported."""
    made = MadeLedger()
    made.upgrade(15, torch="2.13.0")

    found = read(made)

    assert (found.clusters, found.not_run, found.flaky, found.never_close) == ((), (), (), ())
    assert found.headline == "no regression; 12 cells in 30 runs: 12 close"
    assert found.close


def test_a_regression_is_dated_and_blamed(read):
    """In the middle: its run, the run before, the module, and what changed between the two."""
    made = MadeLedger()
    made.upgrade(9, onnx="1.19.1")
    made.upgrade(15, torch="2.13.0")
    made.spoil(made.of("models.py:bert", "inductor", "float32", first=15), "encoder.layer.3.norm", "LayerNorm")

    (cluster,) = read(made).clusters

    (found,) = cluster.regressions
    assert found.labels == {"model": "models.py:bert", "backend": "inductor", "dtype": "float32"}
    assert (found.last_good, found.first_bad, found.fixed) == (run_name(14), run_name(15), None)
    assert (found.status, found.error_before, found.error) == ("different", 3e-7, 0.03)
    assert found.blame is not None and (found.blame.module, found.blame.operator) == (
        "encoder.layer.3.norm",
        "LayerNorm",
    )
    assert found.changes == (TORCH,)
    assert (cluster.title, cluster.modules) == ("LayerNorm in encoder.layer.*.norm", ("encoder.layer.*.norm",))


@pytest.mark.parametrize("first", [1, 15, 29])
def test_a_regression_is_found_in_any_run(first, read):
    """In the second one, in the middle and in the last one."""
    made = MadeLedger()
    made.spoil(made.of("models.py:gpt2", first=first), "attn", "MatMul")

    (cluster,) = read(made).clusters

    assert (cluster.last_good, cluster.first_bad) == (run_name(first - 1), run_name(first))
    assert len(cluster.regressions) == 4


def test_two_culprits_in_one_run_are_two_clusters(read):
    """They began together, but neither the operators nor the modules are the same."""
    made = MadeLedger()
    made.spoil(made.of("models.py:bert", first=15), "encoder.layer.3.norm", "LayerNorm")
    made.spoil(made.of("models.py:llama", first=15), "model.layers.0.mlp", "MatMul")

    clusters = read(made).clusters

    assert sorted(cluster.title for cluster in clusters) == [
        "LayerNorm in encoder.layer.*.norm",
        "MatMul in model.layers.*.mlp",
    ]
    assert [len(cluster.regressions) for cluster in clusters] == [4, 4]


def test_an_operator_in_many_models_is_one_cluster(read):
    """Its modules have other names in each model."""
    made = MadeLedger()
    for model, module in (("bert", "encoder.layer.3.act"), ("gpt2", "h.0.mlp.act"), ("llama", "layers.1.act")):
        made.spoil(made.of(f"models.py:{model}", "inductor", "float32", first=15), module, "Gelu")

    (cluster,) = read(made).clusters

    assert {one.labels["model"][10:] for one in cluster.regressions} == {"bert", "gpt2", "llama"}
    assert cluster.title == "Gelu in encoder.layer.*.act and 2 other modules"


def test_a_module_on_many_backends_is_one_cluster(read):
    """Each backend has its own operator, and the first layer that differs is another one."""
    made = MadeLedger()
    made.spoil(made.of("models.py:bert", "inductor", first=15), "layers.3.norm", "triton_fused")
    made.spoil(made.of("models.py:bert", "onnxruntime-cpu", first=15), "layers.11.norm", "LayerNorm")

    (cluster,) = read(made).clusters

    assert (cluster.operators, cluster.modules) == (("triton_fused", "LayerNorm"), ("layers.*.norm",))


@pytest.mark.parametrize(("first", "second", "found"), [(15, "Gelu", [15, 15]), (20, "LayerNorm", [20, 5])])
def test_modules_of_the_same_name_in_two_models_are_two_clusters(read, first, second, found):
    """Names like `norm` say nothing across models; of two runs, the newest is first, each with its own cause."""
    made = MadeLedger()
    made.spoil(made.of("models.py:bert", first=found[1]), "norm", "LayerNorm")
    made.spoil(made.of("models.py:gpt2", first=first), "norm", second)

    assert [cluster.first_bad for cluster in read(made).clusters] == [run_name(number) for number in found]


def test_failures_with_the_same_message_are_one_cluster(read):
    """Nothing is blamed; numbers in the message may differ."""
    made = MadeLedger()
    for row in made.of("inductor", first=15):
        row.update(
            status="failed", error=None, detail=f"export failed: node {len(row['labels']['model'])} has no shape"
        )

    (cluster,) = read(made).clusters

    assert len(cluster.regressions) == 6 and cluster.title.startswith("export failed: node ")
    assert {regression.status for regression in cluster.regressions} == {"failed"}


def test_a_flaky_cell_is_not_a_regression(read):
    """It is wrong in five runs of one key, also in the last one, and is listed apart."""
    made = MadeLedger()
    for number in (4, 7, 8, 20, 29):
        made.spoil(made.of("models.py:bert", "inductor", "float16", first=number, last=number), "attn", "MatMul")

    found = read(made)

    assert found.clusters == () and found.never_close == ()
    (flaky,) = found.flaky
    assert (flaky.changes, flaky.close, flaky.bad, flaky.last_change) == (7, 25, 5, run_name(29))


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_result_that_is_reused_shows_nothing_about_flakiness(read, is_reused):
    """Two ledgers have other results of one key, and each reuses its own; compared anew, the cell would be flaky."""
    made = MadeLedger(runs=6)
    cell = made.of("models.py:bert", "inductor", "float32")
    made.spoil(cell[1::2], "attn", "MatMul")
    for number, row in enumerate(cell[2:]):
        row["reused"] = cell[number % 2]["run"] if is_reused else None

    assert len(read(made).flaky) == (not is_reused)


def test_a_regression_of_a_cell_that_was_flaky_is_found(read):
    """With the versions since the upgrade, it is wrong in every run; a flaky history must not hide that."""
    made = MadeLedger()
    for number in (4, 7, 14):
        made.spoil(made.of("models.py:bert", "inductor", "float16", first=number, last=number), "attn", "MatMul")
    made.upgrade(15, torch="2.13.0")
    made.spoil(made.of("models.py:bert", "inductor", "float16", first=15), "norm", "LayerNorm")

    (cluster,) = read(made).clusters

    (found,) = cluster.regressions
    assert (found.last_good, found.first_bad, found.flaky_before) == (run_name(13), run_name(15), True)


@pytest.mark.parametrize(
    ("is_recorded", "told"), [(True, "Nothing changed that Filch records"), (False, "Changed: unknown")]
)
def test_a_change_that_nothing_recorded_explains_is_told(read, is_recorded, told):
    """The key is equal; of an environment that was not recorded, no claim is made about what changed."""
    made = MadeLedger()
    for row in made.of(last=14) if not is_recorded else ():
        row["environment"] = {}
    made.spoil(made.of("models.py:bert", first=15), "norm", "LayerNorm")

    found = read(made)

    assert found.clusters[0].regressions[0].same_key
    assert (found.clusters[0].changes is None) == (not is_recorded)
    assert told in found.table(width=200)


def test_a_change_of_the_code_is_told(read):
    """The environment is the same, the key is not."""
    made = MadeLedger()
    for row in made.of("models.py:bert", first=15):
        row["key"] += " changed"
    made.spoil(made.of("models.py:bert", first=15), "norm", "LayerNorm")

    assert "The environment is the same: the code, the options or the sizes changed." in read(made).table(width=200)


def test_a_fixed_regression_is_kept_apart(read):
    """It has its end, and is no reason for an exit code of 1."""
    made = MadeLedger()
    made.spoil(made.of("models.py:bert", first=10, last=14), "norm", "LayerNorm")
    made.upgrade(12, torch="2.13.0")

    found = read(made)

    assert [cluster.fixed for cluster in found.clusters] == [run_name(15)]
    assert found.open_clusters == ()
    assert found.headline.startswith("no regression;")


@pytest.mark.parametrize("status", ["crashed", "timeout", "lost", "missing"])
def test_cells_that_could_not_run_are_no_regressions(status, read):
    """They are listed with the first run, the last one in which they ran, and the reason."""
    made = MadeLedger()
    made.upgrade(15, torch="2.13.0")
    for row in made.of("inductor", first=15):
        row.update(status=status, error=None, detail="why")

    found = read(made)

    assert found.clusters == ()
    (stopped,) = found.not_run
    assert (stopped.since, stopped.last_ran, stopped.status, stopped.detail, stopped.changes) == (
        *(run_name(15), run_name(14), status, "why", (TORCH,)),
    )
    assert len(stopped.cells) == 6


def test_a_regression_stays_open_if_the_cell_then_crashes(read):
    """A crash is no fix, and neither is a run in between that hides the first bad one."""
    made = MadeLedger()
    made.spoil(made.of("models.py:bert", first=16), "norm", "LayerNorm")
    for row in [*made.of("models.py:bert", first=15, last=15), *made.of("models.py:bert", first=20)]:
        row.update(status="crashed", error=None)

    found = read(made)

    assert [(cluster.last_good, cluster.first_bad) for cluster in found.open_clusters] == [(run_name(14), run_name(16))]
    assert [stopped.since for stopped in found.not_run] == [run_name(20)]


def test_cells_that_were_always_wrong_are_listed_apart(read):
    """There is no last good run, so they are no regressions."""
    made = MadeLedger()
    made.spoil(made.of("models.py:bert", "inductor", "float16"), "norm", "LayerNorm")

    found = read(made)

    assert found.clusters == ()
    assert [*found.never_close] == [{"model": "models.py:bert", "backend": "inductor", "dtype": "float16"}]


def test_cells_that_are_not_in_the_latest_run_are_counted(read):
    """A resumed ledger has no row for what is done; its last outcome counts, and the text says so."""
    made = MadeLedger()
    made.spoil(made.of("models.py:bert", first=15), "norm", "LayerNorm")
    left_out = made.of("models.py:bert", first=25)
    made.rows = [row for row in made.rows if row not in left_out]

    found = read(made)

    assert len(found.open_clusters) == 1
    assert "4 cells not compared in the latest run, 2026-10-30 03:00" in found.table(width=200)


@pytest.mark.parametrize(
    ("module", "expected"), [("layers.12.norm1", "layers.*.norm1"), ("0", "*"), ("conv2d", "conv2d"), ("", "")]
)
def test_numbers_of_layers_are_left_out(module, expected):
    """Digits in a name stay."""
    assert without_layers(module) == expected


def planted(path):
    """Write a ledger with a regression of two cells."""
    made = MadeLedger()
    made.upgrade(15, torch="2.13.0")
    made.spoil(made.of("models.py:bert", "inductor", first=15), "encoder.layer.3.norm", "LayerNorm")
    return made.write(path)


def test_the_command_prints_regressions_first(tmp_path, capsys, monkeypatch):
    """In 80 columns; it exits with 1, and suggests the site."""
    path = planted(tmp_path / "ledger.jsonl")
    monkeypatch.chdir(tmp_path)

    assert run("history", path.name) == 1

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:6] == [
        "DIFFERENT: 2 cells regressed (1 cause); 12 cells in 30 runs: 10 close, 2",
        "different",
        "",
        "LayerNorm in encoder.layer.*.norm",
        "  since 2026-10-16 03:00, last good 2026-10-15 03:00",
        "  Changed: torch 2.12.0 → 2.13.0.",
    ]
    assert lines[-1] == "  filch history ledger.jsonl -o site"


def test_the_command_prints_json(tmp_path, capsys):
    """It has a version, and all outcomes of all cells."""
    assert run("history", str(planted(tmp_path / "ledger.jsonl")), "--json") == 1

    found = json.loads(capsys.readouterr().out)
    assert (found["filch_history"], found["counts"]) == (1, {"close": 10, "different": 2})
    assert [len(cell["outcomes"]) for cell in found["cells"]] == [30] * 12
    (cluster,) = found["clusters"]
    assert (cluster["first_bad"], cluster["changes"]) == (
        run_name(15),
        [{"name": "torch", "before": "2.12.0", "after": "2.13.0"}],
    )
    assert [one["blame"]["module"] for one in cluster["regressions"]] == ["encoder.layer.3.norm"] * 2


def test_the_command_exits_with_0_if_nothing_regressed(tmp_path, capsys):
    """With `-q`, nothing is printed."""
    path = MadeLedger(runs=3).write(tmp_path / "ledger.jsonl")

    assert run("history", str(path), "-q") == 0
    assert capsys.readouterr().out == ""


def test_the_command_refuses_another_version(tmp_path, capsys):
    """With one sentence and exit code 2."""
    made = MadeLedger(runs=1)
    made.rows[3]["filch_ledger"] = 2

    assert run("history", str(made.write(tmp_path / "ledger.jsonl"))) == 2

    said = capsys.readouterr()
    assert said.out == "" and "is a ledger of version 2; this Filch reads version 1" in said.err


def test_all_rows_are_read_in_the_order_of_the_runs(tmp_path):
    """Of several ledgers, in any order."""
    made = MadeLedger(runs=4)
    early, late = MadeLedger(runs=4), MadeLedger(runs=4)
    early.rows, late.rows = made.of(last=1), made.of(first=2)

    rows, notes = read_ledgers([late.write(tmp_path / "late.jsonl"), early.write(tmp_path / "early.jsonl")])

    assert [row.run for row in rows] == [row["run"] for row in made.rows]
    assert [row.error for row in rows] == [row["error"] for row in made.rows]
    assert notes == []


@pytest.mark.parametrize(("removed", "count"), [(20, 11), (1, 12)])
def test_a_torn_last_line_is_left_out_and_told(tmp_path, removed, count):
    """The driver was killed while it wrote; an editor may have removed the end of a line that is complete."""
    path = MadeLedger(runs=1).write(tmp_path / "ledger.jsonl")
    os.truncate(path, path.stat().st_size - removed)

    rows, notes = read_ledgers([path])

    assert len(rows) == count
    assert notes == [f"The last line of {str(path)!r} is incomplete and was left out."] * (count == 11)


def test_a_damaged_line_is_left_out_and_told(tmp_path):
    """A disk was full, and the next run appended to the incomplete line."""
    path = MadeLedger(runs=1).write(tmp_path / "ledger.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], lines[4][:50] + lines[5], *lines[6:]]))

    rows, notes = read_ledgers([path])

    assert len(rows) == 10
    assert notes == [f"Damaged lines of {str(path)!r} were left out: 5."]


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ([{"status": "lost"}, {"status": "close"}], "close"),
        ([{"status": "crashed"}, {"status": "close"}], "crashed"),
        ([{}, {"key": "other", "status": "different"}], "different"),
        ([{"environment": None, "status": "lost", "error": None}], "lost"),
    ],
)
def test_the_first_row_of_a_key_in_a_run_counts_unless_it_is_lost(changes, valid, tmp_path):
    """A cell whose worker disappeared is tried again, or resumed with another key; a row may lack its environment."""
    made = MadeLedger(runs=1)
    made.rows = [made.rows[0] | change for change in changes]

    ((row,), _) = read_ledgers([made.write(tmp_path / "ledger.jsonl")])

    assert row.status == valid
    assert (row.environment == {}) == ("environment" in changes[0])


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


@slow
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
