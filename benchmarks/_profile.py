"""Where the time of a capture goes: clocks around what Filch's hooks call, beside the model's own time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _measure import settle, stolen_seconds, table
from _runs import MOST_STOLEN, TRIES, Subject, calmly, plain, run

from filch.steal import steal_forward
from filch.steal.capture import _recorder, _store
from filch.steal.dump import _stream

CLOCKS: dict[str, list[tuple[Any, str]]] = {
    "hooks": [(_recorder._Hook, "__call__")],  # noqa: SLF001
    "checksums": [(_recorder, "checksum")],
    "copies": [(_stream, "copy"), (_store, "copy")],
    "waiting for the disk": [(_stream.Stream, "_free_block")],
}


def profile(subject: Subject, folder: str, warm: int, rounds: int) -> str:
    """A table of seconds: what the model takes alone, and what it and Filch take together."""
    rows: list[dict[str, float]] = []
    alone: list[float] = []
    for _ in range(rounds):
        alone.append(calmly(lambda _: run(subject, plain, folder, warm))("plain").whole)
        for _ in range(TRIES):
            found, calm = once(subject, folder, warm)
            if calm:
                break
        rows.append(found)
    base = median(alone)
    shown = {name: median(row[name] for row in rows) for name in rows[0]}
    lines = [("plain", f"{base:.4f}", "1.00")]
    lines += [(name, f"{seconds:.4f}", f"{seconds / base:.2f}") for name, seconds in shown.items()]
    return table(["Filch", "seconds", "x plain"], lines)


def once(subject: Subject, folder: str, warm: int) -> tuple[dict[str, float], bool]:
    """The seconds of one capture by what they went to, and whether the machine was ours."""
    with TemporaryDirectory(dir=folder, prefix="filch-bench-") as here, torch.no_grad(), clocks() as spent:
        settle(warm, Path(folder))
        stolen, start = stolen_seconds(), time.perf_counter()
        with steal_forward(subject.model, submodules=True, dump_file=Path(here) / "dump.onnx"):
            entered = time.perf_counter()
            for x in subject.inputs():
                subject.model(x)
            left = time.perf_counter()
        done = time.perf_counter()
    hooks = spent.pop("hooks")
    found = {"whole": done - start, "begin": entered - start, "the model's own": left - entered - hooks}
    found |= {"hooks": hooks} | {f"  {name}": spent[name] for name in CLOCKS if name != "hooks"}
    found |= {"  all else": hooks - sum(spent.values()), "end": done - left}
    return found, stolen_seconds() - stolen <= MOST_STOLEN * (done - start)


@contextmanager
def clocks() -> Iterator[Counter[str]]:
    """Measure the calls of `CLOCKS`."""
    spent: Counter[str] = Counter()
    places = [
        (name, owner, attribute, getattr(owner, attribute)) for name in CLOCKS for owner, attribute in CLOCKS[name]
    ]
    for name, owner, attribute, function in places:
        setattr(owner, attribute, timed(function, name, spent))
    try:
        yield spent
    finally:
        for _, owner, attribute, function in places:
            setattr(owner, attribute, function)


def timed(function: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    """The function, with its seconds added up."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start

    return call
