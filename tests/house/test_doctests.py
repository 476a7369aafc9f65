"""The examples in docstrings say what they claim."""

import doctest
import importlib
import linecache
import pkgutil

import pytest

import filch.compare
import filch.export
import filch.steal

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
