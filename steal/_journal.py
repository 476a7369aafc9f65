"""What is known of a capture while it runs, a line of JSON each: enough to make a dump of it after a kill.

The first line is a heading: version, environment, modules. Each further one is a record with the tensors that came
since the last one, `[[[name, dtype, shape, offset, length, compressed], …], [grown, …], record]`, or a call that
raised, `{"failed": [name, iteration, what]}`. A line is written after all the bytes that it speaks of.
"""

import json
from collections.abc import Iterable
from typing import Any

from . import _format as form
from ._dtypes import dtype_name, dtype_of
from ._errors import DAMAGE, DumpError
from ._key import Key
from ._model import Entry, Index, known_modules
from ._records import ModuleInfo

_encode = json.JSONEncoder(separators=(",", ":")).encode


def heading(index: Index) -> str:
    """The first line."""
    return f"{_encode([form.VERSION, index.environment, known_modules(index.modules)])}\n"


def entry_line(fresh: Iterable[Entry], grown: list[tuple[int, int, int]], record: str) -> str:
    """A record, given as JSON, and the tensors that came with it."""
    rows = [(name, dtype_name(dtype), shape, *place) for name, dtype, shape, *place in fresh]
    return f"[{_encode(rows)},{_encode(grown)},{record}]\n"


def record_json(row: list[Any]) -> str:
    """A record's row, without what is null at its end."""
    return _encode(row if row[-1] is not None else row[:-1])


def failed_line(key: Key, what: str) -> str:
    """A call that raised."""
    return f"{_encode({'failed': [key.name, key.iteration, what]})}\n"


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
        version, environment, modules = json.loads(first)
        if version != form.VERSION:
            raise DumpError(f"{name!r} has format {version!r}; this Filch reads format {form.VERSION}")
        infos = {str(key): ModuleInfo(str(info["class"]), tuple(info["parameters"])) for key, info in modules.items()}
        index = Index(infos, {str(key): str(value) for key, value in environment.items()})
        for line in rows:
            if not line.endswith(b"\n") or not _take(index, json.loads(line), size):
                break
    except DAMAGE as error:
        raise DumpError(f"the journal {name!r} is damaged: {error}") from error
    return index


def _take(index: Index, row: Any, size: int) -> bool:
    if isinstance(row, dict):
        name, iteration, what = row["failed"]
        index.failed[Key(str(name), int(iteration), "O")] = str(what)
        return True
    fresh, grown, record = row
    entries = [_entry(item) for item in fresh]
    if any(entry.offset + entry.length > size for entry in entries):
        return False
    index.tensors += entries
    index.records.append(_encode(record))
    index.grown += [(int(first), int(tail), int(dim)) for first, tail, dim in grown]
    index.tops.append((len(index.tensors), len(index.grown)))
    return True


def _entry(row: Any) -> Entry:
    name, dtype, shape, offset, length, compressed = row
    known = dtype_of(dtype)
    if known is None or offset < 0 or length < 0 or any(dim < 0 for dim in shape):
        raise ValueError(f"no tensor is like {name!r}")
    return Entry(str(name), known, tuple(map(int, shape)), int(offset), int(length), bool(compressed))
