"""Finds a part of a list that still does what the whole does, and of which nothing can be left out."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], shows: Callable[[Sequence[T]], bool]) -> list[T]:
    """The items that are needed for `shows` to hold, which it does for all of them.

    Delta debugging, by complements: no single one of what is returned can be left out. Source: Zeller and Hildebrandt,
    "Simplifying and isolating failure-inducing input", 2002.
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        smaller = next((rest for rest in _complements(kept, parts) if shows(rest)), None)
        if smaller is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(2 * parts, len(kept))
        else:
            break
    return kept


def _complements(items: Sequence[T], parts: int) -> Iterator[list[T]]:
    """The items without one of so many parts of them."""
    ends = [len(items) * part // parts for part in range(parts + 1)]
    for start, end in pairwise(ends):
        yield [*items[:start], *items[end:]]
