"""The differences between two dumps of the same model, tensor by tensor."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from ..float64._verdict import format_ratio
from ..rendering._console import as_text
from ..rendering._html import as_page
from ..rendering._json import NOT_IN_JSON
from ..rendering._outcome import Gap, Proof
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Columns, Line, Table, fit_paths, folded, hidden_text, table_of
from ..rendering._words import command_text, listed
from ._module_summary import module_summary
from ._next_command import to_show_all
from ._row_tables import ARROW, surrounding
from ._rows import DiffRow

_FORWARD = ("I", "O")  # kinds of records: inputs and outputs of modules
_OF_ONE_PROCESS = ("GP", "C")  # accumulated gradients and collectives, which only one of several processes may have
_AROUND = 5  # rows before and after the first difference
_MAX_MODULES, _MAX_RANKS = 10, 16  # on a terminal
_WRONG, _RIGHT, _UNKNOWN = "differs", "ok", "?"  # what the values of a module are on a rank
_BAD = (_WRONG, _UNKNOWN)
_ONLY_INHERITED = "; each module that ran alone is right for its own inputs"


@dataclass(frozen=True, repr=False)
class DumpDiff(Result):
    """The comparison of two dumps, tensor by tensor.

    Attributes:
        reference: the path or name of the first dump.
        actual: the path or name of the second dump.
        rows: in the order of the first dump's run; records that only the second one has come last.
        isolated: for outputs that differ and whose modules ran alone, by `DiffRow.place`: the comparison of what the
            module computes from the inputs that the second dump has for it with the second dump's output.
        cause: why values differ from a golden dump: `code`, `environment`, `both`, `inputs`, `not reproducible` or
            `unknown`; `""` if that was not examined.
        reasons: sentences that explain the cause.
        causes: why each value differs from a golden dump, in a word or two, by `DiffRow.place`.
        files: of several processes: the paths of the dumps of the second run.
        learned: of several processes: how plain tensors were put together, by the value's place (see `Layouts`).
        command: the command line that made the result, for the next command that it suggests; `""` if it was made in
            Python.
    """

    reference: str
    actual: str
    rows: tuple[DiffRow, ...]
    isolated: Mapping[str, DiffRow] = field(default_factory=dict)
    cause: str = ""
    reasons: tuple[str, ...] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    learned: Mapping[str, str] = field(default_factory=dict)
    command: str = field(default="", metadata=NOT_IN_JSON)
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_diff": 4}

    @cached_property
    def diverged(self) -> tuple[DiffRow, ...]:
        """The rows in which the dumps differ."""
        return tuple(row for row in self.rows if row.diverged)

    @cached_property
    def introduced(self) -> tuple[DiffRow, ...]:
        """The rows in which the dumps differ and whose own module is wrong, so that the error is not inherited."""
        return tuple(row for row in self.diverged if row.place in self.isolated and self.isolated[row.place].diverged)

    @property
    def first_divergence(self) -> DiffRow | None:
        """The first row in which the dumps differ.

        If modules ran alone, it is the first one whose module is wrong by itself, unless what the model is given
        differs, its parameters or inputs, or replicas of a value do.
        """
        if not self.introduced:
            return next(iter(self.diverged), None)
        names = {row.key.name for row in self.rows if row.key.kind in _FORWARD}
        return next(row for row in self.diverged if row in self.introduced or _is_given(row, names))

    @property
    def first_difference(self) -> str:
        """The first row in which the dumps differ, as a sentence."""
        return str(self.first_divergence or "")

    @property
    def proof(self) -> Proof:
        """What was judged: a value may be wrong, or not judged and not covered by the outputs that depend on it."""
        gaps = (Gap(row.place, row.reason) for row in _uncovered(self.rows))
        return Proof(sum(row.judged for row in self.rows), bool(self.diverged), tuple(gaps))

    @property
    def headline(self) -> str:
        """How many values were judged and how many differ."""
        judged = sum(row.judged for row in self.rows)
        return f"judged {judged} of {len(self.rows)} values; {len(self.diverged)} differ"

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:  # noqa: ARG002  nothing is cut
        """Return the verdict, the first row that differs with the rows around it, and a row for each module.

        Args:
            wide: whether nothing is cut.
            all_rows: a row for each value.
        """
        yield from (*self.heading(), "", self._verdict())
        first = self.first_divergence
        if all_rows:
            yield from ("", self._table(self.rows))
        elif first is not None:
            yield from ("", Line("First difference:", "heading"), self._table(surrounding(self.rows, first, _AROUND)))
        for reason in self.reasons:
            yield from ("", reason)
        if grid := rank_grid(self.rows):
            yield from ("", Line("Ranks:", "heading"), *grid)
        if not all_rows:
            yield from ("", Line("Modules:", "heading"), *module_summary(self.rows, first))

    @property
    def next_command(self) -> NextCommand:
        """The command that shows each value."""
        files = [self.reference, *(self.files or [self.actual])]
        if not all(map(os.path.isfile, files)):
            return NextCommand("print(result.table(all_rows=True))", "show a row for each value")
        return to_show_all(self.command or command_text("diff", *files))

    def excerpt(self, *, around: int = 3, width: int = 80) -> str:
        """Return the first row that differs, and `around` rows before and after it, as text; `""` if none differs."""
        first = self.first_divergence
        return "" if first is None else as_text([self._table(surrounding(self.rows, first, around))], width=width)

    def _page(self) -> str:
        """Return the page: a row for each value, and all ranks."""
        grid = rank_grid(self.rows, whole=True)
        return as_page(self.title, [self.headline, self._verdict(), *self.reasons, *grid, self._table(self.rows)])

    @property
    def title(self) -> str:
        """The names of both dumps."""
        return f"{self.actual} against {self.reference}"

    def _table(self, rows: Sequence[DiffRow]) -> Table:
        """Return a table of values, without the columns that say nothing of them."""
        columns: Columns[DiffRow] = {
            Column("value", fit_paths, least=12, preferred=24): lambda row: row.place,
            Column("is", folded, optional=1): lambda row: row.what,
            "error": lambda row: row.error,
            "times rounding": _times,
            "module alone": lambda row: _times(self.isolated[row.place]) if row.place in self.isolated else None,
            "cause": lambda row: self.causes.get(row.place),
            "ranks": lambda row: ", ".join(map(str, row.ranks)) or None,
            Column("layout", folded, optional=1): lambda row: row.layout or None,
            "attention": self._attention,
            "reason": lambda row: row.reason or (row.difference.problem if row.difference else None),
        }
        return table_of(columns, rows, marked=lambda row: row.diverged, skip_empty=True)

    def _verdict(self) -> str:
        """Return the first row that differs as a sentence, or what was not judged."""
        first = self.first_divergence
        if first is not None and first in self.introduced:
            before = "" if first == self.diverged[0] else f"; the first that differs is {self.diverged[0].place}"
            return f"the first that its module computes wrong from its own inputs is {first}{before}"
        if first is not None:
            return f"the first that differs is {first}{_ONLY_INHERITED if self.isolated else ''}"
        if gaps := self.gap_sentences():
            more = listed(gaps, 1, ", and {} more")
            return f"all judged values are close, but {more}" if self.proof.judged else gaps[-1]
        unjudged = next((row for row in self.rows if not row.judged), None)
        return "all close" if unjudged is None else f"all judged values are close; the first not judged: {unjudged}"

    def _attention(self, row: DiffRow) -> str | None:
        """Return the mark of a row: an arrow where an error starts, `inherited` where its module is right by itself.

        `differs` where the module was not run alone; None if the row does not differ.
        """
        if not row.diverged or row.place not in self.isolated:
            return "differs" if row.diverged else None
        return ARROW if row in self.introduced else "inherited"


def _times(row: DiffRow) -> str | None:
    """Return the difference as a multiple of the rounding level; None if it was not judged by it."""
    return None if row.ratio is None else format_ratio(row.ratio)


def _uncovered(rows: Sequence[DiffRow]) -> list[DiffRow]:
    """Return the rows that were not judged, without inputs and inner values whose model's outputs all were.

    A record that only one of several processes has, such as a collective, is no value of the first dump.
    """
    names = {row.key.name for row in rows if row.key.kind in _FORWARD}
    unjudged = [row for row in rows if not row.judged and row.key.kind not in _OF_ONE_PROCESS and not row.is_extra]
    with_gaps = {row.key.name for row in unjudged if row.key.kind == "O"}
    judged_modules = {row.key.name for row in rows if row.key.kind == "O"} - with_gaps  # all of their outputs were

    def is_covered(row: DiffRow) -> bool:
        """Return whether a value says nothing new, as the outputs of its model were judged."""
        model = outermost(row.key.name, names)
        is_output = row.key.kind == "O" and row.key.name == model
        return row.key.kind in _FORWARD and not is_output and model in judged_modules

    return [row for row in unjudged if not is_covered(row)]


def _is_given(row: DiffRow, names: Collection[str]) -> bool:
    """Return whether a value is wrong for no value before it: a parameter, an input of the model, or its replicas."""
    return row.faulty or row.key.kind == "P" or (row.key.kind == "I" and outermost(row.key.name, names) == row.key.name)


def outermost(name: str, names: Collection[str]) -> str:
    """Return which of the recorded modules `names` is the outermost that has a module in it; `name` if none has."""
    paths = ["", *accumulate(name.split("."), lambda path, part: f"{path}.{part}")]
    return next((path for path in paths if path in names), name)


def rank_grid(rows: Sequence[DiffRow], *, whole: bool = False) -> list[Block]:
    """Return a table with a row for each module and a column for each rank; nothing for dumps of one process.

    A cell is `differs` if a value of the module is wrong on the rank, `?` if one is wrong on some rank and it is not
    known on which, `ok`, or empty if the rank has no value of the module.

    Args:
        rows: the values.
        whole: show all modules, for a page; else the first that differ, if the ranks fit on a terminal.
    """
    all_ranks = sorted({rank for row in rows for rank in row.held_by})
    by_module = defaultdict[str, list[DiffRow]](list)
    for row in rows:
        if row.held_by:
            by_module[row.module or "(model)"].append(row)
    names = [name for name, values in by_module.items() if whole or any(value.diverged for value in values)]
    if not names or (not whole and len(all_ranks) > _MAX_RANKS):
        return []
    most = None if whole else _MAX_MODULES
    cells = [(name, *(_state(by_module[name], rank) for rank in all_ranks)) for name in names[:most]]
    wrong = {(row, at) for row, states in enumerate(cells) for at, state in enumerate(states[1:], 1) if state in _BAD}
    columns = (Column("module", fit_paths), *(Column(str(rank)) for rank in all_ranks))
    return [Table(columns, tuple(cells), wrong=frozenset(wrong)), *hidden_text(names, most, "more modules that differ")]


def _state(values: Sequence[DiffRow], rank: int) -> str:
    """Return what a module's values are on a rank; `""` if it has none of them, or none that was judged."""
    held = [value for value in values if rank in value.held_by]
    wrong = [value for value in held if value.diverged]
    if any(rank in value.ranks for value in wrong):
        return _WRONG
    if any(not value.ranks for value in wrong):
        return _UNKNOWN
    return _RIGHT if any(value.judged for value in held) else ""
