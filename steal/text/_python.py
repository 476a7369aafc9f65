"""Text inside of Python source. Nothing from a model enters it but through `repr`."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from ._visible import shortened

_LONGEST = 1000  # characters of a docstring's line


def python_literal(value: Any) -> str:
    r"""A value as Python source that evaluates to it and calls nothing but `float`.

    Args:
        value: None, a bool, a number, text, bytes, a torch dtype (written as `torch.float16`), or a list, tuple, set or
            mapping of these. A subclass, such as an enumeration's member, is written as the plain value.

    Raises:
        TypeError: it is none of these: its `repr` might be anything.

    >>> python_literal({"name": "it's", "limit": float("inf")})
    '{\'name\': "it\'s", \'limit\': float(\'inf\')}'
    """
    if value is None or isinstance(value, bool | torch.dtype):
        return repr(value)
    for kind in (str, bytes, int):
        if isinstance(value, kind):
            return kind.__repr__(value)  # pyright: ignore[reportArgumentType]  of that kind
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f"float({float.__repr__(value)!r})"
    if isinstance(value, Mapping):
        held = (f"{python_literal(key)}: {python_literal(item)}" for key, item in value.items())
        return f"{{{', '.join(held)}}}"
    items = [python_literal(item) for item in value] if isinstance(value, list | tuple | set | frozenset) else None
    if items is None:
        raise TypeError(f"a {type(value).__name__} can't be written as Python source")
    if isinstance(value, tuple):
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(items)}]"
    return f"{{{', '.join(items)}}}" if items else "set()"


def python_docstring(text: str) -> str:
    r'''A line of text as a docstring, triple quotes included; no text can end it.

    >>> print(python_docstring('E"""\nimport os'))
    """E\"\"\"\nimport os"""
    '''
    inside = repr(shortened(text, _LONGEST))[1:-1].replace('"', '\\"')
    return f'"""{inside}"""'
