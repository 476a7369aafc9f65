"""What is known of a capture while it runs, a line of JSON each: enough to make a dump of it after a kill.

The first line is a heading: version, environment, modules. Each further one has what came since the last one: tensors
(see `Entry`), tensors in parts, records, how many tensors there are up to each record, and calls that raised. A line is
written after all the bytes that it speaks of.
"""

import json
import marshal
from collections.abc import Iterable, Sequence
from typing import Any

from .._errors import DAMAGE, DumpError, in_short
from .._key import Key
from .._records import ModuleInfo
from ..files._untrusted import parse_index, parse_json
from ..values._dtypes import dtype_name, dtype_of
from . import _format as form
from ._model import Entry, Index, known_modules

_FAILED = 3  # what the row of a call that raised has
_LINE = 64  # rows: so few that their many small objects are gone before the garbage collector looks
_encode = json.JSONEncoder(separators=(",", ":")).encode


def heading(index: Index) -> str:
    """The first line."""
    return f"{_encode([form.VERSION, index.environment, known_modules(index.modules)])}\n"


def take_down(index: Index, rows: Sequence[tuple[Any, ...]]) -> str:
    """Add records and calls that raised to the index; returns the lines that say so.

    Args:
        index: has the tensors already, and what is kept in parts.
        rows: name, iteration and kind of a record, its spec as `marshal` writes it, how many tensors there are up to it
            and how many in parts, and what an `Origin` has; or name, iteration and what a call raised.
    """
    return "".join(_line(index, rows[start : start + _LINE]) for start in range(0, len(rows), _LINE))


def _line(index: Index, rows: Sequence[tuple[Any, ...]]) -> str:
    records, tops, failed = [], [], []
    for row in rows:
        if len(row) == _FAILED:
            failed.append(row)
            continue
        *key, spec, tensors, grown, path, call, count, source = row
        values = [*key, marshal.loads(spec), path, call, count]  # noqa: S302  written by this process
        records.append(values if source is None else [*values, source])
        tops.append((tensors, grown))
    first, last = index.top, tops[-1] if tops else index.top
    entries = [(*entry[:4], dtype_name(entry[4]), *entry[5:]) for entry in index.tensors[first[0] : last[0]]]
    text = _encode(records)
    index.add(text, tops)
    return f"[{_encode(entries)},{_encode(index.grown[first[1] : last[1]])},{text},{_encode(tops)},{_encode(failed)}]\n"


def read(lines: Iterable[bytes], size: int, name: str) -> Index | None:
    """The index that a journal tells of, as far as it goes; None if it has not even begun.

    Args:
        lines: of the file.
        size: of the data file: a record with bytes beyond it is not complete, nor are those after it.
        name: of the journal, for messages.

    Raises:
        DumpError: it is no journal, or it is damaged elsewhere than at its end.
    """
    rows = iter(lines)
    try:
        first = next(rows, b"")
        if not first.endswith(b"\n"):
            return None
        version, environment, modules = parse_json(first)
        if version != form.VERSION:
            raise DumpError(f"{name!r} has format {version!r}; this Filch reads format {form.VERSION}")
        infos = {str(key): ModuleInfo(str(info["class"]), tuple(info["parameters"])) for key, info in modules.items()}
        index = Index(infos, {str(key): str(value) for key, value in environment.items()})
        for line in rows:
            if not line.endswith(b"\n"):
                break
            _take(index, parse_index(line))
    except DAMAGE as error:
        raise DumpError(f"the journal {name!r} is damaged: {in_short(error)}") from error
    index.cut_to(size)
    return index


def _take(index: Index, row: Any) -> None:
    fresh, grown, records, tops, failed = row
    index.tensors += map(_entry, fresh)
    index.grown += [(int(first), int(tail), int(dim)) for first, tail, dim in grown]
    if len(records) != len(tops):
        raise ValueError(f"{len(records)} records are {len(tops)}")
    index.add(_encode(records), [(int(tensors), int(parts)) for tensors, parts in tops])
    for name, iteration, what in failed:
        index.failed[Key(str(name), int(iteration), "O")] = str(what)


def _entry(row: Any) -> Entry:
    name, iteration, kind, path, dtype, shape, offset, length, compressed = row
    known = dtype_of(dtype)
    if known is None or offset < 0 or length < 0 or any(dim < 0 for dim in shape):
        raise ValueError(f"no tensor is like {name!r}")
    place = str(name), int(iteration), str(kind), str(path)
    return Entry(*place, known, tuple(map(int, shape)), int(offset), int(length), bool(compressed))
