"""Measure where the time of a capture goes, by timing the functions that Filch's hooks call."""

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
from _measure import cpu_steal_seconds, prepare_machine, table
from _runs import MAX_ATTEMPTS, MAX_CPU_STEAL, Workload, plain_forward, retry_high_steal, time_forward

from filch.steal import steal_forward
from filch.steal.capture import _recorder, _store
from filch.steal.dump import _stream

CLOCKS: dict[str, list[tuple[Any, str]]] = {
    "hooks": [(_recorder._Hook, "__call__")],  # noqa: SLF001
    "checksums": [(_recorder, "checksum")],
    "copies": [(_stream, "copy"), (_store, "copy")],
    "waiting for the disk": [(_stream.Stream, "_free_block")],
}


def profile(workload: Workload, folder: str, warm_up: int, rounds: int) -> str:
    """Return a table of the seconds of the plain model, and of each part of a capture."""
    rows: list[dict[str, float]] = []
    plain_seconds: list[float] = []
    for _ in range(rounds):
        plain_seconds.append(
            retry_high_steal(lambda _: time_forward(workload, plain_forward, folder, warm_up))("plain").total
        )
        for _ in range(MAX_ATTEMPTS):
            seconds, low_steal = measure(workload, folder, warm_up)
            if low_steal:
                break
        rows.append(seconds)
    base = median(plain_seconds)
    medians = {name: median(row[name] for row in rows) for name in rows[0]}
    lines = [("plain", f"{base:.4f}", "1.00")]
    lines += [(name, f"{seconds:.4f}", f"{seconds / base:.2f}") for name, seconds in medians.items()]
    return table(["Filch", "seconds", "x plain"], lines)


def measure(workload: Workload, folder: str, warm_up: int) -> tuple[dict[str, float], bool]:
    """Return the seconds of each part of one capture, and whether its CPU steal was low."""
    with TemporaryDirectory(dir=folder, prefix="filch-bench-") as output_folder, torch.no_grad(), clocks() as spent:
        prepare_machine(warm_up, Path(folder))
        cpu_steal, start = cpu_steal_seconds(), time.perf_counter()
        with steal_forward(workload.model, submodules=True, dump_file=Path(output_folder) / "dump.onnx"):
            entered = time.perf_counter()
            for x in workload.inputs():
                workload.model(x)
            exited = time.perf_counter()
        finished = time.perf_counter()
    hooks = spent.pop("hooks")
    seconds = {"total": finished - start, "start": entered - start, "model": exited - entered - hooks}
    seconds |= {"hooks": hooks} | {f"  {name}": spent[name] for name in CLOCKS if name != "hooks"}
    seconds |= {"  other": hooks - sum(spent.values()), "end": finished - exited}
    return seconds, cpu_steal_seconds() - cpu_steal <= MAX_CPU_STEAL * (finished - start)


@contextmanager
def clocks() -> Iterator[Counter[str]]:
    """Add up the seconds of the functions of `CLOCKS` that are called inside the block."""
    spent: Counter[str] = Counter()
    functions = [
        (name, owner, attribute, getattr(owner, attribute)) for name in CLOCKS for owner, attribute in CLOCKS[name]
    ]
    for name, owner, attribute, function in functions:
        setattr(owner, attribute, timed(function, name, spent))
    try:
        yield spent
    finally:
        for _, owner, attribute, function in functions:
            setattr(owner, attribute, function)


def timed(function: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    """Wrap a function so that its seconds are added to `spent[name]`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start

    return call
