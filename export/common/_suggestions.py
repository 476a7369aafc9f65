"""Suggest a name for one that does not exist."""

from collections.abc import Sequence
from difflib import get_close_matches


def hint(name: str, known: Sequence[str]) -> str:
    """Suggest the most similar of the known names, or list all of them."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"


_DTYPES = {
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "single": "float32",
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
}


def dtype_hint(name: str) -> str:
    """Return a suggestion to append to a message about a dtype that does not exist; `""` if there is none.

    >>> dtype_hint("fp16")
    "; did you mean 'float16'?"
    """
    close = _DTYPES.get(name.lower()) or next(iter(get_close_matches(name, set(_DTYPES.values()), n=1)), None)
    return f"; did you mean {close!r}?" if close else ""
