"""Suggest a name for one that does not exist."""

from collections.abc import Sequence
from difflib import get_close_matches


def hint(name: str, known: Sequence[str]) -> str:
    """Suggest the most similar of the known names, or list all of them."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
