"""The differences between two dumps of the same model, tensor by tensor."""

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from ..float64._verdict import format_ratio
from ..rendering._console import as_text
from ..rendering._html import as_page
from ..rendering._outcome import Gap, Proof
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Line, Table, fit_paths, folded, table_of
from ._module_summary import module_summary
from ._next_command import to_show_all
from ._rank_grid import rank_grid
from ._row_tables import ARROW, surrounding
from ._rows import DiffRow

_FORWARD, _OF_ONE_PROCESS = ("I", "O"), ("GP", "C")  # kinds of records
_AROUND = 5  # rows before and after the first difference


@dataclass(frozen=True, repr=False)
class DumpDiff(Result):
    """The comparison of two dumps, tensor by tensor.

    Attributes:
        expected: the path or name of the first dump.
        actual: the path or name of the second dump.
        rows: in the order of the first dump's run; records that only the second one has come last.
        cause: why values differ from a golden dump: `code`, `environment`, `both`, `inputs`, `not reproducible` or
            `unknown`; `""` if that was not examined.
        reasons: sentences that explain the cause.
        files: of several processes: the paths of the dumps of the second run.
        learned: of several processes: how plain tensors were put together, by the value's place (see `Layouts`).
        command: the command line that made the result, for the next command that it suggests; `""` if it was made in
            Python.
    """

    expected: str
    actual: str
    rows: tuple[DiffRow, ...]
    cause: str = ""
    reasons: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    learned: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_diff": 2}

    @cached_property
    def diverged(self) -> tuple[DiffRow, ...]:
        """The rows in which the dumps differ."""
        return tuple(row for row in self.rows if row.diverged)

    @property
    def first_divergence(self) -> DiffRow | None:
        """The first row in which the dumps differ.

        If modules ran alone, it is the first one whose module is wrong by itself, unless what the model is given
        differs, its parameters or inputs, or replicas of a value do.
        """
        names = {row.key.name for row in self.rows if row.key.kind in _FORWARD}
        first = next((row for row in self.diverged if row.introduced or _is_given(row, names)), None)
        has_introduced = first is not None and any(row.introduced for row in self.diverged)
        return first if has_introduced else next(iter(self.diverged), None)

    @property
    def first_difference(self) -> str:
        """The first row in which the dumps differ, as a sentence."""
        return str(self.first_divergence or "")

    @property
    def proof(self) -> Proof:
        """What was judged: a value may be wrong, or not judged and not covered by the outputs that depend on it."""
        gaps = (Gap(_label(row), row.reason) for row in _uncovered(self.rows))
        return Proof(sum(row.judged for row in self.rows), bool(self.diverged), tuple(gaps))

    @property
    def headline(self) -> str:
        """How many values were judged and how many differ."""
        judged = sum(row.judged for row in self.rows)
        return f"judged {judged} of {len(self.rows)} values; {len(self.diverged)} differ"

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:
        """Return the verdict, the first row that differs with the rows around it, and a row for each module.

        Args:
            wide: a row for each value instead, with nothing cut.
            all_rows: a row for each value.
        """
        yield from (*self.heading(), "", self._verdict())
        first = self.first_divergence
        if wide or all_rows:
            yield from ("", _table(self.rows))
        elif first is not None:
            yield from ("", Line("First difference:", "heading"), _table(surrounding(self.rows, first, _AROUND)))
        for reason in self.reasons:
            yield from ("", reason)
        if grid := rank_grid(self.rows):
            yield from ("", Line("Ranks:", "heading"), *grid)
        if not (wide or all_rows):
            yield from ("", Line("Modules:", "heading"), *module_summary(self.rows, first))

    @property
    def next_command(self) -> NextCommand:
        """The command that shows each value."""
        files = [self.expected, *(self.files or [self.actual])]
        command = self.command or shlex.join(["filch", "diff", *files])
        if not all(map(os.path.isfile, files)):
            return NextCommand("print(result.table(all_rows=True))", "show a row for each value")
        return to_show_all(command)

    def excerpt(self, *, around: int = 3, width: int = 80) -> str:
        """Return the first row that differs, and `around` rows before and after it, as text; `""` if none differs."""
        first = self.first_divergence
        return "" if first is None else as_text([_table(surrounding(self.rows, first, around))], width=width)

    def _page(self) -> str:
        grid = rank_grid(self.rows, whole=True)
        return as_page(self.title, [self.headline, self._verdict(), *self.reasons, *grid, _table(self.rows)])

    @property
    def title(self) -> str:
        """The names of both dumps."""
        return f"{self.actual} against {self.expected}"

    def _verdict(self) -> str:
        first = self.first_divergence
        if first is not None and first.introduced:
            before = f"; the first that differs is {_label(self.diverged[0])}" if first != self.diverged[0] else ""
            return f"the first that its module computes wrong from its own inputs is {first}{before}"
        if first is not None:
            return f"the first that differs is {first}{self._only_inherited()}"
        if gaps := self.gap_sentences():
            more = f", and {len(gaps) - 1} more" if len(gaps) > 1 else ""
            return f"all judged values are close, but {gaps[0]}{more}" if self.proof.judged else gaps[-1]
        unjudged = next((row for row in self.rows if not row.judged), None)
        return "all close" if unjudged is None else f"all judged values are close; the first not judged: {unjudged}"

    def _only_inherited(self) -> str:
        """Return that no module is wrong by itself, if any of those with wrong outputs ran alone; else `""`."""
        if all(row.isolated is None for row in self.diverged):
            return ""
        return "; each module that ran alone is right for its own inputs"


def _uncovered(rows: Sequence[DiffRow]) -> list[DiffRow]:
    """Return the rows that were not judged, without inputs and inner values whose model's outputs all were.

    A record that only one of several processes has, such as a collective, is no value of the first dump.
    """
    names = {row.key.name for row in rows if row.key.kind in _FORWARD}
    unjudged = [row for row in rows if not row.judged and row.key.kind not in _OF_ONE_PROCESS and not row.is_extra]
    open_models = {row.key.name for row in unjudged if row.key.kind == "O"}
    outputs = {row.key.name for row in rows if row.key.kind == "O"} - open_models

    def is_covered(row: DiffRow) -> bool:
        model = outermost(row.key.name, names)
        is_output = row.key.kind == "O" and row.key.name == model
        return row.key.kind in _FORWARD and not is_output and model in outputs

    return [row for row in unjudged if not is_covered(row)]


def _is_given(row: DiffRow, names: Collection[str]) -> bool:
    """Return whether a value is wrong for no value before it: a parameter, an input of the model, or its replicas."""
    return row.faulty or row.key.kind == "P" or (row.key.kind == "I" and outermost(row.key.name, names) == row.key.name)


def outermost(name: str, names: Collection[str]) -> str:
    """Return the name of the outermost recorded module that has a module in it."""
    parts = name.split(".")
    return next(path for end in range(len(parts) + 1) if (path := ".".join(parts[:end])) in names or path == name)


def _table(rows: Sequence[DiffRow]) -> Table:
    return table_of(_COLUMNS, rows, marked=lambda row: row.diverged, skip_empty=True)


def _label(row: DiffRow) -> str:
    return f"{row.key.label}{row.path}"


def _times(row: DiffRow | None) -> str | None:
    return None if row is None or row.ratio is None else format_ratio(row.ratio)


def _attention(row: DiffRow) -> str:
    """Return the mark of a row: an arrow where an error starts, `inherited` where its module is right by itself."""
    if not row.diverged or row.isolated is None:
        return "differs" if row.diverged else ""
    return ARROW if row.introduced else "inherited"


_COLUMNS: dict[str | Column, Callable[[DiffRow], object]] = {
    Column("value", fit_paths, least=12, preferred=24): _label,
    Column("is", folded, optional=1): lambda row: row.what,
    "error": lambda row: row.error,
    "times rounding": _times,
    "module alone": lambda row: _times(row.isolated),
    "cause": lambda row: row.cause or None,
    "ranks": lambda row: ", ".join(map(str, row.ranks)) or None,
    Column("layout", folded, optional=1): lambda row: row.layout or None,
    "attention": _attention,
    "reason": lambda row: row.reason or (row.difference.problem if row.difference else None),
}
