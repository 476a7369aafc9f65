"""The history of many comparisons: what became wrong, and when."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from filch.steal.text._visible import short_line

from ..rendering._json import NOT_IN_JSON
from ..rendering._outcome import Proof
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Columns, Line, fit_paths, section, table_of
from ..rendering._words import listed, plural
from ..results._cells import Cell, CellStatus, Divergence, LedgerRow, label_of
from ._regressions import (
    BAD,
    Change,
    Cluster,
    Flaky,
    NotRun,
    Regression,
    clustered,
    flaky_of,
    grouped,
    not_run,
    ran,
    regressions_of,
)

_MAX_MEMBERS = 8  # rows of a table that is not wide
_MAX_CHANGES = 12


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of a cell in one run; see `LedgerRow` for the attributes."""

    run: str
    key: str
    status: CellStatus
    error: float | None
    detail: str
    blame: Divergence | None
    reused: str | None = None
    gaps: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: LedgerRow) -> "CellOutcome":
        """Return the outcome of a row."""
        return cls(row.run, row.key, row.status, row.error, row.detail, row.blame, row.reused, row.gaps)


@dataclass(frozen=True)
class CellHistory:
    """A cell, which has the same labels in all runs.

    Attributes:
        labels: its model, backend, dtype, sizes …, by their titles.
        status: its status in the last of its outcomes.
        outcomes: those of the runs that have a row for it, oldest first.
    """

    labels: Mapping[str, str]
    status: CellStatus
    outcomes: tuple[CellOutcome, ...]


@dataclass(frozen=True, repr=False)
class History(Result):
    """What became wrong in many runs.

    Attributes:
        ledgers: the files that were read.
        runs: the starts of the runs in UTC, as ISO 8601, oldest first.
        clusters: the regressions, newest first; those of one cluster probably have the same cause.
        not_run: the cells that did not run the last time, newest first.
        flaky: the cells that became wrong and close again although nothing changed, newest first.
        never_close: the labels of cells that were wrong whenever they ran.
        cells: all cells, by their labels.
        notes: sentences about lines that were left out.
        command: the command line that writes the site; `""` if it is not known.
    """

    ledgers: tuple[str, ...]
    runs: tuple[str, ...]
    clusters: tuple[Cluster, ...]
    not_run: tuple[NotRun, ...]
    flaky: tuple[Flaky, ...]
    never_close: tuple[Mapping[str, str], ...]
    cells: tuple[CellHistory, ...]
    notes: tuple[str, ...] = ()
    command: str = field(default="", metadata=NOT_IN_JSON)  # a reader could not trust it
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_history": 1}

    @property
    def open_clusters(self) -> tuple[Cluster, ...]:
        """The clusters with a cell that is not close again."""
        return tuple(cluster for cluster in self.clusters if cluster.fixed is None)

    @property
    def fixed_clusters(self) -> tuple[Cluster, ...]:
        """The clusters whose cells are all close again."""
        return tuple(cluster for cluster in self.clusters if cluster.fixed is not None)

    @property
    def counts(self) -> dict[str, int]:
        """The number of cells of each status, the last time that they were compared."""
        return dict(Counter(cell.status for cell in self.cells).most_common())

    @property
    def proof(self) -> Proof:
        """What was judged the last time that each cell was compared."""
        latest = ((cell, cell.outcomes[-1]) for cell in self.cells)
        return Proof.together(Cell({}, cell.status, detail=last.detail, gaps=last.gaps).proof for cell, last in latest)

    @property
    def not_repeated(self) -> int:
        """The number of cells without a row in the latest run."""
        return sum(cell.outcomes[-1].run != self.runs[-1] for cell in self.cells)

    @property
    def next_command(self) -> NextCommand | None:
        """The command that writes the site; None if it is not known."""
        return NextCommand(self.command, "see the history of each cell") if self.command else None

    @property
    def headline(self) -> str:
        """The number of regressions, and of cells of each status."""
        count = sum(regression.fixed is None for cluster in self.clusters for regression in cluster.regressions)
        regressed = f"{plural(count, 'cell')} regressed" if count else "no regression"
        causes = f" ({plural(len(self.open_clusters), 'cause')})" if count else ""
        statuses = ", ".join(f"{number} {status}" for status, number in self.counts.items())
        return f"{regressed}{causes}; {plural(len(self.cells), 'cell')} in {plural(len(self.runs), 'run')}: {statuses}"

    def derived(self) -> Mapping[str, Any]:
        """Return the version of the format, the outcome, and the numbers of the headline."""
        return {**super().derived(), "counts": self.counts}

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:
        """Return the regressions, then the other cells that are not close; if `wide` or `all_rows`, all cells."""
        yield from self.heading()
        yield from self.remarks()
        for cluster in self.clusters if all_rows else self.open_clusters:
            yield from ("", *_cluster_blocks(cluster, wide=wide, most=None if all_rows else _MAX_MEMBERS))
        fixed = len(self.clusters) - len(self.open_clusters)
        if fixed and not all_rows:
            yield from ("", f"{plural(fixed, 'regression')} before these, fixed since, not shown: --wide shows all")
        whole = partial(section, skip_empty=False)
        yield from whole("Could not run:", _NOT_RUN, self.not_run)
        yield from whole("Flaky: the status changed back and forth, the key did not:", _FLAKY, self.flaky)
        yield from whole("Never close:", {"cell": cell_name}, self.never_close)
        if all_rows:
            yield from whole("All cells:", _CELLS, self.cells, marked=lambda cell: cell.status in BAD)

    def remarks(self) -> Iterable[str]:
        """Return sentences about what was not read or not compared again."""
        yield from self.notes
        if self.not_repeated:
            yield (
                f"{plural(self.not_repeated, 'cell')} not compared in the latest run, {moment(self.runs[-1])}: "
                "an earlier outcome is shown."
            )


def history(
    rows: Iterable[LedgerRow], *, ledgers: Sequence[str] = (), notes: Sequence[str] = (), command: str = ""
) -> History:
    """Return the history of all cells.

    Args:
        rows: at most one for each cell and run, in the order of the runs; see `read_ledgers`.
        ledgers: the files that they are from.
        notes: sentences about lines that were left out.
        command: the command line that writes the site.
    """
    by_labels = grouped(rows, lambda row: tuple(row.labels.items()))
    by_cell = sorted(by_labels.values(), key=lambda group: cell_name(group[0].labels))
    regressions = [found for group in by_cell for found in regressions_of(group)]
    flaky = [found for group in by_cell if (found := flaky_of(group)) is not None]
    # Cells that are shown as flaky or as an open regression are not listed as never close.
    explained = {tuple(found.labels.items()) for found in flaky}
    explained |= {tuple(found.labels.items()) for found in regressions if found.fixed is None}
    wrong = (group[0].labels for group in by_cell for last in ran(group)[-1:] if last.status in BAD)
    return History(
        ledgers=tuple(ledgers),
        runs=tuple(sorted({row.run for group in by_cell for row in group})),
        clusters=tuple(clustered(regressions)),
        not_run=tuple(not_run(by_cell)),
        flaky=tuple(sorted(flaky, key=lambda found: found.last_change, reverse=True)),
        never_close=tuple(labels for labels in wrong if tuple(labels.items()) not in explained),
        cells=tuple(
            CellHistory(group[0].labels, group[-1].status, tuple(map(CellOutcome.of, group))) for group in by_cell
        ),
        notes=tuple(notes),
        command=command,
    )


def moment(run: str) -> str:
    """Return the start of a run without seconds, in UTC."""
    return run[:16].replace("T", " ")


def ordered_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels in the order model, backend, dtype, then the others."""
    titles = dict.fromkeys(("model", "backend", "dtype", *labels))
    return {title: labels[title] for title in titles if title in labels}


def cell_name(labels: Mapping[str, str]) -> str:
    """Return labels as a phrase, like `models.py:bert, inductor, float16, batch=2`."""
    texts = (
        text if title in ("model", "backend", "dtype") else f"{title.removeprefix('dim:')}={text}"
        for title, text in ordered_labels(labels).items()
    )
    return ", ".join(map(short_line, texts))


def when(cluster: Cluster) -> str:
    """Return the runs in which a cluster began and ended, as a sentence."""
    fixed = "" if cluster.fixed is None else f", close again since {moment(cluster.fixed)}"
    return f"since {moment(cluster.first_bad)}, last good {moment(cluster.last_good)}{fixed}"


def what_changed(cluster: Cluster) -> str:
    """Return what changed in the environment between the last good and the first bad run, as a sentence."""
    regressions = cluster.regressions
    if cluster.changes or cluster.changes is None:
        text = f"Changed: {changes_text(cluster.changes)}."
    elif all(regression.same_key for regression in regressions):
        text = "Nothing changed that Filch records: the environment and the keys are the same."
    else:
        text = "The environment is the same: the code, the options or the sizes changed."
    flaky = sum(regression.flaky_before for regression in regressions)
    return f"{text} Flaky before: {flaky} of {len(regressions)}." if flaky else text


def changes_text(changes: Sequence[Change] | None) -> str:
    """Return what changed in the environment, as a phrase."""
    if changes is None:
        return "unknown, as the environment was not recorded"
    return listed([*map(short_line, changes)], _MAX_CHANGES, ", and {} more") or "nothing"


def cells_text(cells: Sequence[Mapping[str, str]]) -> str:
    """Return the name of the first cell, and the number of further ones."""
    return cell_name(cells[0]) + (f" and {plural(len(cells) - 1, 'more cell')}" if len(cells) > 1 else "")


def _cluster_blocks(cluster: Cluster, *, wide: bool, most: int | None) -> Iterable[Block]:
    """Yield the title of a cluster, when it began, what changed then, and a table of its first regressions."""
    yield Line(cluster.title, "heading")
    yield f"  {when(cluster)}"
    yield f"  {what_changed(cluster)}"
    titles = dict.fromkeys(title for one in cluster.regressions for title in ordered_labels(one.labels))
    labels: Columns[Regression] = {title: partial(label_of, title) for title in titles}
    yield table_of(labels | (_MEMBER_WIDE if wide else _MEMBER), cluster.regressions[:most])
    hidden = len(cluster.regressions[most:]) if most else 0
    yield from [f"  and {plural(hidden, 'more cell')}"] if hidden else ()


_MEMBER: Columns[Regression] = {
    "before": lambda regression: regression.error_before,
    "error": lambda regression: regression.error,
    Column("module", fit_paths): lambda one: (one.blame and one.blame.module) or f"({one.status})",
}
_MEMBER_WIDE: Columns[Regression] = {
    **_MEMBER,
    "status": lambda regression: regression.status,
    "times rounding": lambda regression: regression.blame and regression.blame.times_rounding,
    "fixed": lambda regression: moment(regression.fixed or ""),
    "first divergence": lambda regression: regression.detail,
}
_NOT_RUN: Columns[NotRun] = {
    "cells": lambda found: cells_text(found.cells),
    "status": lambda found: found.status,
    "since": lambda found: moment(found.since),
    "last ran": lambda found: moment(found.last_ran or "never"),
    "reason": lambda found: found.detail,
}
_FLAKY: Columns[Flaky] = {
    "cell": lambda found: cell_name(found.labels),
    "changes": lambda found: str(found.changes),
    "close": lambda found: str(found.close),
    "bad": lambda found: str(found.bad),
    "last change": lambda found: moment(found.last_change),
}
_CELLS: Columns[CellHistory] = {
    "cell": lambda cell: cell_name(cell.labels),
    "status": lambda cell: cell.status,
    "error": lambda cell: cell.outcomes[-1].error,
    "runs": lambda cell: str(len(cell.outcomes)),
    "last run": lambda cell: moment(cell.outcomes[-1].run),
    "first divergence": lambda cell: cell.outcomes[-1].detail,
}
