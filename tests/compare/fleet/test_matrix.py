"""Test the batch commands: models by dtypes, devices and backends; one program at many input sizes."""

import json
import re
import sys
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn

from filch.compare import CompareError
from filch.compare.cli._app import main
from filch.compare.fleet._cell import CellSpec
from filch.compare.fleet._here import run_here
from filch.compare.fleet._worker import run_spec
from filch.compare.models._subject import Subject
from filch.compare.models._variants import resized
from filch.compare.results._cells import NOT_COMPARED, Cell, CellStatus, CellTable
from support.faults.fakes import WrongBackend
from support.models.small import module_of
from support.thorough import slow

FACTORIES = """
import torch
from torch import nn
from torch.export import Dim

class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
    def forward(self, x, mask):
        return self.linear(x) * mask[..., None]

def made(batch=2, length=5):
    torch.manual_seed(0)
    b, n = Dim("batch", min=1, max=64), Dim("length", min=1, max=64)
    shapes = {"x": {0: b, 1: n}, "mask": {0: b, 1: n}}
    inputs = torch.randn(batch, length, 3), torch.ones(batch, length, dtype=torch.int64)
    return Masked().eval(), inputs, {}, shapes

def fixed():
    return made()

def static():
    return made()[:2]

def branching():
    class Branching(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x
    return Branching(), (torch.ones(2),)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command in a folder with factories and returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(FACTORIES)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["filch", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return call


@pytest.fixture
def wrong(monkeypatch):
    """Replace every backend by one whose `linear` is wrong for batches of 7 and more."""
    backend = WrongBackend({"linear": lambda tensor: tensor + 1 if tensor.shape[0] >= 7 else tensor})
    monkeypatch.setattr("filch.compare.fleet._here.get_backend", lambda name: backend)


def test_a_matrix_has_a_line_for_each_model_dtype_and_backend(run):
    """The table fits in 80 columns and has the largest error of each comparison."""
    models = ("models.py:fixed", "filch.compare:tiny_llm")
    # The exporter keeps the scale of attention in float32, which is off by 2e-8.
    code, out, _ = run("matrix", *models, "-b", "reference", "--dtype", "float64", "--tolerance", "1e-6")

    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert lines[0] == "CLOSE: 2 comparisons: 2 close"
    assert lines[1].split() == ["model", "dtype", "backend", "error", "first", "divergence"]
    assert [line.split()[:3] for line in lines[3:]] == [
        ["models.py:fixed", "float64", "reference"],
        ["filch.compare:tiny_llm", "float64", "reference"],
    ]
    assert all(float(line.split()[3]) < 1e-5 and "all close" in line for line in lines[3:])


@slow
@pytest.mark.parametrize(
    "command",
    [
        ("check", "models.py:fixed", "-b", "eager"),
        ("matrix", "models.py:fixed", "-b", "eager"),
        ("sweep", "models.py:fixed", "-b", "eager", "--dim", "batch=2"),
    ],
)
def test_backends_take_options_and_a_lower_precision_has_to_be_allowed(run, command):
    """A program computed in bfloat16 has other dtypes than the model, which is a difference unless allowed."""
    assert run(*command, "--option", "dtype=bfloat16")[0] == 1
    assert run(*command, "--option", "dtype=bfloat16", "--lower-precision")[0] == 0


def test_missing_and_failed_comparisons_exit_with_2(run, monkeypatch):
    """The row has the status, the full reason is printed below the table, and the exit code is 2."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, _ = run("matrix", "models.py:fixed", "models.py:branching", "-b", "onnxruntime-cuda", "-b", "eager")

    assert code == 2
    assert "missing: " in out and "backend 'onnxruntime-cuda' needs " in " ".join(out.split())
    assert "failed: " in out and "torch can't export Branching" in " ".join(out.split())
    assert len(re.findall(r" close, \d+ of \d+ ", out)) == 1

    code, out, _ = run("matrix", "models.py:fixed", "-b", "eager", "--device", "mps", "--json")
    (found,) = json.loads(out)["cells"]
    assert (code, found["status"], found["worst"], found["labels"]["device"]) == (2, "missing", None, "mps")


@slow
def test_a_backend_that_is_not_available_is_missing_also_in_a_sweep(run, tmp_path, monkeypatch):
    """The other backends are compared; in a process of its own, the cell has the same status and detail."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, _ = run(
        "sweep", "models.py:fixed", "-b", "onnxruntime-cuda", "-b", "eager", "--dim", "batch=2", "--json"
    )
    cells = json.loads(out)["cells"]
    alone = [
        run_spec(CellSpec("models.py:fixed", str(tmp_path), name, sizes={"batch": 2}))
        for name in ("onnxruntime-cuda", "eager")
    ]

    assert code == 2
    assert [cell["status"] for cell in cells] == ["missing", "close"]
    assert "backend 'onnxruntime-cuda' needs " in cells[0]["detail"]
    assert [(cell.status, cell.detail, cell.worst) for cell in alone] == [
        (cell["status"], cell["detail"], cell["worst"]) for cell in cells
    ]


def test_a_difference_is_printed_as_json_and_markdown(run, wrong):
    """The exit code is 1, and the row names the first node that differs."""
    code, out, _ = run("sweep", "models.py:fixed", "--dim", "batch=7", "--json")
    (found,) = json.loads(out)["cells"]
    assert code == 1
    assert (found["labels"]["batch"], found["status"]) == ("7", "different")
    assert found["worst"] > 0.1 and found["detail"].startswith("exported node node_linear")
    assert (found["blame"]["operator"], found["blame"]["module"]) == ("Add", "linear")
    assert found["blame"]["times_rounding"] > 8 and found["resumed"] is False

    code, out, _ = run("sweep", "models.py:fixed", "--dim", "batch=7", "--markdown")
    assert code == 1
    lines = out.splitlines()
    assert lines[:3] == ["DIFFERENT: 1 comparison: 1 different", "", "| batch | status | error | first divergence |"]
    assert lines[4].startswith("| 7 | different | ")


@pytest.mark.parametrize("factory", ["made", "fixed"])
def test_a_sweep_names_the_shape_and_node_of_the_first_difference(run, wrong, factory):
    """Inputs of each size come from the factory, or are generated like its example."""
    code, out, _ = run("sweep", f"models.py:{factory}", "--dim", "batch=1,2,7,9", "--dim", "length=3,1")

    lines = out.splitlines()
    assert code == 1
    assert [line.split()[:2] for line in lines[3:11]] == [[b, n] for b in "1279" for n in "31"]
    assert ["all close" in line for line in lines[3:11]] == [True] * 4 + [False] * 4
    assert lines[12] == "first difference at batch=7, length=3:"
    assert lines[13].startswith("  exported node node_linear (")


def test_a_sweep_goes_over_several_backends(run, wrong):
    """Each size is compared on every backend, and a column names the backend."""
    code, out, _ = run(
        "sweep", "models.py:fixed", "--dim", "batch=2,7", "-b", "onnxruntime-cpu", "-b", "eager", "--json"
    )

    found = [(cell["labels"]["batch"], cell["labels"]["backend"], cell["status"]) for cell in json.loads(out)["cells"]]
    assert code == 1
    assert found == [
        ("2", "onnxruntime-cpu", "close"),
        ("2", "eager", "close"),
        ("7", "onnxruntime-cpu", "different"),
        ("7", "eager", "different"),
    ]


def test_a_sweep_of_a_correct_program_exits_with_0(run):
    """Every size is close, and no first difference is printed."""
    code, out, _ = run("sweep", "models.py:made", "--dim", "batch=1,3", "--dim", "length=1,8", "-b", "onnxruntime-cpu")

    assert code == 0
    assert out.count("all close") == 4 and "first difference" not in out


BAD = {
    "no such dimension": (["--dim", "width=1"], "has no dynamic dimension 'width': there are batch, length"),
    "no sizes": (["--dim", "batch"], "like batch=1,2,7,64, not 'batch'"),
    "a word": (["--dim", "batch=two"], "like batch=1,2,7,64, not 'batch=two'"),
    "twice": (["--dim", "batch=1", "--dim", "batch=2"], "each name once"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_sweep_arguments_are_refused(run, name):
    """The message is one line and the exit code 2."""
    arguments, message = BAD[name]
    code, _, err = run("sweep", "models.py:fixed", *arguments)

    assert code == 2 and message in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models.py:fixed", "--dtype", "float12"], "a dtype is one like float16"),
        (["models.py:fixed", "--device", "gpu"], "a device is one like cpu or cuda:0, not 'gpu'"),
        (["models.py:fixed", "-b", "onyxruntime-cpu"], "did you mean 'onnxruntime-cpu'?"),
        (["models.py:gone"], "has no function 'gone'"),
        (["models.py:static", "--json", "--markdown"], "--json and --markdown are mutually exclusive"),
    ],
)
def test_invalid_matrix_arguments_are_refused(run, arguments, message):
    """The message names the value and the exit code is 2."""
    code, _, err = run("matrix", *arguments)

    assert code == 2 and message in err


def test_a_sweep_needs_names_and_one_way_to_make_inputs(run):
    """Refuse a factory without named dynamic shapes, and one that takes only one of two swept sizes."""
    assert "returns no named dimensions" in run("sweep", "models.py:static", "--dim", "batch=1")[2]
    with open("models.py", "a", encoding="utf-8") as file:  # noqa: PTH123  in the fixture's folder
        file.write("def half(batch=2):\n    return made(batch)\n")
    assert "has to take 'length', too" in run("sweep", "models.py:half", "--dim", "batch=1", "--dim", "length=1")[2]


def test_resized_inputs_are_distributed_like_the_example():
    """Integers stay in the example's range, so that a mask of ones stays one; floats keep mean and deviation."""

    class Model(nn.Module):
        def forward(self, ids, mask, pair, *rest, flag=None, **more):
            return ids

    shapes = {
        "ids": {0: torch.export.Dim("batch")},
        "mask": ["batch", None],
        "pair": ({0: "batch"}, None),
        "rest": ({0: "batch"},),
        "flag": {0: "batch"},
        "extra": {0: torch.export.Dim.AUTO},
    }
    pair = (torch.randn(100, 10) * 3 + 5, torch.ones(2))
    args = (torch.tensor([[3, 90]]), torch.ones(1, 2, dtype=torch.int64), pair, torch.zeros(1, dtype=torch.bool))
    subject = Subject(Model(), args, {"flag": torch.empty(1, 0), "extra": torch.ones(4)}, shapes)

    made = resized(subject, {"batch": 400})
    again = resized(subject, {"batch": 400})

    ids, mask, (floats, other), off = made.args
    assert ids.shape == (400, 2) and 3 <= ids.min() < 10 and 80 < ids.max() <= 90
    assert mask.shape == (400, 2) and (mask == 1).all() and mask.dtype == torch.int64
    assert floats.shape == (400, 10) and abs(floats.mean() - 5) < 0.5 and abs(floats.std() - 3) < 0.5
    assert floats.dtype == torch.float32 and other is pair[1]
    assert off.shape == (400,) and not off.any()
    assert made.kwargs["flag"].shape == (400, 0) and made.kwargs["extra"].shape == (4,)
    assert all(torch.equal(one, two) for one, two in zip(made.args[:2], again.args[:2], strict=True))


def test_inputs_of_unknown_containers_cant_be_resized():
    """The message names the type and the sizes that the factory should take."""

    class Held:
        pass

    subject = Subject(module_of(lambda self, held: held), (Held(),), {}, {"held": {0: "batch"}})
    with pytest.raises(CompareError, match="can't make a Held of other sizes: let the factory take batch as arguments"):
        resized(subject, {"batch": 2})


def test_the_exit_code_is_0_only_if_every_comparison_is_close():
    """A difference gives 1; comparisons that were not made, or none at all, give 2."""
    tables = {status: CellTable((Cell({}, "close"), Cell({}, status))) for status in ("close", *NOT_COMPARED)}

    codes = {status: table.exit_code for status, table in tables.items()}
    assert codes == {"close": 0, "failed": 2, "missing": 2, "crashed": 2, "timeout": 2, "lost": 2}
    assert CellTable((Cell({}, "different"), Cell({}, "failed"))).exit_code == 1
    assert CellTable(()).exit_code == 2


def test_a_table_has_the_worst_outcome_of_its_comparisons():
    """An incomplete comparison makes the table incomplete; its values can be accepted, parts that are missing not."""
    cells = {status: Cell({}, status, gaps=("y",) * (status == "incomplete")) for status in get_args(CellStatus)}
    close, different, incomplete = (cells.pop(status) for status in ("close", "different", "incomplete"))

    assert CellTable((close, incomplete)).outcome == "incomplete"
    assert CellTable((close, incomplete)).exit_code == 1
    assert CellTable((close, incomplete), accepted={"y": "drawn at random"}).exit_code == 0
    assert CellTable((close, replace(incomplete, gaps=("",))), accepted={"": "a reason"}).exit_code == 1
    assert {CellTable((close, cell)).outcome for cell in cells.values()} == {"incomplete"}
    assert CellTable((incomplete, different, *cells.values())).outcome == "different"


def test_a_model_that_updates_its_buffers_is_exported_as_it_was_recorded(tmp_path):
    """Recording it does not count as a call."""
    (tmp_path / "counting.py").write_text(
        "import torch\n\n\nclass Counting(torch.nn.BatchNorm1d):\n    def forward(self, x):\n"
        "        self.num_batches_tracked.add_(1)\n        return super().forward(x) + self.num_batches_tracked\n\n\n"
        "def model():\n    return Counting(4).eval(), (torch.ones(3, 4),)\n",
        "utf-8",
    )

    (cell,) = run_here([CellSpec(f"{tmp_path / 'counting.py'}:model", "", "eager")])

    assert cell.status == "incomplete"  # the program has no output for the buffer
    assert cell.gaps == ("buffer num_batches_tracked, after the call",)
