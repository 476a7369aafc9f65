"""Fleets written as TOML files: matrices and sweeps with common defaults."""

import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from filch.export import BackendError
from filch.export.backends import backend_names
from filch.steal.files._untrusted import read_toml

from ..common._errors import CompareError
from ..models._variants import find_device, find_dtype
from ._cell import CellOptions, CellSpec, matrix_cells, sweep_cells

_DEFAULT_BACKENDS = ["onnxruntime-cpu"]


def read_fleet(path: str | os.PathLike[str]) -> list[CellSpec]:
    """Return the cells of a TOML file.

    It has any number of tables `[[matrix]]` with `models`, `backends`, `dtypes` and `devices`, and `[[sweep]]` with
    `model`, `dims` and `backends`; each may have `options`, `tolerance`, `lower_precision` and `limit`. A table
    `[defaults]` has values for all of these except `models`, `model` and `dims`. Paths are relative to
    the file.

    Raises:
        FilchError: the file can't be read, or has unknown keys, wrong types, or names that do not exist.
    """
    return _SpecReader(str(path), Path(os.path.realpath(path)).parent).cells(read_toml(path, "fleet"))


class _SpecReader:
    """Makes cells of the contents of a TOML file; `place` is a table of it in messages, such as `[[matrix]] 1`."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder

    def cells(self, contents: Mapping[str, Any]) -> list[CellSpec]:
        self._check(contents, _TABLES, "the file")
        defaults = contents.get("defaults", {})
        self._check(defaults, {**_COMMON, **_CASTS}, "[defaults]")
        cells = []
        for kind, keys, read in (("matrix", _MATRIX, self._matrix), ("sweep", _SWEEP, self._sweep)):
            for number, table in enumerate(contents.get(kind, []), 1):
                place = f"[[{kind}]] {number}"
                self._check(table, keys, place)
                inherited = {name: value for name, value in defaults.items() if name in keys}
                cells += read({**inherited, **table}, place)
        if not cells:
            raise CompareError(f"{self._name!r} has no comparison: write a table [[matrix]] or [[sweep]]")
        self._check_names(cells)
        return cells

    def _matrix(self, table: Mapping[str, Any], place: str) -> list[CellSpec]:
        return matrix_cells(
            self._required(table, "models", place),
            folder=self._folder,
            backends=table.get("backends", _DEFAULT_BACKENDS),
            dtypes=table.get("dtypes", []),
            devices=table.get("devices", []),
            judged=_judged(table),
        )

    def _sweep(self, table: Mapping[str, Any], place: str) -> list[CellSpec]:
        return sweep_cells(
            self._required(table, "model", place),
            self._required(table, "dims", place),
            folder=self._folder,
            backends=table.get("backends", _DEFAULT_BACKENDS),
            judged=_judged(table),
        )

    def _required(self, table: Mapping[str, Any], key: str, place: str) -> Any:
        """Return an entry of a table; raise an error if it is missing or empty."""
        if not table.get(key):
            raise CompareError(f"{self._name!r}: {place} has no {key!r}")
        return table[key]

    def _check(self, table: Mapping[str, Any], keys: Mapping[str, "_Type"], place: str) -> None:
        """Raise an error if a table has an entry that is not among `keys`, or a value that its type does not allow."""
        for key, value in table.items():
            if key not in keys:
                raise CompareError(f"{self._name!r}: {place} has no key {key!r}; {_hint(key, keys)}")
            expected, is_valid = keys[key]
            if not is_valid(value):
                raise CompareError(f"{self._name!r}: {key!r} in {place} has to be {expected}, not {value!r:.80}")

    def _check_names(self, cells: list[CellSpec]) -> None:
        """Find what is misspelt before anything runs."""
        for backend in dict.fromkeys(cell.backend for cell in cells):
            if backend not in (known := backend_names()):
                raise BackendError(f"there is no backend {backend!r}; {_hint(backend, known)}")
        check_cells(cells)


def check_cells(cells: list[CellSpec]) -> None:
    """Raise an error if a dtype, device or file of a cell does not exist.

    Raises:
        CompareError: it does not.
    """
    for dtype in {cell.dtype for cell in cells} - {""}:
        find_dtype(dtype)
    for device in {cell.device for cell in cells} - {""}:
        find_device(device)
    for factory, folder in dict.fromkeys((cell.factory, cell.folder) for cell in cells):
        place, colon, _ = factory.rpartition(":")
        if not colon or not place:
            raise CompareError(f"a model is named as package.module:factory or path.py:factory, not {factory!r}")
        if place.endswith(".py") and not Path(folder, place).is_file():
            raise CompareError(f"there is no file {place!r} in {folder!r}")


def _hint(name: str, known: Iterable[str]) -> str:
    names = [*known]
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


def _judged(table: Mapping[str, Any]) -> CellOptions:
    """Return how the cells of a table are judged; options of a backend become text, as on the command line."""
    options = {name: _option_text(value) for name, value in table.get("options", {}).items()}
    return CellOptions(options, table.get("tolerance"), table.get("lower_precision", False), table.get("limit"))


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)  # as in TOML


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(sizes, list) and sizes and all(isinstance(size, int) and size >= 1 for size in sizes)
        for sizes in value.values()
    )


def _are_options(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str | int | float | bool) for item in value.values())


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


_Type = tuple[str, Callable[[Any], bool]]  # what a value has to be, for the message, and whether a value is that
_TEXTS: _Type = "a list of strings", _are_texts
_COMMON: Mapping[str, _Type] = {
    "backends": _TEXTS,
    "options": ("a table of options", _are_options),
    "tolerance": ("a number or 'default'", lambda value: value == "default" or _is_number(value)),
    "lower_precision": ("true or false", lambda value: isinstance(value, bool)),
    "limit": ("a number of seconds", _is_number),
}
_CASTS: Mapping[str, _Type] = {"dtypes": _TEXTS, "devices": _TEXTS}
_MATRIX: Mapping[str, _Type] = {"models": _TEXTS, **_COMMON, **_CASTS}
_SWEEP: Mapping[str, _Type] = {
    "model": ("a string", lambda value: isinstance(value, str)),
    "dims": ("a table of lists of sizes", _are_sizes),
    **_COMMON,
}
_TABLES: Mapping[str, _Type] = {
    "defaults": ("a table", lambda value: isinstance(value, dict)),
    "matrix": ("tables [[matrix]]", _are_tables),
    "sweep": ("tables [[sweep]]", _are_tables),
}
