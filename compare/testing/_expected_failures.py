"""A TOML table of expected failures by backend; an unexpected pass fails."""

import reprlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from filch.steal import FilchError
from filch.steal.files._untrusted import read_toml
from filch.steal.text._visible import short_line

_MAX_REASON = 2_000  # characters
Table = dict[str, dict[str, str]]


def without_backend(nodeid: str, backend: str) -> str:
    """Return the name of a test without the backend among its parameters.

    >>> without_backend("tests/test_x.py::test_y[tiny-onnxruntime-cpu]", "onnxruntime-cpu")
    'tests/test_x.py::test_y[tiny]'
    """
    if not backend:
        return nodeid
    test, bracket, parameters = nodeid.partition("[")
    others = f"-{parameters.removesuffix(']')}-".replace(f"-{backend}-", "-", 1).strip("-")
    return f"{test}[{others}]" if bracket and others else test


def expect_failures(table: Table, session: pytest.Session, items: Iterable[pytest.Item]) -> list[str]:
    """Mark the tests of a table, which names them with or without their parameters, as strict expected failures.

    Returns:
        an error message for each test of the table that this run should have collected and did not.
    """
    unused = {(backend, test) for backend, tests in table.items() for test in tests}
    files = set()
    for item in items:
        files.add(item.nodeid.partition("::")[0])
        backend = _backend(item) or ""
        name = without_backend(item.nodeid, backend)
        for entry in {name, name.partition("[")[0]} & table.get(backend, {}).keys():
            reason = short_line(table[backend][entry], _MAX_REASON)
            item.add_marker(pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))
            unused.discard((backend, entry))
    stale = sorted(entry for entry in unused if _should_be_collected(entry[1], session, files))
    return [
        f"there is no test '{short_line(name)}' on backend '{short_line(backend)}', but a failure of it is expected"
        for backend, name in stale
    ]


def _backend(item: pytest.Item) -> str | None:
    """Return the backend that a test is parametrized with (see `pytest_generate_tests`); None without one."""
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("filch_backend")


def _should_be_collected(name: str, session: pytest.Session, files: set[str]) -> bool:
    """Return whether this run would have collected a test of this name if it existed."""
    config = session.config
    # --last-failed, tests by their ids, and files that could not be imported: not all tests of a file are collected.
    partial = config.getoption("lf", default=False) or any("::" in argument for argument in config.args)
    if session.testsfailed or partial:
        return False
    source, invoked = config.args_source, config.invocation_params.dir
    complete = source is config.ArgsSource.TESTPATHS or (
        source is config.ArgsSource.INVOCATION_DIR and invoked == config.rootpath
    )
    return complete or name.partition("::")[0] in files


def _describe(value: object) -> str:
    """Return a value of the table, shortened."""
    try:
        return short_line(reprlib.repr(value))
    except (ValueError, RecursionError):  # a number of too many digits, tables in tables
        return f"a value of type {type(value).__name__}"


def read_table(path: Path) -> Table:
    """Return the reasons of the expected failures, by backend and test.

    Raises:
        pytest.UsageError: the file can't be read.
    """
    try:
        table = read_toml(path, "table of expected failures")
    except FilchError as error:
        raise pytest.UsageError(f"the expected failures: {short_line(error)}") from None
    for backend, tests in table.items():
        if not isinstance(tests, dict) or not all("::" in name and isinstance(tests[name], str) for name in tests):
            raise pytest.UsageError(
                f"{short_line(path)}: expected lines like "
                f'"tests/test_x.py::test_y" = "the reason" under [{short_line(backend)}], found {_describe(tests)}'
            )
    return table
