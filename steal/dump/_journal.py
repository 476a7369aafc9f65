"""The journal of a running capture, from which a dump can be made after a kill.

Each line is JSON. The first is a header with version, environment and modules. Each other line adds tensors (see
`Entry`), grown tensors, records, the number of tensors that exist at each record, and calls that raised. A line is
written only after all bytes that it refers to.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .._errors import DAMAGE, DumpError, one_line
from .._key import Key
from ..files._untrusted import parse_index, parse_json
from ..values._dtypes import dtype_name, dtype_of
from ..values._packed import unpack
from . import _format as form
from ._model import Entry, Index, module_info, modules_json

_FAILED_LENGTH = 3  # length of the row of a call that raised
_MAX_ROWS = 64  # rows per line: few enough that the objects of a line are freed before the garbage collector runs
_encode = json.JSONEncoder(separators=(",", ":")).encode


def header(index: Index) -> str:
    """Return the first line of a journal."""
    return f"{_encode([form.VERSION, index.environment, modules_json(index.modules)])}\n"


def journal_lines(index: Index, rows: Sequence[tuple[Any, ...]]) -> str:
    """Add records and calls that raised to the index, and return their lines.

    Args:
        index: contains the tensors already.
        rows: for a record: name, iteration, kind, packed spec, the numbers of tensors and grown tensors that exist at
            that point, and the fields of `Origin`. For a call that raised: name, iteration and exception.
    """
    return "".join(_journal_line(index, rows[start : start + _MAX_ROWS]) for start in range(0, len(rows), _MAX_ROWS))


def _journal_line(index: Index, rows: Sequence[tuple[Any, ...]]) -> str:
    """Add some rows to the index, and return their line."""
    records, tensor_counts, failed = [], [], []
    for row in rows:
        if len(row) == _FAILED_LENGTH:
            failed.append(row)
            continue
        name, iteration, kind, packed, tensor_count, grown_count, path, call, iteration_in_call, source = row
        values = [name, iteration, kind, unpack(packed, kind), path, call, iteration_in_call]
        records.append(values if source is None else [*values, source])
        tensor_counts.append((tensor_count, grown_count))
    first, last = index.total_counts, tensor_counts[-1] if tensor_counts else index.total_counts
    entries = [(*entry[:4], dtype_name(entry[4]), *entry[5:]) for entry in index.tensors[first[0] : last[0]]]
    text = _encode(records)
    index.add(text, tensor_counts)
    grown = index.grown[first[1] : last[1]]
    return f"[{_encode(entries)},{_encode(grown)},{text},{_encode(tensor_counts)},{_encode(failed)}]\n"


def read(lines: Iterable[bytes], size: int, name: str) -> Index | None:
    """Return the index that a journal describes, up to an incomplete line; None if the header is incomplete.

    Args:
        lines: the journal's lines.
        size: bytes of the data file. Records whose tensors lie beyond it are dropped, with all later ones.
        name: the journal's path, for messages.

    Raises:
        DumpError: this is not a journal, or it is damaged before its last line.
    """
    rows = iter(lines)
    try:
        first = next(rows, b"")
        if not first.endswith(b"\n"):
            return None
        version, environment, modules = parse_json(first)
        if version != form.VERSION:
            raise DumpError(f"{name!r} has format {version!r}; this Filch reads format {form.VERSION}")
        infos = {str(key): module_info(info) for key, info in modules.items()}
        index = Index(infos, {str(key): str(value) for key, value in environment.items()})
        for line in rows:
            if not line.endswith(b"\n"):
                break
            _add_line(index, parse_index(line))
    except DAMAGE as error:
        raise DumpError(f"the journal {name!r} is damaged: {one_line(error)}") from error
    index.truncate_to_size(size)
    return index


def _add_line(index: Index, row: Any) -> None:
    """Add the contents of a parsed line to the index."""
    new_tensors, grown, records, tensor_counts, failed = row
    index.tensors += map(_parse_entry, new_tensors)
    index.grown += [(int(first), int(tail), int(dim)) for first, tail, dim in grown]
    if len(records) != len(tensor_counts):
        raise ValueError(f"expected {len(tensor_counts)} records, found {len(records)}")
    index.add(_encode(records), [(int(tensors), int(parts)) for tensors, parts in tensor_counts])
    for name, iteration, exception in failed:
        index.failed[Key(str(name), int(iteration), "O")] = str(exception)


def _parse_entry(row: Any) -> Entry:
    name, iteration, kind, path, dtype, shape, offset, length, compressed = row
    torch_dtype = dtype_of(dtype)
    if torch_dtype is None or offset < 0 or length < 0 or any(dim < 0 for dim in shape):
        raise ValueError(f"the row of tensor {name!r} is not valid")
    place = str(name), int(iteration), str(kind), str(path)
    return Entry(*place, torch_dtype, tuple(map(int, shape)), int(offset), int(length), bool(compressed))
