"""Traces in files: a pickle for those who know Jittor's, JSON for all."""

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any, NoReturn

from ._errors import TraceError
from .views._trace import Trace, written

_SUFFIXES = (".pkl", ".json")


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
            file.write_bytes(written(trace, file.suffix))
    except OSError as error:
        raise TraceError(f"can't write {str(where)!r}: {error.strerror or error}") from error
    return paths


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace, ours or Jittor's; nothing in the file can run.

    A pickle is a program that may call anything. Here it may call nothing, and so can make only what Python's own
    notation makes: dictionaries, lists, text, numbers.

    Args:
        path: of a `.pkl` or a `.json`.

    Returns:
        what is in it; `check_trace` says what is wrong with it.

    Raises:
        TraceError: there is no such file, or it holds no dictionary, or needs more than that to be read.
    """
    where = _known(path)
    try:
        content = where.read_bytes()
    except OSError as error:
        raise TraceError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    try:
        found = _of_json(content) if where.suffix == ".json" else _Plain(io.BytesIO(content)).load()
    except TraceError as error:
        raise TraceError(f"{str(where)!r} {error}") from error
    except Exception as error:  # pickle raises whatever a damaged file makes it do
        raise TraceError(f"{str(where)!r} is no {where.suffix[1:]}: {type(error).__name__}: {error}") from error
    if type(found) is not dict:
        raise TraceError(f"{str(where)!r} holds a {type(found).__name__}, and no trace, which is a dict")
    return found


class _Plain(pickle.Unpickler):
    """Makes plain values, and calls nothing."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise TraceError(
            f"asks for {module_name}.{global_name}, which may run anything; a trace needs plain values alone"
        )


def _of_json(content: bytes) -> Any:
    """JSON's keys are text; those of nodes and executions are numbers."""
    found = json.loads(content)
    if not isinstance(found, dict):
        return found
    return {key: _numbered(items) if key in ("node_data", "execute_op_info") else items for key, items in found.items()}


def _numbered(items: Any) -> Any:
    if not isinstance(items, dict):
        return items
    return {int(key) if key.isdecimal() else key: item for key, item in items.items()}


def _known(path: str | os.PathLike[str]) -> Path:
    where = Path(path)
    if where.suffix not in _SUFFIXES:
        raise TraceError(f"a trace is written to a .pkl or a .json, not to {str(where)!r}")
    return where
