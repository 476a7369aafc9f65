"""Expected failures, in a table by backend: an unexpected pass fails."""

import reprlib
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

_LARGEST = 2**20  # bytes of a table
_DOTS = 100  # in a line: tables are nested by them
_REASON = 2_000  # characters of a reason
Table = dict[str, dict[str, str]]


def without_backend(nodeid: str, backend: str) -> str:
    """The name of a test without the backend that it is run on.

    >>> without_backend("tests/test_x.py::test_y[tiny-onnxruntime-cpu]", "onnxruntime-cpu")
    'tests/test_x.py::test_y[tiny]'
    """
    if not backend:
        return nodeid
    test, bracket, parameters = nodeid.partition("[")
    found = f"-{parameters.removesuffix(']')}-".replace(f"-{backend}-", "-", 1).strip("-")
    return f"{test}[{found}]" if bracket and found else test


def expect_failures(table: Table, session: pytest.Session, items: Iterable[pytest.Item]) -> list[str]:
    """Mark the tests that a table names as expected to fail, strictly.

    Returns:
        what is wrong with the table: the tests that are not there, as far as this run tells.
    """
    left = {(backend, test) for backend, tests in table.items() for test in tests}
    files = set()
    for item in items:
        files.add(item.nodeid.partition("::")[0])
        backend = _backend(item) or ""
        name = without_backend(item.nodeid, backend)
        for known in {name, name.partition("[")[0]} & table.get(backend, {}).keys():
            item.add_marker(
                pytest.mark.xfail(reason=_shown(table[backend][known], _REASON), raises=AssertionError, strict=True)
            )
            left.discard((backend, known))
    stale = sorted(entry for entry in left if _is_judged(entry[1], session, files))
    return [
        f"there is no test '{_shown(name)}' on backend '{_shown(backend)}' to be expected to fail"
        for backend, name in stale
    ]


def _backend(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("filch_backend")


def _is_judged(name: str, session: pytest.Session, files: set[str]) -> bool:
    """Whether this run would have collected a test of this name, so that it is known not to be there."""
    config = session.config
    some = config.getoption("lf", default=False) or any("::" in argument for argument in config.args)
    if session.testsfailed or some:
        return False
    source, invoked = config.args_source, config.invocation_params.dir
    whole = source is config.ArgsSource.TESTPATHS or (
        source is config.ArgsSource.INVOCATION_DIR and invoked == config.rootpath
    )
    return whole or name.partition("::")[0] in files


def _shown(text: object, longest: int = 300) -> str:
    """Text of a table as a sentence shows it."""
    from filch.steal.text import named  # noqa: PLC0415  loads torch

    return named(text, longest)


def _value(value: object) -> str:
    """What stands in a table, shortened."""
    try:
        return _shown(reprlib.repr(value))
    except (ValueError, RecursionError):  # a number of too many digits, tables in tables
        return f"a value of type {type(value).__name__}"


def _contents(path: Path) -> str:
    """The text of a file; `filch.steal`, which has more to say of files, would load torch at each start of pytest."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    if path.stat().st_size > _LARGEST:
        raise OSError(f"it has more than {_LARGEST:,} bytes")
    text = path.read_text("utf-8")
    if any(line.count(".") > _DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {_DOTS} dots")
    return text


def read_table(path: Path) -> Table:
    """The reasons by backend and test.

    Raises:
        pytest.UsageError: it can't be read.
    """
    try:
        table = tomllib.loads(_contents(path))
    except (OSError, ValueError, RecursionError) as error:
        raise pytest.UsageError(f"the expected failures '{_shown(path)}' can't be read: {_shown(error)}") from None
    for backend, tests in table.items():
        if not isinstance(tests, dict) or not all("::" in name and isinstance(tests[name], str) for name in tests):
            raise pytest.UsageError(
                f"{_shown(path)}: under [{_shown(backend)}] stand lines like "
                f'"tests/test_x.py::test_y" = "the reason", not {_value(tests)}'
            )
    return table
