"""What a notebook shows: `repr` in one line, `_repr_html_`, and pages in frames."""

import html
import re
import sys
import types
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn

from filch.compare import compare, diff
from filch.steal import restore
from support.faults.fakes import WrongBackend
from support.models.small import recorded

HOSTILE = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A result of each kind, of a tiny model with one wrong node."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), torch.ones(1, 3)
    file = tmp_path_factory.mktemp("notebook") / "ref.onnx"
    capture, program = recorded(model, x, submodules=True, dump_file=file)
    report = compare(capture, program, backend=WrongBackend({"linear": lambda t: t + 1}))
    return {
        "report": report,
        "close report": compare(capture, program),
        "diff": diff(file, file),
        "capture": capture,
        "dump": restore(file),
        "program": program,
        "graph": program.graph,
    }


NAMES = ("report", "close report", "diff", "capture", "dump", "program", "graph")


@pytest.mark.parametrize("name", NAMES)
def test_repr_is_one_short_line(results, name):
    """A result that is the last line of a cell or of a prompt must not fill pages."""
    text = repr(results[name])

    assert "\n" not in text and len(text) < 500
    assert text.startswith("<") and text.endswith(">")


@pytest.mark.parametrize("name", NAMES)
def test_html_is_well_formed_and_has_a_table(results, name):
    """It is a fragment: no scripts, no page of its own."""
    fragment = results[name]._repr_html_()

    root = ET.fromstring(f"<div>{fragment}</div>")  # noqa: S314  it is ours
    assert root.find(".//table/tbody/tr") is not None
    assert root.find(".//script") is None


def test_the_report_says_the_verdict_and_the_next_command(results):
    """Both in the representation and as HTML."""
    report = results["report"]

    assert repr(report).startswith("<Report different: ")
    shown = html.unescape(report._repr_html_())
    assert "DIFFERENT: " in shown and report.next_command.command in shown
    assert "CLOSE: " in results["close report"]._repr_html_()


def test_names_are_escaped(results):
    """A name from a file can't run a script in the notebook."""
    rows = tuple(replace(row, module=HOSTILE) for row in results["report"].rows)
    report = replace(results["report"], rows=rows, program=HOSTILE)

    for text in (report._repr_html_(), replace(results["graph"], name=HOSTILE)._repr_html_()):
        assert "<script" not in text and "\x1b" not in text and "&lt;script&gt;" in text


def test_show_puts_the_page_into_a_frame_of_a_notebook(results, monkeypatch):
    """The page is the value of an attribute, so its own policy applies."""
    shown = []
    display = types.SimpleNamespace(display=shown.append, HTML=lambda text: text)
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)

    results["report"].show()

    (frame,) = shown
    (page,) = re.findall('srcdoc="([^"]*)"', frame)
    assert html.unescape(page) == results["report"].to_html()


def test_show_opens_the_browser_elsewhere(results, monkeypatch, tmp_path):
    """The file holds the page."""
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    results["diff"].show()

    (file,) = tmp_path.iterdir()
    assert opened == [file.as_uri()]
    assert file.read_text("utf-8") == results["diff"].to_html()
