"""Import an optional dependency."""

from importlib import import_module
from typing import Any

from ._errors import CompareError


def import_optional(name: str, extra: str, what: str) -> Any:
    """Return a module.

    Args:
        name: its name.
        extra: what installs it: `filch[ray]`.
        what: what needs it, for the message.

    Raises:
        CompareError: it is not installed, or can't be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise CompareError(f"{what} needs {name}: pip install '{extra}' ({error})") from error
