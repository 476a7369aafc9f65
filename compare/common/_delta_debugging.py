"""Finds a smallest set that is enough: delta debugging, after Zeller and Hildebrandt (2002)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest(items: Sequence[T], enough: Callable[[Sequence[T]], bool], *, guess: int = 1) -> list[T]:
    """Those of `items` without which they are not enough, those in front preferred.

    The first ones that are enough are found by doubling and halving their number: the last of them is needed among
    them. If that one alone is not enough, what is not needed of the others is dropped. Where it is, `enough` was asked
    at most `2 * ceil(log2(n)) + 2` times about some of n items; with `guess` half of them, `ceil(log2(n)) + 1` times.

    Args:
        items: are enough together.
        enough: whether some of them are; it is asked again about what it was asked before. None are not.
        guess: how many of the first ones are tried first.

    Returns:
        a smallest set in the sense that it is not enough without any single one of its members: `enough` said so.
    """
    low, high = 0, min(max(1, guess), len(items))
    while high < len(items) and not enough(items[:high]):
        low, high = high, min(2 * high, len(items))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(items[:middle]) else (middle, high)
    last = items[high - 1 : high]
    return list(last) if enough(last) else needed(items[:high], enough)


def needed(items: Sequence[T], enough: Callable[[Sequence[T]], bool]) -> list[T]:
    """Those of `items` that are needed, of which there is one at least.

    Parts are left out as long as the rest is enough: halves at first, then smaller ones, single items at last.

    Args:
        items: are enough together.
        enough: whether some of them are; it is not asked about none.
    """
    kept, size = list(items), len(items)
    while size:
        size = (size + 1) // 2
        dropped = False
        for start in range((len(kept) - 1) // size * size, -1, -size):
            fewer = kept[:start] + kept[start + size :]
            if fewer and enough(fewer):
                kept, dropped = fewer, True
        if size == 1 and not dropped:
            return kept
    return kept
