"""Numbers and lists as words."""

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "cell"), plural(2000, "cell")
    ('1 cell', '2,000 cells')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[object], most: int | None = 5, rest: str = " and {} more") -> str:
    """Return the first names with commas between them, and how many more there are.

    >>> listed("abc", 2)
    'a, b and 1 more'
    """
    more = rest.format(len(names) - most) if most is not None and len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
