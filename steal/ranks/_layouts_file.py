"""Read and write layouts as TOML files."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from .._errors import FilchError
from ..files._outputs import write_output
from ..files._untrusted import read_toml
from ..text._toml import for_toml
from ._layouts import Layouts

_MOST_PATTERNS = 10_000  # each is tried on each name


def load_layouts(path: str | os.PathLike[str]) -> Layouts:
    """Read layouts from a TOML file.

    Args:
        path: a file with the tables `mesh` (`tp = 2`), `dims` (`"layers.*.mlp.O" = "b s d[tp:partial]"`) and `learned`,
            which `save_layouts` writes; all are optional.

    Raises:
        FilchError: the file can't be read, or does not have this form.
    """
    contents = read_toml(path, "layouts")
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
    if (count := len(contents.get("dims", {}))) > _MOST_PATTERNS:
        raise FilchError(f"{os.fspath(path)!r}: [dims] has {count:,} patterns, and at most {_MOST_PATTERNS:,} are read")
    return Layouts(**contents)


def save_layouts(layouts: Layouts, path: str | os.PathLike[str]) -> None:
    """Write layouts as a TOML file that `load_layouts` reads."""
    tables: dict[str, Mapping[str, Any]] = {"mesh": layouts.mesh, "dims": layouts.dims, "learned": layouts.learned}
    lines = [line for name, table in tables.items() if table for line in (f"[{name}]", *_toml_lines(table), "")]
    write_output(path, "\n".join(lines))


def _toml_lines(table: Mapping[str, Any]) -> Iterable[str]:
    for name, value in table.items():
        yield f"{for_toml(name)} = {value if isinstance(value, int) else for_toml(value)}"
