"""Layouts of plain tensors that a user declares, or that were learned from an earlier run."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._errors import FilchError
from .._key import Key
from ..files._outputs import write_output
from ..files._untrusted import read_untrusted
from ..values._sharding import Placement

_DIM = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+|\*)(?:[\[(](?P<marks>[^\])]*)[\])])?")
_PARAMETERS = ("P", "GP", "GF")  # kinds of records
_MAX_SIZE = 2**26  # bytes


def parse_dims(text: str) -> dict[str, Placement]:
    """Return how a tensor is distributed, from the names of its dimensions, as SGLang writes them.

    `"b[dp] s d"` is sharded along its first dimension over the mesh dimension `dp`; `"b s[cp:zigzag] d"` in zigzag
    order along its second; `"b s d[tp:partial]"` is the sum of what the ranks of `tp` have. Over a dimension of the
    mesh that does not occur, it is replicated.

    Returns:
        the placement for each dimension of the mesh that occurs, by name.

    Raises:
        FilchError: the text is not of this form.
    """
    placements = {}
    for dim, word in enumerate(text.split()):
        match = _DIM.fullmatch(word)
        if match is None:
            raise FilchError(f"{text!r} does not name dimensions as 'b[dp] s d[tp:partial]' does: {word!r}")
        for mark in filter(None, (match["marks"] or "").split(",")):
            name, _, modifier = mark.strip().partition(":")
            if modifier not in ("", "partial", "zigzag"):
                raise FilchError(f"{text!r}: {modifier!r} is not 'partial' or 'zigzag'")
            sharded = Placement("shard", dim=dim, zigzag=modifier == "zigzag")
            placements[name] = Placement("partial") if modifier == "partial" else sharded
    return placements


@dataclass(frozen=True)
class Layouts:
    """Layouts of plain tensors.

    Attributes:
        mesh: the sizes of the mesh dimensions by name, in row-major order of the ranks.
        dims: the dimensions of tensors (see `parse_dims`) by pattern; the last pattern that matches a value counts. A
            pattern matches `name` or `name.kind`, with `*` for any characters except a dot, and `**` for any;
            parameters and their gradients only match a pattern that ends with their kind, such as `"**.weight.P"`. It
            tells nothing about tensors that do not have a dimension that is sharded.
        learned: how the parts of single values were put together in an earlier run, by the value's place.
    """

    mesh: Mapping[str, int] = field(default_factory=dict)
    dims: Mapping[str, str] = field(default_factory=dict)
    learned: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in self.dims.values():
            for name in parse_dims(text):
                if name not in self.mesh:
                    raise FilchError(f"the mesh has no dimension {name!r}, which {text!r} names: {dict(self.mesh)}")

    def declared(self, key: Key) -> dict[str, Placement] | None:
        """Return the declared placements of a value by mesh dimension; None if no pattern matches."""
        texts = [text for pattern, text in self.dims.items() if _matches(pattern, key)]
        return parse_dims(texts[-1]) if texts else None


def _matches(pattern: str, key: Key) -> bool:
    parts = (re.escape(part).replace(r"\*", "[^.]*") for part in pattern.split("**"))
    expression = re.compile(".*".join(parts))
    if key.kind in _PARAMETERS and not pattern.endswith(f".{key.kind}"):
        return False
    return any(expression.fullmatch(text) for text in (key.name, f"{key.name}.{key.kind}"))


def load_layouts(path: str | os.PathLike[str]) -> Layouts:
    """Read layouts from a TOML file.

    Args:
        path: a file with the tables `mesh` (`tp = 2`), `dims` (`"layers.*.mlp.O" = "b s d[tp:partial]"`) and `learned`,
            which `save_layouts` writes; all are optional.

    Raises:
        FilchError: the file can't be read, or does not have this form.
    """
    try:
        contents = tomllib.loads(read_untrusted(Path(path), _MAX_SIZE).decode())
    except OSError as error:
        raise FilchError(f"can't read {os.fspath(path)!r}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FilchError(f"{os.fspath(path)!r} is not a TOML file: {error}") from error
    types: dict[str, type] = {"mesh": int, "dims": str, "learned": str}
    for name, table in contents.items():
        expected = types.get(name)
        if (
            expected is None
            or not isinstance(table, dict)
            or any(type(item) is not expected for item in table.values())
        ):
            raise FilchError(f"{os.fspath(path)!r}: [{name}] is not a table mesh, dims or learned of layouts")
    if any(size < 1 for size in contents.get("mesh", {}).values()):
        raise FilchError(f"{os.fspath(path)!r}: the sizes of the mesh must be positive")
    return Layouts(**contents)


def save_layouts(layouts: Layouts, path: str | os.PathLike[str]) -> None:
    """Write layouts as a TOML file that `load_layouts` reads."""
    tables: dict[str, Mapping[str, Any]] = {"mesh": layouts.mesh, "dims": layouts.dims, "learned": layouts.learned}
    lines = [line for name, table in tables.items() if table for line in (f"[{name}]", *_toml_lines(table), "")]
    write_output(path, "\n".join(lines))


def _toml_lines(table: Mapping[str, Any]) -> Iterable[str]:
    for name, value in table.items():
        yield f"{_toml_text(name)} = {value if isinstance(value, int) else _toml_text(value)}"


def _toml_text(text: str) -> str:
    """Return a basic string of TOML."""
    special = {'"': '\\"', "\\": "\\\\"}
    escaped = (special.get(char, char if char.isprintable() else f"\\U{ord(char):08x}") for char in text)
    return f'"{"".join(escaped)}"'
