"""Write values and text as Python source, strings only through `repr`."""

import math
import sys
from collections.abc import Mapping
from typing import Any

from ._visible import shortened

_MAX_LENGTH = 1000  # characters of a docstring's line


def python_literal(value: Any) -> str:
    r"""Return Python source that evaluates to a value and calls nothing but `float`.

    Args:
        value: None, a bool, a number, a string, bytes, a torch dtype (written as `torch.float16`), or a list, tuple,
            set or mapping of these. An instance of a subclass, such as an enum member, is written as the plain value.

    Raises:
        TypeError: the value is none of these; its `repr` could be any code.

    >>> python_literal({"name": "it's", "limit": float("inf")})
    '{\'name\': "it\'s", \'limit\': float(\'inf\')}'
    """
    if value is None or isinstance(value, bool) or _is_dtype(value):
        return repr(value)
    for kind in (str, bytes, int):
        if isinstance(value, kind):
            return kind.__repr__(value)  # pyright: ignore[reportArgumentType]  of that kind
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f"float({float.__repr__(value)!r})"
    if isinstance(value, Mapping):
        entries = (f"{python_literal(key)}: {python_literal(item)}" for key, item in value.items())
        return f"{{{', '.join(entries)}}}"
    items = [python_literal(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else None
    if items is None:
        raise TypeError(f"a {type(value).__name__} can't be written as Python source")
    if isinstance(value, tuple):
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(items)}]"
    return f"{{{', '.join(items)}}}" if items else "set()"


def python_docstring(text: str) -> str:
    r'''Return text as a docstring of one line, with its triple quotes, that the text can't end.

    >>> print(python_docstring('E"""\nimport os'))
    """E\"\"\"\nimport os"""
    '''
    inside = repr(shortened(text, _MAX_LENGTH))[1:-1].replace('"', '\\"')
    return f'"""{inside}"""'


def _is_dtype(value: object) -> bool:
    """Whether a value is a dtype of torch, which takes longer to import than the rest of this package."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].dtype)
