"""Suggest a name for one that does not exist."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def hint(name: str, known: Sequence[str]) -> str:
    """Suggest the most similar of the known names, or list all of them."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the most similar of the known names to append to a message, as `; did you mean 'x'?`; `""` if none is."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


_DTYPES = {
    **dict.fromkeys(("fp16", "half", "f16"), "float16"),
    "bf16": "bfloat16",
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}


def dtype_hint(name: str) -> str:
    """Return a suggestion to append to a message about a dtype that does not exist; `""` if there is none.

    >>> dtype_hint("fp16")
    "; did you mean 'float16'?"
    """
    dtype = _DTYPES.get(name.lower(), name)
    return suggestion(dtype, set(_DTYPES.values()))
