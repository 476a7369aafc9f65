"""Compares two dumps of the same model, from two machines or two versions, say."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from filch.steal import Key, Records, Skipped, Statistics, describe, left_out, restore, structure, tensors
from filch.steal.text import named

from .metrics._metrics import Difference, compare_tensors
from .metrics._tolerance import Tolerance

_FIRST, _SECOND = "the first dump", "the second dump"


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
class DumpDiff:
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

    def __str__(self) -> str:
        from .results._tables import render_diff  # noqa: PLC0415  data does not need what prints it

        return render_diff(self, width=80)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as JSON, also written to `path` if one is given."""
        from .results._formats import diff_to_json  # noqa: PLC0415  as above

        return diff_to_json(self, path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as a page of its own, also written to `path` if one is given."""
        from .results._html import diff_to_html  # noqa: PLC0415  as above

        return diff_to_html(self, path)


def diff(
    expected: str | os.PathLike[str] | Records,
    actual: str | os.PathLike[str] | Records,
    *,
    tolerance: float | Tolerance | None = None,
) -> DumpDiff:
    """Hold the values of two dumps or captures against each other, by key and place; no model is needed.

    Args:
        expected: the one that is taken for right.
        actual: the one that is judged.
        tolerance: see `compare`.

    Raises:
        DumpError: one of them can't be read.
    """
    first = expected if isinstance(expected, Records) else restore(expected)
    second = actual if isinstance(actual, Records) else restore(actual)
    return DumpDiff(first.source, second.source, tuple(_rows(first, second, tolerance)))


def _rows(first: Records, second: Records, tolerance: float | Tolerance | None) -> Iterator[DiffRow]:
    for key in first:
        if key in second:
            yield from value_rows(key, first[key], second[key], tolerance)
        else:
            yield missing_row(key, first[key])
    for key in second:
        if key not in first:
            yield extra_row(key, second[key])


def value_rows(
    key: Key, value: Any, other: Any, tolerance: float | Tolerance | None, *, second: str = _SECOND
) -> Iterator[DiffRow]:
    """A row for each tensor of a record that both dumps have, and one for the record if they are not built alike."""
    if structure(value) != structure(other):
        yield DiffRow(key, "", describe(value), f"it is {describe(other)} in {second}")
    found = tensors(other)
    for path, tensor in tensors(value).items():
        yield DiffRow(key, path, describe(tensor), "", compare_tensors(tensor, found.get(path), tolerance=tolerance))
    missing = left_out(other)
    for path, stand_in in left_out(value).items():
        yield _without_numbers(key, path, stand_in, missing.get(path), second)


def missing_row(key: Key, value: Any, *, second: str = _SECOND) -> DiffRow:
    """The row of a record that the second dump does not have."""
    return DiffRow(key, "", describe(value), f"{second} does not have it")


def extra_row(key: Key, value: Any, *, first: str = _FIRST) -> DiffRow:
    """The row of a record that the first dump does not have."""
    return DiffRow(key, "", describe(value), f"{first} does not have it")


def _without_numbers(
    key: Key, path: str, first: Skipped | Statistics, second: Skipped | Statistics | None, place: str
) -> DiffRow:
    if isinstance(first, Statistics) and isinstance(second, Statistics):
        same = first.content == second.content
        reason = "" if same else f"{describe(first)} is {describe(second)} in {place}"
        return DiffRow(key, path, first.what, reason, same=same)
    reason = first.reason if isinstance(first, Skipped) else f"{place} has no statistics of it"
    return DiffRow(key, path, first.what, f"it was not stored: {reason}", same=None)
