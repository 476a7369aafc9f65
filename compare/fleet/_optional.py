"""Import the library of an executor, which is an optional dependency."""

from importlib import import_module
from typing import Any

from ..common._errors import CompareError


def import_optional(name: str, extra: str) -> Any:
    """Return a module.

    Raises:
        CompareError: it is not installed, or can't be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise CompareError(f"this executor needs {name}: pip install '{extra}' ({error})") from error
