"""What a report prints and writes, its table of modules, and dumps against dumps."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from filch.compare import compare, diff, load_report
from filch.compare.float64._verdict import RoundingVerdict
from filch.compare.rendering._console import as_text
from filch.compare.results._module_summary import module_summary
from filch.compare.results._rows import Row
from filch.export import export
from filch.steal import steal_append, steal_forward
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, recorded


class Net(nn.Module):
    """A model whose whole report is short enough to read."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.linear(x)).flatten()


@pytest.fixture(scope="module")
def report():
    """Return a report with one fault, in the linear layer."""
    torch.manual_seed(0)
    model, x = Net().eval(), torch.ones(1, 2)
    capture, program = recorded(model, x, submodules=True)
    return compare(capture, program, backend=WrongBackend({"linear": lambda t: t + 1}), tolerance="default")


@pytest.mark.parametrize("status", ["no value", "not mapped"])
def test_values_that_could_not_be_judged_are_not_counted_as_close(report, status):
    """This holds for both graphs and every reason."""
    close = [replace(row, status="same") for row in report.rows]
    compiled = [replace(row, stage="compiled") for row in close]
    unjudged = replace(compiled[0], status=status)

    assert replace(report, rows=(*close, *compiled)).close
    assert "\nall close; the largest" in str(replace(report, rows=(*close, *compiled)))
    said = " ".join(str(replace(report, rows=(*close, unjudged, *compiled[1:]))).split())
    assert "all that could be judged is close, 1 of 5 compiled values could not; the largest" in said
    assert "all close" not in said


def test_the_table_has_the_expected_text(report):
    """The whole text is compared, except for the errors of correct values, which are rounding."""
    text = re.sub(
        r"\d\.\de[-+]\d\d(?= *$|  *<| at)|absolute .*", "#", report.table("nodes", width=80), flags=re.MULTILINE
    )
    text = re.sub(r"\(/.*?\)", "(file)", text.replace("\n", "⏎"))

    assert text.replace("⏎", "\n").splitlines()[:11] == [
        "DIFFERENT: Net on wrong, against the capture",
        "judged 5 of 5 exported values; instrumentation did not change the outputs",
        "",
        "exported graph, node by node",
        "",
        "  kind   operator module dtype     error attention",
        "──────────────────────────────────────────────────",
        "0 node   Gemm     linear float32 # <------",
        "1 node   Relu     act    float32 #",
        "4 node   Reshape         float32 #",
        "5 output output   view   float32 #",
    ]


def test_the_operators_of_the_model_are_listed_as_they_are_written(report):
    """Modules are listed by their repr and functions by their name, from the placeholder to the output."""
    table = [
        re.split(r"  +| (?=float32|call_)", line)[0:] for line in report.table("operators", wide=True).splitlines()
    ]
    text = "\n".join(" ".join(parts) for parts in table)

    for expected in (
        "0 placeholder",
        "1 call_module",
        "Linear(in_features=2, out_features=2, bias=True)",
        "ReLU()",
        "torch.flatten",
        "4 output",
    ):
        assert expected in text


def test_csv_and_json_hold_the_same_numbers(report):
    """Both have each row of the report once."""
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    found = json.loads(report.to_json())

    assert len(rows) == len(found["rows"]) == len(report.rows)
    assert (
        [float(row["error"]) for row in rows]
        == [row["difference"]["error"] for row in found["rows"]]
        == [row.error for row in report.rows]
    )
    assert found["first_divergence"]["value"] == "linear"
    assert [row["status"] for row in rows] == [row.status for row in report.rows]


def test_nan_and_infinity_are_strings_in_json():
    """They are no JSON numbers."""
    model, x = Net().eval(), torch.ones(1, 2)
    capture = capture_of(model, x, submodules=True)
    report = compare(capture, export(model, (x,)), backend=WrongBackend({"linear": lambda t: t * float("nan")}))

    found = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    assert next(row for row in found["rows"] if row["value"] == "linear")["difference"]["error"] == "inf"


def test_an_unknown_view_is_refused(report):
    """The message lists the views."""
    with pytest.raises(ValueError, match="there is no view 'x'; there are summary, nodes, operators, modules"):
        report.table("x")


def capture(**values):
    """Return a capture of values without a model."""
    with steal_forward(nn.Identity()) as held:
        for name, value in values.items():
            steal_append(name, value)
    return held


def test_two_captures_of_the_same_values_are_close():
    """NaN equals NaN, in any nesting."""
    made = [capture(a=torch.tensor([1.0, float("nan")]), b={"x": (torch.ones(2), 3, None)}) for _ in range(2)]

    found = diff(*made)

    assert found.close
    assert found.headline == "judged 2 of 2 values; 0 differ"


@pytest.mark.parametrize(
    ("expected", "actual", "message"),
    [
        ({"a": torch.ones(2)}, {"a": torch.zeros(2)}, "a#0.V: 2 of 2 elements differ"),
        ({"a": torch.ones(2)}, {}, "a#0.V: the second dump does not have it"),
        ({}, {"a": torch.ones(2)}, "a#0.V: the first dump does not have it"),
        ({"a": (torch.ones(2), 3)}, {"a": (torch.ones(2), 4)}, r"a#0.V: it is \(f32\[2\], 4\) in the second dump"),
        ({"a": (torch.ones(2),)}, {"a": (torch.ones(2), torch.ones(1))}, r"a#0.V: it is \(f32\[2\], f32\[1\]\)"),
        ({"a": torch.ones(2)}, {"a": torch.ones(2).double()}, "the dtype differs"),
        ({"a": torch.ones(2)}, {"a": torch.ones(1, 2)}, "the shape differs"),
    ],
    ids=["value", "missing", "new", "number", "more", "dtype", "shape"],
)
def test_differences_of_two_captures_are_named(expected, actual, message):
    """They differ in values, records or nesting."""
    found = diff(capture(**expected), capture(**actual))

    assert not found.close
    assert re.search(message, str(found.first_divergence))


def test_two_empty_captures_are_not_close():
    """Nothing was compared."""
    assert not diff(capture(), capture()).close


def test_a_wide_table_has_the_whole_names_of_kernels(report):
    """They can be searched for."""
    kernel = "extern_kernels.convolution_with_a_name_of_many_letters"
    row = replace(report.rows[0], stage="compiled", op=kernel)
    compiled = replace(report, rows=(*report.rows, row))

    assert kernel in compiled.table("dynamo", wide=True)
    assert kernel in compiled.table(wide=True)


def test_the_next_command_depends_on_what_is_known(report, tmp_path, monkeypatch):
    """Files can be compared again on the command line, a graph of torch.compile can only be looked at."""
    monkeypatch.chdir(tmp_path)
    for name in ("ref.onnx", "my model.onnx"):
        (tmp_path / name).touch()
    files = replace(report, reference="ref.onnx", program="my model.onnx", tolerance=None)

    assert files.next_command.command == "filch compare ref.onnx 'my model.onnx' -b wrong --blame blame"
    (tmp_path / "blame").mkdir()
    assert files.next_command.command.endswith(" --blame blame-2")
    assert replace(files, repro="my repro").next_command.command == "python 'my repro/repro.py'"
    assert replace(files, command="filch check m.py:f").next_command.command == "filch check m.py:f --blame blame-2"
    assert replace(report, reference="eager PyTorch").next_command.command == "report.show()"


def test_blame_is_not_suggested_again(report):
    """What it could not explain is looked at: every node alone, if values were judged by float64, else every row."""
    blamed = replace(report, switches=0, command="filch check m.py:f")
    first, *others = report.rows
    judged = replace(blamed, rows=(replace(first, float64=RoundingVerdict("wrong", 9.0)), *others))

    assert blamed.next_command.command == "filch check m.py:f --all"
    assert judged.next_command.command == "filch check m.py:f --every-node -o report.html"
    again = replace(judged, command="filch check m.py:f --every-node")
    assert again.next_command.command == "filch check m.py:f --every-node -o report.html"
    assert "every_node=True" in replace(judged, command="").next_command.command


def test_a_report_from_somebody_else_suggests_no_dangerous_option(report, tmp_path, monkeypatch):
    """Inductor's `config` may run a program; such options, and the command of a file, are not repeated."""
    monkeypatch.chdir(tmp_path)
    for name in ("ref.onnx", "model.onnx"):
        (tmp_path / name).touch()
    options = {"config": {"cpp.cxx": "touch /tmp/owned"}}
    wrong = replace(
        report, reference="ref.onnx", program="model.onnx", options=options, command="rm -rf /", repro="evil"
    )
    wrong.to_json("report.json")

    loaded = load_report("report.json")

    assert (loaded.command, loaded.repro) == ("", "")
    assert "evil" not in loaded.next_command.command
    assert "cxx" not in loaded.next_command.command and "rm" not in loaded.next_command.command


def rows_of(modules, wrong=()):
    """A row for each module, in order; those of `wrong` differ."""
    return [
        Row(
            0,
            "exported",
            index,
            "node",
            f"n{index}",
            "Add",
            f"v{index}",
            name,
            status="different" if name in wrong else "same",
        )
        for index, name in enumerate(modules)
    ]


def table(rows, first=None):
    return as_text(module_summary(rows, first), width=80).splitlines()[2:]


@pytest.mark.parametrize("module", [None, "linear"])
def test_a_model_without_submodules_has_a_row(module):
    """Its values have no module, or that of the model."""
    assert table(rows_of([module] * 3))[-1].split() == [module or "(model)", "3"]


def test_layers_that_are_alike_are_one_row():
    """The layer of the first divergence has a row of its own, and those after it are one."""
    names = [f"layers.{index}" for index in range(30)]
    rows = rows_of(names, wrong=names[12:])

    lines = table(rows, rows[12])

    assert [line.split()[:3] for line in lines] == [
        ["layers.0", "to", "11"],
        ["layers.12", "1", "1"],
        ["layers.13", "to", "29"],
    ]
    assert "<------" in lines[1]


def test_a_model_with_many_modules_still_fits_on_a_screen():
    """Modules that differ are shown, and how many others there are."""
    names = [f"block_{chr(97 + index)}" for index in range(26)]
    rows = rows_of(names, wrong=names[20:22])

    lines = table(rows, rows[20])

    assert len(lines) == 11
    assert {"block_u", "block_v"} <= {line.split()[0] for line in lines}
    assert lines[-1] == "and 16 more, none of which differ"
