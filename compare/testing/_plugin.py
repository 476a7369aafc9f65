"""The pytest plugin: fixture `filch`, marker `filch_backends`, options `--filch-…`.

pytest imports this module at every start, used or not; therefore the fixtures import the slow modules.
"""

import hashlib
import logging
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ._expected_failures import Table, expect_failures, read_table
from ._summary import STALE, Summary

if TYPE_CHECKING:
    from ._checks import Checks

_MARK = "filch_backends"
_SUMMARY = "filch-summary"
_STORED = pytest.StashKey[set[Path]]()
_EXPECTED = pytest.StashKey[Table]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line options and ini settings."""
    group = parser.getgroup("filch", "filch: regression tests of models")
    group.addoption("--filch-update", action="store_true", help="Overwrite golden dumps, and print what changed.")
    group.addoption(
        "--filch-allow-less-precise",
        action="store_true",
        help="Let --filch-update store values that are further from float64 than before.",
    )
    group.addoption("--filch-report", type=Path, metavar="DIR", help="Write each comparison, as HTML and JSON.")
    group.addoption(
        "--filch-summary",
        type=Path,
        metavar="FILE",
        help="Append a Markdown table of tests and backends to FILE; to $GITHUB_STEP_SUMMARY if that is set.",
    )
    parser.addini("filch_golden", "Folder of golden dumps, beside the test file.", default="golden")
    parser.addini("filch_accepted", "TOML file of values that need not be judged, with reasons.", default="")
    parser.addini("filch_expected_failures", "TOML file of expected failures by backend.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and, in the process that collects the results, the summary."""
    config.addinivalue_line("markers", f"{_MARK}(*names): run the test once for each of these backends")
    config.stash[_STORED] = set()
    expected = config.getini("filch_expected_failures")
    config.stash[_EXPECTED] = read_table(config.rootpath / expected) if expected else {}
    if not hasattr(config, "workerinput"):  # which workers of xdist have
        config.pluginmanager.register(Summary(config.getoption("--filch-summary")), _SUMMARY)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with the backends of its marker."""
    marker, test = metafunc.definition.get_closest_marker(_MARK), metafunc.definition.nodeid
    if marker is None:
        return
    if not marker.args or not all(isinstance(name, str) for name in marker.args):
        pytest.fail(f"{test}: {_MARK} takes names of backends, not {marker.args!r}", pytrace=False)
    if "filch_backend" not in metafunc.fixturenames:
        pytest.fail(f"{test}: {_MARK} is for tests that take the fixture `filch` or `filch_backend`", pytrace=False)
    metafunc.parametrize("filch_backend", marker.args, indirect=True)


@pytest.hookimpl(tryfirst=True)  # before -k and -m deselect tests
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Mark the tests that are expected to fail."""
    stale = expect_failures(session.config.stash[_EXPECTED], session, items)
    summary = session.config.pluginmanager.get_plugin(_SUMMARY)
    if summary is not None:
        summary.stale.update(stale)
    elif stale:
        session.config.workeroutput[STALE] = stale  # type: ignore[attr-defined]  # xdist's


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Keep torch's trace out of what pytest shows of a failing test: remove pytest's handlers from its logger.

    torch logs each step of an export to it, at the level DEBUG and without a text: the records are for its own handler.
    Since version 9.2 pytest adds its handlers, for each phase of a test, also to loggers that do not propagate.
    """
    logger = logging.getLogger("torch.__trace")
    for handler in [*logger.handlers]:
        if type(handler).__module__ == "_pytest.logging":
            logger.removeHandler(handler)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.fixture
def filch_backend(request: pytest.FixtureRequest) -> str | None:
    """Return the name of this test's backend; None without `@pytest.mark.filch_backends`."""
    name: str | None = getattr(request, "param", None)
    if name is None:
        return None
    from filch.export import BackendError
    from filch.export.backends import backend_names, get_backend

    try:
        get_backend(name)
    except BackendError as error:
        if name not in backend_names():  # there is no such backend; one that is not available is skipped
            raise
        for entry in (("backend", name), ("result", "skipped"), ("first_divergence", str(error))):
            _record_property(request.node, *entry)
        pytest.skip(str(error))
    return name


@pytest.fixture
def filch(request: pytest.FixtureRequest, filch_backend: str | None) -> "Checks":
    """Return the object for regression tests: `filch.check(model, args)`, `filch.golden("name").check(model, args)`."""
    from ._artifacts import ArtifactStore
    from ._checks import Checks

    config, node = request.config, request.node
    folder: Path | None = config.getoption("--filch-report")

    artifacts = ArtifactStore(
        golden=request.path.parent / config.getini("filch_golden") / request.path.stem,
        reports=None if folder is None else folder.absolute() / _folder_name(node.nodeid),
        scratch=lambda: request.getfixturevalue("tmp_path") / "filch",
        record=partial(_record_property, node),
        update=bool(config.getoption("--filch-update")),
        allow_less_precise=bool(config.getoption("--filch-allow-less-precise")),
        stored=config.stash[_STORED],
        accepted=_accepted(config),
    )
    return Checks(artifacts, filch_backend)


def _accepted(config: pytest.Config) -> dict[str, str]:
    """Return the values that need not be judged in any test, with the reasons."""
    from ..common._accepted import read_accepted

    file = config.getini("filch_accepted")
    return read_accepted(config.rootpath / file) if file else {}


def _record_property(node: pytest.Item, name: str, value: str) -> None:
    """Add a property to the test, for the JUnit file and for the process that writes the summary."""
    from filch.steal.text._visible import visible

    node.user_properties.append((f"filch.{name}", visible(value)))


def _folder_name(nodeid: str) -> str:
    """Return a folder name for a test: the same in each run, and safe for any test name."""
    readable = re.sub(r"[^\w.-]+", "-", nodeid)[-80:].strip("-.")
    return f"{readable}-{hashlib.sha256(nodeid.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
