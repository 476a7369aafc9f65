"""The pytest plugin: fixture `filch`, marker `filch_backends`, options `--filch-…`.

pytest imports it at each of its starts, whether it is used or not: what is heavy is imported when the fixture is.
"""

import hashlib
import logging
import re
from collections.abc import Iterator
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
    """The options and settings."""
    group = parser.getgroup("filch", "filch: regression tests of models")
    group.addoption("--filch-update", action="store_true", help="Store golden dumps anew, and say what changed.")
    group.addoption("--filch-report", type=Path, metavar="DIR", help="Write each comparison, as HTML and JSON.")
    group.addoption(
        "--filch-summary",
        type=Path,
        metavar="FILE",
        help="Append a Markdown table of tests and backends to FILE; to $GITHUB_STEP_SUMMARY if that is set.",
    )
    parser.addini("filch_golden", "Folder of golden dumps, beside the test file.", default="golden")
    parser.addini("filch_expected_failures", "TOML file of expected failures by backend.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known; the process that gathers the results writes the summary."""
    config.addinivalue_line("markers", f"{_MARK}(*names): run the test once for each of these backends")
    config.stash[_STORED] = set()
    expected = config.getini("filch_expected_failures")
    config.stash[_EXPECTED] = read_table(config.rootpath / expected) if expected else {}
    if not hasattr(config, "workerinput"):  # of xdist
        config.pluginmanager.register(Summary(config.getoption("--filch-summary")), _SUMMARY)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each backend that is asked for."""
    marker, test = metafunc.definition.get_closest_marker(_MARK), metafunc.definition.nodeid
    if marker is None:
        return
    if not marker.args or not all(isinstance(name, str) for name in marker.args):
        pytest.fail(f"{test}: {_MARK} takes names of backends, not {marker.args!r}", pytrace=False)
    if "filch_backend" not in metafunc.fixturenames:
        wanted = "the fixture `filch` or `filch_backend`"
        pytest.fail(f"{test}: {_MARK} is for tests that take {wanted}", pytrace=False)
    metafunc.parametrize("filch_backend", marker.args, indirect=True)


@pytest.hookimpl(tryfirst=True)  # before -k and -m, which leave some out
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Mark the tests that are expected to fail."""
    stale = expect_failures(session.config.stash[_EXPECTED], session, items)
    summary = session.config.pluginmanager.get_plugin(_SUMMARY)
    if summary is not None:
        summary.stale.update(stale)
    elif stale:
        session.config.workeroutput[STALE] = stale  # type: ignore[attr-defined]  # xdist's


@pytest.fixture
def filch_backend(request: pytest.FixtureRequest) -> str | None:
    """The name of the backend that this test is for; None without `@pytest.mark.filch_backends`."""
    name: str | None = getattr(request, "param", None)
    if name is None:
        return None
    from filch.export import BackendError
    from filch.export.backends import backend_names, get_backend

    if name in backend_names():  # of any other name, get_backend says that there is none
        try:
            get_backend(name)
        except BackendError as error:
            for said in (("backend", name), ("result", "skipped"), ("first_divergence", str(error))):
                _say(request.node, *said)
            pytest.skip(str(error))
    else:
        get_backend(name)
    return name


@pytest.fixture
def filch(request: pytest.FixtureRequest, filch_backend: str | None) -> Iterator["Checks"]:
    """Regression tests of models: `filch.check(model, args)`, `filch.golden("name").check(model, args)`."""
    from ._artifacts import ArtifactStore
    from ._checks import Checks

    config, node = request.config, request.node
    folder: Path | None = config.getoption("--filch-report")

    place = ArtifactStore(
        golden=request.path.parent / config.getini("filch_golden") / request.path.stem,
        reports=None if folder is None else folder.absolute() / _folder_name(node.nodeid),
        scratch=lambda: request.getfixturevalue("tmp_path") / "filch",
        say=partial(_say, node),
        update=bool(config.getoption("--filch-update")),
        stored=config.stash[_STORED],
    )
    # torch tells of each step of an export, in lines that a failing test would show.
    traces = logging.getLogger("torch.__trace")
    before, traces.propagate = traces.propagate, False
    yield Checks(place, filch_backend)
    traces.propagate = before


def _say(node: pytest.Item, name: str, value: str) -> None:
    """Note a result with the test: it goes into the JUnit file, and to the process that writes the summary."""
    from filch.steal.text import visible  # loads torch, as the comparison did

    node.user_properties.append((f"filch.{name}", visible(value)))


def _folder_name(nodeid: str) -> str:
    """A name for the files of a test: the same in each run, and safe whatever the test is called."""
    readable = re.sub(r"[^\w.-]+", "-", nodeid)[-80:].strip("-.")
    return f"{readable}-{hashlib.sha256(nodeid.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"
