"""Find a minimal sufficient subset by delta debugging (Zeller and Hildebrandt 2002)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest(items: Sequence[T], enough: Callable[[Sequence[T]], bool], *, guess: int = 1) -> list[T]:
    """Return a minimal sufficient subset of `items`, preferring the first ones.

    A binary search finds the shortest sufficient prefix; its last item is necessary. If that item alone is sufficient,
    `enough` was called at most `2 * ceil(log2(n)) + 2` times for n items (`ceil(log2(n)) + 1` times if `guess` is n/2).
    Otherwise `needed` reduces the prefix.

    Args:
        items: a sufficient set.
        enough: whether a subset is sufficient; it may be called repeatedly with the same subset. The empty set is not.
        guess: the length of the first prefix to try.

    Returns:
        a subset that is sufficient, and of which `enough` returned False without any single member.
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
    """Return a minimal sufficient subset of `items`, with at least one item.

    Parts are removed while the rest is sufficient: first halves, then smaller parts, finally single items.

    Args:
        items: a sufficient set.
        enough: whether a subset is sufficient; it is never called with the empty set.
    """
    remaining, size = list(items), len(items)
    while size:
        size = (size + 1) // 2
        dropped = False
        for start in range((len(remaining) - 1) // size * size, -1, -size):
            fewer = remaining[:start] + remaining[start + size :]
            if fewer and enough(fewer):
                remaining, dropped = fewer, True
        if size == 1 and not dropped:
            return remaining
    return remaining
