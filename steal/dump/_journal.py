"""The journal of a running capture, from which a dump can be made after a kill.

Each line is JSON. The first is a header with version, environment and modules. Each other line adds tensors (see
`Entry`), grown tensors, records, the number of tensors that exist at each record, and calls that raised. A line is
written only after all bytes that it refers to.
"""

import errno
import json
from collections.abc import Iterable, Sequence
from typing import Any

from .._errors import DAMAGE, DumpError, one_line
from .._key import Key
from ..values._dtypes import dtype_name, dtype_of
from ..values._packed import unpack
from . import _format as form
from ._model import Entry, Index, module_info, modules_json
from ._rows import parse_row

_FAILED_LENGTH = 3  # length of the row of a call that raised
_MAX_ROWS = 64  # rows per line: few enough that the objects of a line are freed before the garbage collector runs
_encode = json.JSONEncoder(separators=(",", ":")).encode


def header(index: Index) -> bytes:
    """Return the first line of a journal.

    Raises:
        OSError: there are too many modules.
    """
    line = f"{_encode([form.VERSION, index.environment, modules_json(index.modules)])}\n".encode()
    if len(line) > form.MAX_ROW_SIZE:
        what = f"the list of its {len(index.modules):,} modules has {len(line):,} bytes"
        raise OSError(errno.EFBIG, f"{what}, and at most {form.MAX_ROW_SIZE:,} can be read; select fewer (include=…)")
    return line


def journal_lines(index: Index, rows: Sequence[tuple[Any, ...]]) -> str:
    """Add records and calls that raised to the index, and return their lines, up to the first that it refuses.

    Args:
        index: contains the tensors already.
        rows: for a record: name, iteration, kind, packed spec, the numbers of tensors and grown tensors that exist at
            that point, and the fields of `Origin`. For a call that raised: name, iteration and exception.
    """
    return "".join(_journal_line(index, rows[start : start + _MAX_ROWS]) for start in range(0, len(rows), _MAX_ROWS))


def _journal_line(index: Index, rows: Sequence[tuple[Any, ...]]) -> str:
    """Add some rows to the index, unless it refuses them, and return their line, or several if it would be too long."""
    if index.refusal is not None:
        return ""
    records, tensor_counts, failed = [], [], []
    for row in rows:
        if len(row) == _FAILED_LENGTH:
            failed.append(row)
            continue
        name, iteration, kind, packed, tensor_count, grown_count, path, call, iteration_in_call, source = row
        values = [name, iteration, kind, unpack(packed, kind), path, call, iteration_in_call]
        records.append(values if source is None else [*values, source])
        tensor_counts.append((tensor_count, grown_count))
    # The numbers of tensors and grown tensors before and after these rows.
    first, last = index.total_counts, tensor_counts[-1] if tensor_counts else index.total_counts
    tensors, grown = index.tensors[first[0] : last[0]], index.grown[first[1] : last[1]]
    entries = [(*entry[:4], dtype_name(entry[4]), *entry[5:]) for entry in tensors]
    text = _encode(records)
    line = f"[{_encode(entries)},{_encode(grown)},{text},{_encode(tensor_counts)},{_encode(failed)}]\n"
    if len(line) > form.MAX_ROW_SIZE and len(rows) > 1:
        return _journal_line(index, rows[: len(rows) // 2]) + _journal_line(index, rows[len(rows) // 2 :])
    if len(line) > form.MAX_ROW_SIZE:
        label = Key(rows[0][0], rows[0][1], "O" if failed else rows[0][2]).label
        index.refuse(
            f"the description of {label!r:.200} has {len(line):,} bytes, and at most {form.MAX_ROW_SIZE:,} can be read"
        )
    elif index.reserve(len(line), tensors):
        index.add(text, tensor_counts)
        return line
    return ""


def read(lines: Iterable[bytes], size: int, name: str) -> Index | None:
    """Return the index that a journal describes, up to an incomplete line; None if the header is incomplete.

    Args:
        lines: the journal's lines.
        size: bytes of the data file. Records whose tensors lie beyond it are dropped, with all later ones.
        name: the journal's path, for messages.

    Raises:
        DumpError: this is not a journal, or it is damaged before its last line.
    """
    whole = (line.decode("ascii") for line in lines if line.endswith(b"\n"))
    try:
        if (first := next(whole, None)) is None:
            return None
        version, environment, modules = parse_row(first)[0]
        if version != form.VERSION:
            raise DumpError(f"{name!r} has format {version!r}; this Filch reads format {form.VERSION}")
        infos = {str(key): module_info(info) for key, info in modules.items()}
        index = Index(infos, {str(key): str(value) for key, value in environment.items()})
        for line in whole:
            _add_line(index, line)
            if index.refusal is not None:
                break
    except DAMAGE as error:
        raise DumpError(f"the journal {name!r} is damaged: {one_line(error)}") from error
    index.truncate_to_size(size)
    return index


def _add_line(index: Index, line: str) -> None:
    """Add the contents of a line to the index, unless it refuses them."""
    rows, grown, records, tensor_counts, failed = parse_row(line)[0]
    new_tensors = list(map(_parse_entry, rows))
    if not index.reserve(len(line), new_tensors):
        return
    index.tensors += new_tensors
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
