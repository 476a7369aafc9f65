"""Compares two dumps of the same model, from two machines or two versions, say."""

import os
from collections.abc import Iterator
from typing import Any

from filch.steal import Key, Records, Skipped, Statistics, describe, left_out, restore, structure, tensors

from .metrics._metrics import compare_tensors
from .metrics._tolerance import Tolerance
from .results._dump_diff import DiffRow, DumpDiff

_FIRST, _SECOND = "the first dump", "the second dump"


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
