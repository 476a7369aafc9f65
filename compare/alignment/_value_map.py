"""`ValueMap`: which module outputs of two implementations correspond, as a TOML file that people read and edit."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from filch.steal.files._outputs import write_output
from filch.steal.files._untrusted import read_toml
from filch.steal.text._toml import for_toml

from ..common._errors import CompareError
from ..layouts._layout import Layout
from ..results._alignment import Alignment

_HEADING = """\
# Which module outputs of implementation A (left) are where in B (right). A layout says where the elements of A are in
# the value of B: offset+size:stride·size:stride; without one, they are in the same order. Rows can be added and
# changed; `filch align --mapping` checks them.
"""


@dataclass(frozen=True)
class MappedValue:
    """Where a module output of A is in B.

    Attributes:
        place: the module of B, with the path of the tensor in what it returned: `decoder`, `decoder[0]`.
        layout: where its elements are in the value of B; None if they are in the same order.
    """

    place: str
    layout: Layout | None = None


@dataclass(frozen=True)
class ValueMap:
    """Which module outputs of two implementations correspond.

    Attributes:
        values: by the module of A, with the path of the tensor in what it returned.
    """

    values: Mapping[str, MappedValue] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Alignment) -> "ValueMap":
        """Return the values that were found whole in the output of a module of B."""
        values = {}
        for value in result.covered:
            place = value.modules[0] if value.modules else None
            if place is not None and value.layout:  # `layout` is "" if not all elements are there
                layout = Layout.parse(value.layout)
                whole = layout.is_contiguous and layout.offset == 0 and not value.order  # the default of a row
                values[value.record] = MappedValue(place, None if whole else layout)
        return cls(values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a TOML file that `load_value_map` reads."""
        write_output(path, "\n".join([_HEADING, "[values]", *self._lines(), ""]))

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the table of values in TOML."""
        for name, value in self.values.items():
            place = for_toml(value.place)
            text = place if value.layout is None else f"{{ in = {place}, layout = {for_toml(str(value.layout))} }}"
            yield f"{for_toml(name)} = {text}"


def load_value_map(path: str | os.PathLike[str]) -> ValueMap:
    """Read a mapping from a TOML file.

    Args:
        path: a file with a table `values`: `"model.norm" = "final"`, or
            `"model.layers.0.attn.q" = { in = "blocks.0.qkv", layout = "0+14:128·64:1" }`.

    Raises:
        FilchError: the file can't be read, or does not have this form.
    """
    name, contents = os.fspath(path), read_toml(path, "mapping")
    table = contents.get("values")
    if contents.keys() != {"values"} or not isinstance(table, dict):
        raise CompareError(f"{name!r}: a mapping has one table, [values]")
    try:
        return ValueMap({key: _mapped(value) for key, value in table.items()})
    except (TypeError, ValueError) as error:
        raise CompareError(f"{name!r}: {error}") from error


def _mapped(value: Any) -> MappedValue:
    """Return a row of the table `values` in a TOML file.

    Raises:
        TypeError: it is no module of B, and no table of `in` and `layout`.
        ValueError: the layout has another form.
    """
    entry = {"in": value} if isinstance(value, str) else value
    if not isinstance(entry, dict) or not {"in"} <= entry.keys() <= {"in", "layout"}:
        raise TypeError(f"a value is a module of B or a table of in and layout, not {value!r}")
    if not all(isinstance(item, str) for item in entry.values()):
        raise TypeError(f"in and layout are strings, not {value!r}")
    return MappedValue(entry["in"], Layout.parse(entry["layout"]) if "layout" in entry else None)
