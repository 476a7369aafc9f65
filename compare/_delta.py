"""Finds a smallest set that is enough: delta debugging, after Zeller and Hildebrandt (2002)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def needed(items: Sequence[T], enough: Callable[[Sequence[T]], bool]) -> list[T]:
    """Those of `items` without which they are not enough, in their order.

    Parts are left out as long as the rest is enough: halves at first, then smaller ones, single items at last. Where
    all comes down to one of n items, `enough` is asked at most `2 * ceil(log2(n))` times about some of them, and about
    none of them.

    Args:
        items: are enough together; what is likely to be needed stands in front.
        enough: whether some of them are, in their order; it is asked again about what it was asked before.

    Returns:
        a smallest set in the sense that it is not enough without any single one of its members: `enough` said so.
    """
    kept, size = list(items), len(items)
    while size:
        size = (size + 1) // 2
        dropped = False
        for start in range((len(kept) - 1) // size * size, -1, -size):
            fewer = kept[:start] + kept[start + size :]
            if enough(fewer):
                kept, dropped = fewer, True
        if size == 1 and not dropped:
            return kept
    return kept
