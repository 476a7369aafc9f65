"""The commands `fleet`, `matrix` and `sweep` with an executor, and fleets in TOML."""

import json

import pytest

from filch.compare.fleet._cell import CellOptions, local_device
from filch.compare.fleet._ledger import Ledger, row_of
from filch.compare.fleet._spec import read_fleet
from filch.steal import FilchError
from support.processes.commands import run
from support.thorough import slow

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


@slow
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
        _fill(folder / "l.jsonl", [sweep], "different")
        assert run("sweep", "models/a.py:make", "--dim", "batch=3", "--lower-precision", *options) == 1
        wrong = json.loads(capsys.readouterr().out)

    assert found["command"].startswith("filch check --option dtype=float16 --tolerance 1e-3 models/a.py:make ")
    assert "processes" not in found["command"] and "l.jsonl" not in found["command"]
    assert [cell["labels"] for cell in swept["cells"]] == [{"batch": "3"}]
    assert "-b eager" in wrong["command"] and "--dim batch=3" in wrong["command"]


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


MATRICES = """
[defaults]
backends = ["eager", "reference"]
dtypes = ["float32"]
tolerance = 1e-4
options = {memory_pattern = false, threads = 2}

[[matrix]]
models = ["models.py:make", "package.module:make"]

[[matrix]]
models = ["models.py:make"]
backends = ["onnxruntime-cpu"]
dtypes = ["float16", "bfloat16"]
devices = ["cpu"]
lower_precision = true
limit = 5

[[sweep]]
model = "models.py:make"
dims = {batch = [1, 8], length = [3]}
tolerance = "default"
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a fleet beside a file with models, and returns its path."""
    (tmp_path / "models.py").write_text("def make(): ...\n")

    def write(text):
        path = tmp_path / "fleet.toml"
        path.write_text(text)
        return path

    return write


def test_matrices_and_sweeps_take_what_they_do_not_say_from_the_defaults(write):
    """Paths are relative to the file; values of options are text, as on the command line."""
    path = write(MATRICES)
    cells = read_fleet(path)
    options = {"memory_pattern": "false", "threads": "2"}

    assert {cell.folder for cell in cells} == {str(path.parent)}
    assert [(cell.factory, cell.backend, cell.dtype) for cell in cells[:4]] == [
        (model, backend, "float32")
        for model in ("models.py:make", "package.module:make")
        for backend in ("eager", "reference")
    ]
    assert {cell.judged.tolerance for cell in cells[:6]} == {1e-4}
    assert [(cell.dtype, cell.device) for cell in cells[4:6]] == [("float16", "cpu"), ("bfloat16", "cpu")]
    assert cells[4].judged == CellOptions(options, 1e-4, lower_precision=True, limit=5)
    assert [(*cell.sizes.values(), cell.backend) for cell in cells[6:]] == [
        *((1, 3, "eager"), (1, 3, "reference"), (8, 3, "eager"), (8, 3, "reference"))
    ]
    assert {(cell.dtype, cell.judged.tolerance) for cell in cells[6:]} == {("", "default")}


MATRIX = '[[matrix]]\nmodels = ["models.py:make"]\n'
WRONG_SPECS = {
    "[[matricks]]": "the file has no key 'matricks'; did you mean 'matrix'?",
    '[[matrix]]\nmodel = ["a"]': r"\[\[matrix\]\] 1 has no key 'model'; did you mean 'models'?",
    f'{MATRIX}[[matrix]]\nmodels = ["models.py:make"]\ndtype = []': "2 has no key 'dtype'; did you mean 'dtypes'?",
    "[defaults]\nmodels = []": r"\[defaults\] has no key 'models'; there are",
    "[[matrix]]\nbackends = []": r"\[\[matrix\]\] 1 has no 'models'",
    '[[sweep]]\nmodel = "models.py:make"': "has no 'dims'",
    "[[sweep]]\nmodel = 3": "'model' in .* has to be a string, not 3",
    '[[sweep]]\nmodel = "a:b"\ndims = {batch = 2}': "'dims' in .* has to be a table of lists of sizes",
    '[[sweep]]\nmodel = "a:b"\ndims = {batch = [0]}': "'dims' in .* has to be a table of lists of sizes",
    f'{MATRIX}backends = "eager"': "'backends' in .* has to be a list of strings, not 'eager'",
    f'{MATRIX}tolerance = "tight"': "'tolerance' in .* has to be a number or 'default'",
    f"{MATRIX}limit = true": "'limit' in .* has to be a number of seconds",
    f"{MATRIX}options = {{level = []}}": "'options' in .* has to be a table of options",
    f"{MATRIX}lower_precision = 1": "'lower_precision' in .* has to be true or false",
    "matrix = 3": r"'matrix' in the file has to be tables \[\[matrix\]\]",
    "defaults = 3": "'defaults' in the file has to be a table",
    f'{MATRIX}backends = ["onyxruntime-cpu"]': "no backend 'onyxruntime-cpu'; did you mean 'onnxruntime-cpu'?",
    f'{MATRIX}dtypes = ["fp16"]': "did you mean 'float16'?",
    f'{MATRIX}devices = ["gpu"]': "a device is one like cpu or cuda:0, not 'gpu'",
    '[[matrix]]\nmodels = ["gone.py:make"]': "there is no file 'gone.py' in",
    '[[matrix]]\nmodels = ["make"]': "named as package.module:factory or path.py:factory, not 'make'",
    "": "has no comparison",
    "[[matrix": "is not a TOML file",
}


@pytest.mark.parametrize("text", WRONG_SPECS)
def test_what_is_wrong_is_named(write, text):
    """The message has the table, the key, and what may have been meant."""
    with pytest.raises(FilchError, match=WRONG_SPECS[text]):
        read_fleet(write(text))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """As is one that can't be decoded."""
    with pytest.raises(FilchError, match=r"can't read .*No such file"):
        read_fleet(tmp_path / "gone.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FilchError, match="is not a TOML file"):
        read_fleet(tmp_path / "binary.toml")
