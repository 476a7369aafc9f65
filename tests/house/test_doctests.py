"""The examples in docstrings say what they claim, and the notebooks in examples/ run."""

import ast
import doctest
import importlib
import json
import linecache
import pkgutil
from pathlib import Path

import pytest

import filch.compare
import filch.export
import filch.steal
from support.processes.documents import plain

# `pytest --doctest-modules steal` would import a second copy of every class, under the folder's name.
MODULES = [
    name
    for room in (filch.steal, filch.export, filch.compare)
    for name in (room.__name__, *(found.name for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")))
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name, tmp_path, monkeypatch):
    """Each example in a docstring gives what stands below it, in a folder of its own."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("filch"):
            raise
        pytest.skip(f"{name} needs {error.name}, which is not installed")
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags)
    report: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        linecache.clearcache()  # its debugger asks the file system whether one of these files has changed
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))


def _cells(notebook):
    """The code of each cell, without the commands of IPython, and the stored text of its value."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            lines = ["    pass\n" if line.lstrip().startswith("%") else line for line in cell["source"]]
            stored = [item for item in cell["outputs"] if item["output_type"] == "execute_result"]
            yield "".join(lines), "".join(stored[0]["data"]["text/plain"]) if stored else None


def _value(code, names):
    """Execute a cell and return the value of its last expression; None if it ends with a statement."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102  our own examples
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_its_code_gives(notebook, tmp_path, monkeypatch):
    """Each cell in order, in a folder of its own; numbers that depend on the machine are compared apart."""
    shown = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("filch.compare.rendering._result.show_page", shown.append)
    names = {"__name__": "__main__"}
    for code, stored in _cells(notebook):
        value = _value(code, names)
        assert (stored is None) == (value is None), code
        if stored is not None:
            assert plain(repr(value)) == plain(stored), code
    assert len(shown) == 1


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_been_executed_and_opens_in_colab(notebook):
    """All cells but the installation have a number, and the badge names this file."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]

    assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
    assert f"colab.research.google.com/github/filch-dev/filch/blob/main/examples/{notebook.name}" in "".join(
        cells[0]["source"]
    )
    assert any("text/html" in output.get("data", {}) for cell in cells for output in cell.get("outputs", ()))
