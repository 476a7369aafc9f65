"""Find the cells that became wrong, the runs in which they did, and what they have in common."""

import re
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeVar

import networkx as nx

from filch.steal.text._visible import short_line

from ..results._cells import CellStatus, Divergence, LedgerRow

GOOD = "close"
BAD = frozenset({"different", "incomplete", "failed"})
Labels = Mapping[str, str]
_SHOWN_OPERATORS = 3
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])", re.ASCII)  # a part of a path that is a number
_NUMBER = re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True)
class Change:
    """An entry of the environment that changed between two runs.

    Attributes:
        name: the entry: a package, or `processor`, `threads` and others.
        before: its value in the earlier run; None if it was not recorded.
        after: its value in the later run; None if it was not recorded.
    """

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.before or '(not there)'} → {self.after or '(not there)'}"


@dataclass(frozen=True)
class Regression:
    """A cell that became wrong.

    Attributes:
        labels: those of the cell.
        last_good: the last run before in which it was close.
        first_bad: the first run in which it was not.
        fixed: the first run after it in which it is close again; None if there is none yet.
        status: `different`, `incomplete` or `failed`, in the first bad run.
        error_before: the largest harmonic error in the last good run.
        error: the same in the first bad run.
        detail: the first divergence, or why it could not be compared, in the first bad run.
        blame: the first divergence.
        changes: what changed in the environment; None if it was not recorded.
        same_key: whether the key of the cell did not change, so that nothing that Filch knows explains the regression.
        flaky_before: whether the cell was flaky with the key of the last good run.
    """

    labels: Labels
    last_good: str
    first_bad: str
    fixed: str | None
    status: CellStatus
    error_before: float | None
    error: float | None
    detail: str
    blame: Divergence | None
    changes: tuple[Change, ...] | None
    same_key: bool
    flaky_before: bool


@dataclass(frozen=True)
class Cluster:
    """Regressions that began in the same run and probably have the same cause.

    Attributes:
        first_bad: the run in which they began.
        last_good: the latest of the last good runs of the cells.
        fixed: the run since which all cells are close again; None if one is not.
        title: the blamed operators and modules, or the reason if nothing is blamed.
        operators: the blamed operators.
        modules: the blamed modules, with `*` for the numbers of layers.
        changes: what changed in the environment of at least one cell; None if it was not recorded.
        regressions: one for each cell.
    """

    first_bad: str
    last_good: str
    fixed: str | None
    title: str
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    changes: tuple[Change, ...] | None
    regressions: tuple[Regression, ...]


@dataclass(frozen=True)
class NotRun:
    """Cells that have not run since the same run for the same reason.

    Attributes:
        since: the first run in which they did not run.
        status: `missing`, `crashed`, `timeout` or `lost`, the last time.
        detail: the reason.
        last_ran: the last run in which they ran; None if there is none.
        changes: what changed in the environment between these two runs; None if it was not recorded.
        cells: the labels of the cells.
    """

    since: str
    status: CellStatus
    detail: str
    last_ran: str | None
    changes: tuple[Change, ...] | None
    cells: tuple[Labels, ...]


@dataclass(frozen=True)
class Flaky:
    """A cell that became wrong and close again although its key did not change.

    Attributes:
        labels: those of the cell.
        last_change: the last run in which the status was another one than before with the same key.
        changes: how often the status changed with the same key.
        close: the number of runs with these keys in which it was close.
        bad: the number of runs with these keys in which it was not.
    """

    labels: Labels
    last_change: str
    changes: int
    close: int
    bad: int


def ran(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return the rows of a cell in which it ran."""
    return [row for row in rows if row.status == GOOD or row.status in BAD]


def flaky_keys(rows: Iterable[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Return the rows of the keys of a cell with which it changed back and forth, by key; without reused results."""
    by_key = grouped((row for row in ran(rows) if row.reused is None), lambda row: row.key)
    return {key: group for key, group in by_key.items() if len(_flips(group)) >= 2}  # from good to bad and back


def flaky_of(rows: Sequence[LedgerRow]) -> Flaky | None:
    """Return how a cell is flaky; None if it is not."""
    groups = flaky_keys(rows).values()
    if not groups:
        return None
    flips = sorted(run for group in groups for run in _flips(group))
    good = [row.status == GOOD for group in groups for row in group]
    return Flaky(rows[0].labels, flips[-1], len(flips), good.count(True), good.count(False))


def regressions_of(rows: Sequence[LedgerRow]) -> list[Regression]:
    """Return the regressions of a cell, from its rows in the order of the runs.

    Bad runs with a key with which the cell is flaky count neither as good nor as bad.
    """
    flaky = flaky_keys(rows)
    judged = [row for row in ran(rows) if row.status == GOOD or row.key not in flaky]
    streaks = [[*group] for _, group in groupby(judged, lambda row: row.status == GOOD)]  # alternately good and bad
    return [
        _regression(good[-1], bad[0], fixed[0].run if fixed else None, flaky)
        for good, bad, fixed in zip(streaks, streaks[1:], [*streaks[2:], []], strict=False)
        if good[0].status == GOOD  # else a bad streak and the good one after it
    ]


def clustered(regressions: Sequence[Regression]) -> list[Cluster]:
    """Return regressions in clusters, newest first.

    Two regressions that began in the same run are in the same cluster if the same operator is blamed, or the same
    module of the same model up to the numbers of layers; or, if nothing is blamed, if their reasons are equal up to
    numbers.
    """
    graph = nx.Graph()
    for index, regression in enumerate(regressions):
        graph.add_edges_from((index, (regression.first_bad, mark)) for mark in _marks(regression))
    components = (sorted(node for node in part if isinstance(node, int)) for part in nx.connected_components(graph))
    clusters = [_cluster([regressions[index] for index in component]) for component in components]
    return sorted(clusters, key=lambda cluster: (cluster.first_bad, len(cluster.regressions)), reverse=True)


def not_run(cells: Iterable[Sequence[LedgerRow]]) -> list[NotRun]:
    """Return the cells that did not run the last time, from the rows of each cell, newest first."""
    stopped = (found for rows in cells if (found := _stopped(rows)) is not None)
    alike = grouped(stopped, lambda found: replace(found, cells=()))  # equal but for their cells
    merged = (replace(one, cells=tuple(found.cells[0] for found in group)) for one, group in alike.items())
    return sorted(merged, key=lambda found: found.since, reverse=True)


def environment_changes(before: LedgerRow, after: LedgerRow) -> tuple[Change, ...] | None:
    """Return the entries of the environment that differ; None if one of them was not recorded."""
    first, second = before.environment, after.environment
    if not first or not second:
        return None
    names = sorted({*first, *second}, key=lambda name: (name not in _VERSIONS, name))
    changed = (Change(name, first.get(name), second.get(name)) for name in names)
    return tuple(change for change in changed if change.before != change.after)


_VERSIONS = ("torch", "onnx", "onnxruntime", "openvino", "transformers", "numpy", "python")  # what is shown first


def without_layers(module: str) -> str:
    """Return the path of a module with `*` for each number of a layer.

    >>> without_layers("model.layers.12.norm1")
    'model.layers.*.norm1'
    """
    return _INDEX.sub("*", module)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return items by their key, in the order in which each key occurs first."""
    groups: dict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _flips(rows: Sequence[LedgerRow]) -> list[str]:
    """Return the runs in which a cell became wrong or close."""
    return [after.run for before, after in pairwise(rows) if (before.status == GOOD) != (after.status == GOOD)]


def _regression(good: LedgerRow, bad: LedgerRow, fixed: str | None, flaky: Container[str]) -> Regression:
    """Return the regression of a cell between its last good row and its first bad one; `flaky` are its flaky keys."""
    return Regression(
        labels=bad.labels,
        last_good=good.run,
        first_bad=bad.run,
        fixed=fixed,
        status=bad.status,
        error_before=good.error,
        error=bad.error,
        detail=bad.detail,
        blame=bad.blame,
        changes=environment_changes(good, bad),
        same_key=good.key == bad.key,
        flaky_before=good.key in flaky,
    )


def _marks(regression: Regression) -> Iterable[tuple[str, ...]]:
    """Yield what a regression has in common with others of its cluster; two that share a mark are in the same one."""
    blame = regression.blame
    if blame is None or not (blame.operator or blame.module):
        yield "reason", regression.status, _NUMBER.sub("#", regression.detail)
        return
    if blame.operator:
        yield "operator", blame.operator
    if blame.module:
        yield "module", regression.labels.get("model", ""), without_layers(blame.module)


def _cluster(regressions: Sequence[Regression]) -> Cluster:
    """Return regressions that began in the same run as a cluster."""
    blames = [regression.blame for regression in regressions if regression.blame is not None]
    operators = tuple(dict.fromkeys(blame.operator for blame in blames if blame.operator))
    modules = tuple(dict.fromkeys(without_layers(blame.module) for blame in blames if blame.module))
    recorded = [regression.changes for regression in regressions if regression.changes is not None]
    fixed = [regression.fixed for regression in regressions if regression.fixed is not None]
    return Cluster(
        first_bad=regressions[0].first_bad,
        last_good=max(regression.last_good for regression in regressions),
        fixed=max(fixed) if len(fixed) == len(regressions) else None,
        title=_title(operators, modules) or short_line(regressions[0].detail) or regressions[0].status,
        operators=operators,
        modules=modules,
        changes=tuple(dict.fromkeys(change for changes in recorded for change in changes)) if recorded else None,
        regressions=tuple(regressions),
    )


def _title(operators: Sequence[str], modules: Sequence[str]) -> str:
    """Return the first blamed operators, and the first blamed module with the number of others; `""` without any."""
    more = f" and {len(modules) - 1} other module{'s' if len(modules) > 2 else ''}" if len(modules) > 1 else ""
    shown = " + ".join(map(short_line, operators[:_SHOWN_OPERATORS]))
    return " in ".join(filter(None, (shown, *(short_line(name) + more for name in modules[:1]))))


def _stopped(rows: Sequence[LedgerRow]) -> NotRun | None:
    """Return since when a cell has not run; None if it ran the last time."""
    done, last = ran(rows), rows[-1]
    if not done:
        return NotRun(rows[0].run, last.status, last.detail, None, None, (last.labels,))
    if last is done[-1]:
        return None
    first = rows[rows.index(done[-1]) + 1]
    changes = environment_changes(done[-1], first)
    return NotRun(first.run, last.status, last.detail, done[-1].run, changes, (last.labels,))
