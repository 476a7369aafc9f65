"""Save and load traces: as a pickle, like Jittor, and as JSON."""

import os
from pathlib import Path
from typing import Any

from filch.steal import writing
from filch.steal.files._kinds import budget_of
from filch.steal.files._outputs import new_files, write_output
from filch.steal.files._untrusted import parse_json, read_untrusted

from .._errors import TraceError
from ..common._garbage_collection import no_collection
from ..views._trace import Trace, serialize
from ._plain_pickle import load_plain
from ._trace_check import NUMBER, unreadable

_SUFFIXES = (".pkl", ".json")
_MIN_VALUE = 40  # bytes of the smallest value


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write a trace to `path`, and also as JSON, which can be read without pickle.

    Args:
        trace: the result of `trace`.
        path: a path that ends in `.pkl`, or in `.json` to write JSON only. A missing folder is created.

    Returns:
        the paths of the written files.

    Raises:
        TraceError: the path has another suffix, or can't be written.
    """
    where = _checked(path)
    paths = tuple(dict.fromkeys((where, where.with_suffix(".json"))))
    with writing(where, TraceError), new_files(where.parent) as folder:
        for file in paths:
            write_output(folder / file.name, serialize(trace, file.suffix))
    return paths


def load_trace(path: str | os.PathLike[str], *, memory: int | None = None) -> Trace:
    """Read a trace, of Filch or of Jittor, from an untrusted file.

    A pickle is a program. Only the opcodes that create dictionaries, lists, strings and numbers are executed; nothing
    is imported or called.

    Args:
        path: the path of a `.pkl` or `.json` file.
        memory: how many bytes the trace may take, as estimated from the file; None is 200 MiB, enough for some ten
            thousand operators.

    Returns:
        the content; `check_trace` finds errors in it.

    Raises:
        TraceError: the file does not exist, contains no dictionary or other opcodes, or is larger or deeper than a
            trace can be.
    """
    where = _checked(path)
    budget = budget_of("trace") if memory is None else budget_of("trace", size=memory, memory=memory)
    memory = budget.kind.memory  # the default, if none is given
    try:
        content = read_untrusted(where, budget)
    except OSError as error:
        raise TraceError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    try:
        with no_collection():
            trace = _load_json(content, memory) if where.suffix == ".json" else load_plain(content, memory)
    except TraceError as error:
        raise TraceError(f"{str(where)!r} {error}") from error
    except Exception as error:  # a damaged pickle may raise any error
        problem = f"{type(error).__name__}: {error}"
        raise TraceError(f"{str(where)!r} is not a valid {where.suffix} file: {problem}") from error
    if type(trace) is not dict:
        raise TraceError(f"{str(where)!r} contains a {type(trace).__name__}, not a trace, which is a dict")
    excess = unreadable(trace, memory // _MIN_VALUE)  # with the most values that the memory has room for
    if excess is not None:
        raise TraceError(f"{str(where)!r} {excess}")
    return trace


def _load_json(content: bytes, memory: int) -> Any:
    """Parse JSON, and convert the keys of nodes and executions to integers."""
    trace = parse_json(content, memory=memory)
    for name in ("node_data", "execute_op_info"):
        if isinstance(trace, dict) and isinstance(trace.get(name), dict):
            trace[name] = {int(key) if NUMBER.fullmatch(key) else key: item for key, item in trace[name].items()}
    return trace


def _checked(path: str | os.PathLike[str]) -> Path:
    """Return the path of a trace file; refuse an unknown suffix."""
    where = Path(path)
    if where.suffix not in _SUFFIXES:
        raise TraceError(f"a trace is written to a .pkl or a .json, not to {str(where)!r}")
    return where
