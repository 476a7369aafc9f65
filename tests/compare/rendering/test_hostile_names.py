"""Names from a model that would like to be more than names: in every format that is written, they stay text."""

import ast
import csv
import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html import unescape
from types import SimpleNamespace
from xml.sax.saxutils import quoteattr

import onnx_ir as ir
import pytest
import torch
from markdown_it import MarkdownIt
from torch import nn

from filch.compare import DiffRow, DumpDiff, Report, Row, compare_tensors, write_repro
from filch.compare.float64._verdict import RoundingVerdict
from filch.compare.rendering._markdown import table
from filch.compare.results._rows import ModelOperation, ModuleRow, NodeOutcome
from filch.compare.testing._plugin import _record_property
from filch.export import Program
from filch.steal import FilchError, Key
from filch.steal.text._markup import for_markdown
from filch.steal.text._python import python_docstring, python_literal
from filch.steal.text._visible import short_line, shortened, visible
from support.hostile.graphs import TEXTS, hostile_graph
from support.models.small import recorded
from support.processes.commands import run
from support.thorough import slow
from support.views.chromium import Chromium, missing

NAMES = {**TEXTS, "megabyte": "L" * 1_000_000}
TABLE = ("thead", "tbody", "tr", "th", "td")
CANARY = "canary"  # a file that code would write, in the folder where all of it runs

CALLS = {
    *(
        "Path",
        "Path(__file__).resolve",
        "numpy_helper.to_array",
        "onnx.load",
        "platform.python_version",
        "print",
        "run",
    ),
    *("np.asarray", "np.testing.assert_allclose", "tensors", "tensors('expected.onnx').values", "zip"),
    *("options.add_session_config_entry", "ort.InferenceSession", "ort.SessionOptions", "session.run"),
    # what converts bfloat16 outputs
    *("all", "as_array", "bits.astype", "(bits.astype(np.uint32) << 16).view", "ctypes.memmove", "inputs.items"),
    *("np.empty", "ort.OrtValue.ortvalue_from_numpy", "session.get_outputs", "session.run_with_ort_values"),
    *("value.data_ptr", "value.data_type", "value.numpy", "value.shape"),
}


def wrong_gelu(op, value):
    """A capture of a Gelu, and a program in which a local function called `op` computes `value`, twice as large."""
    model, x = nn.GELU(), torch.linspace(-3, 3, 12).reshape(3, 4)
    capture, program = recorded(model, x, submodules=True)
    graph = program.model.graph
    (node,) = graph
    read, made = ir.val("read"), ir.val("made", dtype=ir.DataType.FLOAT)
    inside = [ir.node("Gelu", [read], name="gelu"), ir.node("Add", [], name="add")]
    inside[1] = ir.node("Add", [inside[0].outputs[0]] * 2, outputs=[made])
    body = ir.Graph([read], [made], nodes=inside, opset_imports={"": 21}, name="body")  # of another opset, so kept
    program.model.functions[("hostile", op, "")] = ir.Function("hostile", op, "", graph=body, attributes=[])
    node.op_type, node.domain = op, "hostile"
    node.attributes.clear()
    node.outputs[0].name = value
    graph.opset_imports["hostile"] = 1
    return capture, Program(program.model)


def test_names_in_a_repro_are_text(tmp_path, monkeypatch):
    """An operator and a value are named like Python code; the script has these names only in string literals."""
    monkeypatch.chdir(tmp_path)
    text = f'E"""\nimport os; os.system("touch {CANARY}")\n"""\\"""; open("{CANARY}", "w") # {{compute}} {{0}} \''
    capture, program = wrong_gelu(text, f"value {text}")

    made = write_repro(capture, program, f"value {text}", "why")

    tree = ast.parse(made.script.read_text("utf-8"))
    assert not [*tmp_path.rglob(CANARY)]
    assert (ast.get_docstring(tree, clean=False) or "").startswith(text)
    assert f"value {text}" in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} <= CALLS
    assert "\nimport" not in (made.folder / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def report():
    """The report that is written in every format."""
    difference = compare_tensors(torch.zeros(2), torch.ones(2))
    rows = []
    for stage, kind in (("exported", "node"), ("compiled", "fused")):
        for index, text in enumerate(NAMES.values()):
            names = {"node": text, "op": text, "value": f"{text}", "module": text, "source": text, "dtype": text}
            told = {"reason": text, "evidence": text, "origins": (text,), "operators": (text, text), "code": text}
            wrong = RoundingVerdict("wrong", 99.0, 1.0, note=text)
            common = {"status": "different", "difference": difference, "float64": wrong, "isolated": wrong}
            rows.append(Row(0, stage, index, kind, **names, **told, behind=(text,), **common))
        rows.append(Row(0, stage, 99, "output", "", "", NAMES["script"], reason=NAMES["lines"]))
    texts = tuple(NAMES.values())
    return Report(
        *(NAMES["erase"], NAMES["title"], NAMES["lines"], tuple(rows)),
        modules=tuple(ModuleRow(0, text, 1, "output", text, text, text, text) for text in texts),
        notes=texts,
        failed=texts,
        operators=(
            tuple(ModelOperation("call_module", text, row, text) for text, row in zip(texts, rows, strict=False)),
        ),
        outcomes=tuple(NodeOutcome(text, text, "fused", (text,), text, text) for text in texts),
        graphs={"exported": hostile_graph()},
        culprits=texts,
        switches=3,
        repro=NAMES["rich"],
        options={text: text for text in texts},
    )


@pytest.fixture(scope="module")
def cells_of(report):
    """Return the rows of a report's CSV, by column title."""
    return [*csv.DictReader(io.StringIO(report.to_csv()))]


def is_harmless(text):
    """Return whether a terminal shows each character and no line is too long; tables may have non-breaking spaces."""
    lines = text.replace("\N{NO-BREAK SPACE}", " ").split("\n")
    return all(line.isprintable() and len(line) < 30_000 for line in lines)


@pytest.mark.parametrize("view", ["nodes", "operators", "modules", "outcomes", "dynamo", "precision"])
@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_no_table_has_a_control_character(report, view, wide):
    """Neither do the sentences around the tables, and rich does not interpret names as markup."""
    text = report.table(view, wide=wide, width=None if wide else 80)

    assert is_harmless(text)
    assert "[link=" in text.replace("\n", "")
    assert not any(line.startswith(("import os", "lines", "# h1", "1. b")) for line in text.splitlines())


def test_no_sentence_has_a_control_character(report):
    """The sentences are of rows, modules, reports, explanations, errors and progress bars."""
    diff = DumpDiff("a", "b", tuple(DiffRow(Key(text, 0, "O"), text, text, text) for text in NAMES.values()))
    told = [report.headline, str(report.explanation), diff.headline, str(diff), diff.first_divergence]
    told += [*report.rows, *report.modules, *diff.rows, *map(FilchError, NAMES.values())]
    with pytest.raises(AssertionError) as failed:
        report.assert_close()

    assert all(is_harmless(str(item)) for item in [*told, failed.value])
    assert all("\n" not in str(row) for row in report.rows)
    assert len(str(failed.value)) < 2_000_000 < len(NAMES["megabyte"]) * len(report.rows)


def test_the_command_line_shows_no_control_character(capsys, tmp_path):
    """The file is no report, and the name of its folder has control characters."""
    file = tmp_path / "\x1b[2J\u202e.json"
    file.write_text('{"filch_report": "\\u001b[31m\\n"}')

    assert run("repro", str(file), "-o", str(tmp_path / "out")) == 2
    assert run("show", str(file)) == 2

    said = capsys.readouterr()
    assert is_harmless(said.err) and is_harmless(said.out) and "\\x1b[2J" in said.err


@pytest.mark.parametrize("key", NAMES)
def test_a_cell_of_csv_computes_nothing(cells_of, key):
    """Cells that begin like a formula get an apostrophe in front, so that a spreadsheet reads them as text."""
    place = [*NAMES].index(key)
    cells = cells_of[place]

    shown = short_line(NAMES[key], 30_000)
    assert cells["node"] in (shown, f"'{shown}")
    assert all(cell.isprintable() and len(cell) < 2**15 for cell in cells.values())  # what spreadsheets hold
    assert not [cell for cell in cells.values() if cell[:1] in tuple("=+-@\t\r\uff1d") and not is_number(cell)]
    assert is_number(cells["error"])


def is_number(cell):
    """Return whether a spreadsheet reads a text as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("key", [key for key in NAMES if NAMES[key].strip()])
def test_a_name_in_markdown_reads_as_it_is(key):
    """In cells and sentences, names form no link, image, heading, code or HTML, and stay on one line."""
    name = NAMES[key]
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    document = parser.render("\n".join([for_markdown(name), "", *table(["a", "b"], [[name, 1]])]))

    page = ET.fromstring(f"<div>{document.replace('<!-- -->', '')}</div>")  # noqa: S314  made here
    assert {element.tag for element in page.iter()} <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    shown = " ".join(short_line(name, 2000).split())
    assert [" ".join((page.find(place).text or "").split()) for place in ("p", ".//td")] == [shown, shown]
    assert len(page.findall(".//td")) == 2


def test_a_report_in_markdown_is_one_table(report):
    """The table has a row for each row of the report, and its heading; all other lines are sentences."""
    text = report.to_markdown()

    assert is_harmless(text)
    assert sum(line.startswith("|") for line in text.splitlines()) == len(report.rows) + 2
    assert text.startswith("DIFFERENT: ") and "Next, " in text


def test_a_page_of_a_diff_has_no_elements_but_its_own():
    """This holds for names of dumps, modules and paths in a record; the page's policy allows no script."""
    rows = tuple(DiffRow(Key(text, 0, "O"), text, text, text) for text in NAMES.values())
    page = DumpDiff(NAMES["script"], NAMES["image"], rows).to_html()

    tags = set(re.findall(r"</?([a-z0-9]+)", page))
    assert tags <= {*("html", "head", "meta", "title", "style", "body", "h1", "p", "table", "caption"), *TABLE}
    assert not re.search(r"<[^>]*\son\w+\s*=", page) and "default-src 'none'" in unescape(page)
    assert is_harmless(page) and "onerror=alert(1)>" not in page


@pytest.mark.parametrize("key", NAMES)
def test_a_name_in_python_source_is_a_string(key):
    """The literal evaluates to the name, alone and in containers, and a name does not end a docstring."""
    name = NAMES[key]
    held = {name: [name, (name,), -1.5, None, True], 1: {name}}

    assert ast.literal_eval(python_literal(held)) == held
    module = ast.parse(f"{python_docstring(name)}\nx = 1\n")
    assert len(module.body) == 2
    assert ast.get_docstring(module, clean=False) == shortened(name, 1000)
    assert is_harmless(python_docstring(name))


def test_a_name_in_a_junit_file_is_legal_xml(monkeypatch):
    """The plugin adds names to a test's properties, which pytest writes as XML attributes."""
    notes = SimpleNamespace(user_properties=[])
    for name in NAMES.values():
        _record_property(notes, "first_divergence", name)

    for (_, value), name in zip(notes.user_properties, NAMES.values(), strict=True):
        assert ET.fromstring(f"<property value={quoteattr(value)}/>").get("value") == visible(name)  # noqa: S314


@slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_page_with_all_names_runs_no_script(report, tmp_path):
    """Opened in a browser, the page has no dialog, console message, request or element that comes from a name."""
    page = tmp_path / "report.html"
    report.to_html(page)

    with Chromium() as browser:
        browser.open(page)
        browser.settle()
        browser.heard()
        elements = browser.run("document.querySelectorAll('img, iframe, object, a[href^=javascript]').length")
        scripts = browser.run("document.querySelectorAll('script').length")

    assert (elements, scripts, browser.log) == (0, 2, [])
    assert len(browser.requests) == 1


@slow
def test_onnxruntime_is_imported_without_its_telemetry(tmp_path):
    """Its telemetry would write files and start a thread at import."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    homes = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(tmp_path))
    code = "import filch.export.backends.onnxruntime._options as o, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | homes, capture_output=True, text=True, check=True
    )

    assert done.stdout == "1\n"
    assert [path.name for path in tmp_path.rglob("*") if "nnxruntime" in path.name or path.name == ".ses"] == []
