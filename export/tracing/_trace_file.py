"""Traces in files: a pickle for those who know Jittor's, JSON for all."""

import os
from pathlib import Path
from typing import Any

from filch.steal import parse_json, read_untrusted, write_output

from .._errors import TraceError
from ..common._garbage_collection import no_collection
from ..views._trace import Trace, serialize
from ._plain_pickle import load_plain
from ._trace_check import NUMBER, unreadable

_SUFFIXES = (".pkl", ".json")
_MEMORY = 200 * 2**20
_VALUE = 40  # bytes that a value takes at least


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write a trace to `path`, and as JSON beside it, so that nobody needs pickle to read it.

    Args:
        trace: what `trace` returned.
        path: of a `.pkl`, in a folder that is made if it is not there; of a `.json` only that is written.

    Returns:
        the paths of what was written.

    Raises:
        TraceError: the path has another suffix, or the disk refuses.
    """
    where = _known(path)
    paths = tuple(dict.fromkeys((where, where.with_suffix(".json"))))
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        for file in paths:
            write_output(file, serialize(trace, file.suffix))
    except OSError as error:
        raise TraceError(f"can't write {str(where)!r}: {error.strerror or error}") from error
    return paths


def load_trace(path: str | os.PathLike[str], *, memory: int | None = None) -> Trace:
    """Read a trace, ours or Jittor's, from a file that anybody may have written.

    A pickle is a program. Of its instructions, only those are read that make dictionaries, lists, texts and numbers;
    nothing is imported or called.

    Args:
        path: of a `.pkl` or a `.json`.
        memory: how many bytes the trace may take, as estimated from the file; None is 200 MiB, the trace of some
            ten thousand operators.

    Returns:
        what is in it; `check_trace` says what is wrong with it.

    Raises:
        TraceError: there is no such file; or it holds no dictionary, or needs more than that to be read; or it is
            larger or deeper than a trace can be.
    """
    where = _known(path)
    memory = _MEMORY if memory is None else memory
    try:
        content = read_untrusted(where, memory)
    except OSError as error:
        raise TraceError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    try:
        with no_collection():
            found = _of_json(content, memory) if where.suffix == ".json" else load_plain(content, memory)
    except TraceError as error:
        raise TraceError(f"{str(where)!r} {error}") from error
    except Exception as error:  # pickle raises whatever a damaged file makes it do
        raise TraceError(f"{str(where)!r} is no {where.suffix[1:]}: {type(error).__name__}: {error}") from error
    if type(found) is not dict:
        raise TraceError(f"{str(where)!r} holds a {type(found).__name__}, and no trace, which is a dict")
    size = unreadable(found, memory // _VALUE)
    if size is not None:
        raise TraceError(f"{str(where)!r} {size}")
    return found


def _of_json(content: bytes, memory: int) -> Any:
    """JSON's keys are text; those of nodes and executions are numbers."""
    found = parse_json(content, memory=memory)
    if not isinstance(found, dict):
        return found
    return {key: _numbered(items) if key in ("node_data", "execute_op_info") else items for key, items in found.items()}


def _numbered(items: Any) -> Any:
    if not isinstance(items, dict):
        return items
    return {int(key) if NUMBER.fullmatch(key) else key: item for key, item in items.items()}


def _known(path: str | os.PathLike[str]) -> Path:
    where = Path(path)
    if where.suffix not in _SUFFIXES:
        raise TraceError(f"a trace is written to a .pkl or a .json, not to {str(where)!r}")
    return where
