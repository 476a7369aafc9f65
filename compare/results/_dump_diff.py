"""Two dumps of the same model, tensor by tensor."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from filch.steal import Key
from filch.steal.text import named

from ..metrics._metrics import Difference
from ..rendering._console import as_text
from ..rendering._html import as_page
from ..rendering._result import Result, written
from ..rendering._table import Block, Table, table_of
from ._row_tables import ARROW


@dataclass(frozen=True)
class DiffRow:
    """One tensor of two dumps, or one record in which they are not built alike.

    Attributes:
        key: the record's key.
        path: where the tensor stands in the record; `""` for the record itself.
        what: what the first dump has, as `describe` writes it.
        reason: why there is nothing to compare, or `""`.
        difference: how far the second dump's tensor is from the first one's.
        same: without a difference: whether they are the same all the same (as their statistics tell); None if nothing
            tells, as a tensor was not stored.
    """

    key: Key
    path: str
    what: str
    reason: str = ""
    difference: Difference | None = None
    same: bool | None = False

    @property
    def diverged(self) -> bool:
        """Whether the dumps differ here."""
        return self.same is False if self.difference is None else not self.difference.close

    @property
    def judged(self) -> bool:
        """Whether their numbers were held against each other."""
        return self.difference is not None or self.same is True

    def __str__(self) -> str:
        return named(f"{self.key.label}{self.path}: {self.difference or self.reason}")


@dataclass(frozen=True)
class DumpDiff(Result):
    """Two dumps, tensor by tensor.

    Attributes:
        expected: where the first one is.
        actual: where the second one is.
        rows: in the order of the first one's run; what only the second one has comes last.
    """

    expected: str
    actual: str
    rows: tuple[DiffRow, ...]

    @cached_property
    def diverged(self) -> tuple[DiffRow, ...]:
        """The rows in which they differ."""
        return tuple(row for row in self.rows if row.diverged)

    @property
    def first_divergence(self) -> DiffRow | None:
        """The first of them."""
        return next(iter(self.diverged), None)

    @property
    def close(self) -> bool:
        """Whether they hold the same values, at least one that could be judged."""
        return any(row.judged for row in self.rows) and not self.diverged

    def headline(self) -> str:
        """How many tensors were held against each other, in one line."""
        judged = sum(row.judged for row in self.rows)
        return f"judged {judged} of {len(self.rows)} values; {len(self.diverged)} differ"

    def blocks(self, *, wide: bool = False) -> Iterable[Block]:
        """Return the rows that differ, all of them if none does or if it is `wide`, and the verdict."""
        shown = self.rows if wide else self.diverged or self.rows
        return [f"{self.headline()}: {self._title()}", "", _table(shown), "", self._verdict()]

    def excerpt(self, *, around: int = 3, width: int = 80) -> str:
        """Return the first row that differs, and `around` rows before and after it, as text; `""` if none differs."""
        first = self.first_divergence
        if first is None:
            return ""
        index = next(index for index, row in enumerate(self.rows) if row is first)
        return as_text([_table(self.rows[max(0, index - around) : index + around + 1])], width=width)

    def derived(self) -> Mapping[str, Any]:
        """Return whether they hold the same values, and the headline."""
        return {"filch_diff": 1, "close": self.close, "headline": self.headline()}

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as a page of its own, also written to `path` if one is given."""
        return written(as_page(self._title(), [self.headline(), self._verdict(), _table(self.rows)]), path)

    def _title(self) -> str:
        return f"{self.actual} against {self.expected}"

    def _verdict(self) -> str:
        first = self.first_divergence
        if first is not None:
            return f"the first that differs is {first}"
        if not self.close:
            return "nothing could be judged"
        unjudged = next((row for row in self.rows if not row.judged), None)
        return "all close" if unjudged is None else f"what was judged is close; the first that was not is {unjudged}"


def _table(rows: Sequence[DiffRow]) -> Table:
    return table_of(_COLUMNS, rows, marked=lambda row: row.diverged)


def _error(row: DiffRow) -> float | None:
    return None if row.difference is None or row.difference.problem else row.difference.error_max


_COLUMNS = {
    "value": lambda row: f"{row.key.label}{row.path}",
    "is": lambda row: row.what,
    "error": _error,
    "attention": lambda row: ARROW if row.diverged else "",
    "reason": lambda row: row.reason or (row.difference.problem if row.difference else None),
}
