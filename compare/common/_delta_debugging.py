"""Find a minimal sufficient subset by delta debugging (Zeller and Hildebrandt 2002)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimize(items: Sequence[T], is_sufficient: Callable[[Sequence[T]], bool], *, guess: int = 1) -> list[T]:
    """Return a minimal sufficient subset of `items`, preferring the first ones.

    A binary search finds the shortest sufficient prefix; its last item is necessary. If that item alone is sufficient,
    `is_sufficient` was called at most `2 * ceil(log2(n)) + 2` times for n items (`ceil(log2(n)) + 1` times if `guess`
    is n/2). Otherwise `minimize_by_removal` reduces the prefix.

    Args:
        items: a sufficient set.
        is_sufficient: judges a subset; it may be called repeatedly with the same subset. The empty set is insufficient.
        guess: the length of the first prefix to try.

    Returns:
        a subset that is sufficient, and of which `is_sufficient` returned False without any single member.
    """
    low, high = 0, min(max(1, guess), len(items))
    while high < len(items) and not is_sufficient(items[:high]):
        low, high = high, min(2 * high, len(items))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_sufficient(items[:middle]) else (middle, high)
    last = items[high - 1 : high]
    return list(last) if is_sufficient(last) else minimize_by_removal(items[:high], is_sufficient)


def minimize_by_removal(items: Sequence[T], is_sufficient: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a minimal sufficient subset of `items`, with at least one item.

    Parts are removed while the rest is sufficient: first halves, then smaller parts, finally single items.

    Args:
        items: a sufficient set.
        is_sufficient: judges a subset; it is never called with the empty set.
    """
    remaining, size = list(items), len(items)
    while size:
        size = (size + 1) // 2
        dropped = False
        for start in range((len(remaining) - 1) // size * size, -1, -size):  # the last ones first, to keep the first
            fewer = remaining[:start] + remaining[start + size :]
            if fewer and is_sufficient(fewer):
                remaining, dropped = fewer, True
        if size == 1 and not dropped:
            return remaining
    return remaining
