"""The language of the files of faults: Python expressions, evaluated with a few names.

The files belong to the project and are trusted, as its code is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def load(owner: str, name: str) -> dict[str, Any]:
    """Return the contents of a TOML file beside a module, given the module's `__file__`."""
    return tomllib.loads(Path(owner).with_name(name).read_text(encoding="utf-8"))


def made(kind: Callable[..., T], fields: Mapping[str, Any], **more: Any) -> T:
    """Return an object of a class with the fields that a file has; lists become tuples."""
    return kind(**{name: tuple(item) if isinstance(item, list) else item for name, item in fields.items()}, **more)


class Names(dict[str, Any]):
    """What the names in an expression mean.

    Args:
        shared: expressions by name, evaluated where they are used.
        add: adds a node to a graph, given the operator; it is called for names in capitals, as in `Mul(x, 2.0)`.
        names: values by name.
    """

    def __init__(
        self, shared: Mapping[str, str] | None = None, /, *, add: Callable[..., Any] | None = None, **names: Any
    ) -> None:
        super().__init__(names)
        self._shared, self._add = shared or {}, add

    def __missing__(self, name: str) -> Any:
        if name in self._shared:
            return self.evaluate(self._shared[name])
        if self._add is not None and name[0].isupper():
            return partial(self._add, name)
        raise KeyError(name)

    def evaluate(self, text: str) -> Any:
        """Return the value of an expression."""
        return eval(f"({text})", {"torch": torch}, self)  # noqa: S307  see above
