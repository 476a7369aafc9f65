"""Helpers that the benchmarks share: timing, memory, the speed of the disk, subprocesses and tables."""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

MIB, GIB = 2**20, 2**30
CHUNK = 16 * MIB
MAX_WARM_UP = 6 * GIB
# By default, a variant is not measured again once its runs have taken this long in total.
TIME_BUDGET_S = 120.0
TIMEOUT_S = 900.0

T = TypeVar("T")

# `support`, the models and pages that the tests have, is no package and not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


def folder_size(folder: Path) -> int:
    """Return the total size in bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def time_write(size: int, folder: Path) -> float:
    """Return the seconds it takes to write `size` bytes to a new file: the lower bound for writing a dump."""
    chunk = memoryview(os.urandom(CHUNK))
    path = folder / f"limit-{os.getpid()}"  # a killed run may have left its own file
    start = time.perf_counter()
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    remaining = size
    while remaining:
        remaining -= os.write(handle, chunk[:remaining])
    os.close(handle)
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def prepare_machine(warm_up: int, folder: Path) -> None:
    """Flush pending writes to the disk, and make the host allocate `warm_up` bytes of memory to this machine.

    The host of a virtual machine is slow to allocate pages that the guest has not used for seconds. On the machine of
    RESULTS.md, writing 0.85 GB takes 0.2 s just after the pages of another file were freed, and up to 2.7 s otherwise.
    Only writing a file helps: freed anonymous memory is returned to the host in blocks of 2 MiB.
    """
    gc.collect()
    os.sync()
    time_write(min(warm_up, MAX_WARM_UP), folder)
    os.sync()


def cpu_steal_seconds() -> float:
    """Return the CPU steal time, which the host gave to other virtual machines; 0 if the system does not report it."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    return int(stat.read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes, including pages of mapped files.

    `ru_maxrss` is not used on Linux, because exec keeps the peak of the parent process.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@contextmanager
def monitor_memory() -> Iterator[list[int]]:
    """Measure the peak anonymous memory of this process inside the block: the last item of the list that it yields.

    Samples every five milliseconds. Pages of mapped files are not counted, because the kernel can reclaim them.
    """
    status, peaks, stopped = Path("/proc/self/status"), [0], threading.Event()

    def sample() -> None:
        while not stopped.wait(0.005):
            line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
            peaks.append(max(peaks[-1], int(line.split()[1]) * 1024))

    thread = threading.Thread(target=sample, daemon=True)
    if status.exists():
        thread.start()
    try:
        yield peaks
    finally:
        stopped.set()
        if thread.is_alive():
            thread.join()


def limit_memory(size: int, cgroup: str | None) -> None:
    """Limit the memory of this process to `size` bytes: by an existing control group, or by RLIMIT_DATA.

    RLIMIT_DATA counts private writable memory, touched or not: the heap, and copy-on-write maps of files. Unlike a
    control group, it does not count the page cache.
    """
    if cgroup is not None:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    elif size:
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def run_in_subprocess(script: str, *arguments: object) -> dict[str, Any]:
    """Run `script` with `arguments` in a new process, and parse the last line that it prints as JSON.

    Raises:
        RuntimeError: the process failed; the message is the last line of its standard error.
    """
    command = [sys.executable, script, *map(str, arguments)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not finished after {TIMEOUT_S:.0f} s") from None
    if process.returncode < 0:
        raise RuntimeError(f"killed by signal {-process.returncode}")
    if process.returncode:
        raise RuntimeError((process.stderr.strip() or "no message").splitlines()[-1])
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def interleave(
    names: Sequence[str], measure: Callable[[str], T], rounds: int, time_budget: float = TIME_BUDGET_S
) -> tuple[dict[str, list[T]], dict[str, str]]:
    """Measure each of `names` once per round, after a warm-up round.

    A name that fails is not measured again. If a name exceeds the time budget in the warm-up round, that sample counts.

    Returns:
        the samples of each name that succeeded, and the error messages of those that failed.
    """
    samples: dict[str, list[T]] = {name: [] for name in names}
    elapsed = dict.fromkeys(names, 0.0)
    failed: dict[str, str] = {}
    for index in range(rounds + 1):
        for name in names:
            if name in failed or elapsed[name] > time_budget:
                continue
            print(f"\r\033[Kround {index} of {rounds}: {name}", end="", file=sys.stderr, flush=True)
            start = time.perf_counter()
            try:
                samples[name].append(measure(name))
            except Exception as error:  # noqa: BLE001  a peer may raise anything; it is listed below the table
                failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            elapsed[name] += time.perf_counter() - start
    print("\r\033[K", end="", file=sys.stderr, flush=True)
    return {name: values[1:] or values for name, values in samples.items() if values and name not in failed}, failed


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table as text: the first column is aligned to the left, the others to the right."""
    lines = [list(map(str, row)) for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def table_with_totals(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a table with a row of totals; the columns of text have none."""
    rows = [*rows]
    columns = list(zip(*rows, strict=True))[1:] if rows else [()] * (len(header) - 1)
    totals = ["" if any(isinstance(cell, str) for cell in column) else sum(column) for column in columns]
    return table(header, [*rows, ("all", *totals)])


def format_target(
    text: str, value: float | None, *, at_most: float | None = None, at_least: float | None = None
) -> str:
    """Return a line that says whether a target is met; `value` is None if it could not be measured."""
    limit = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
    if value is None:
        return f"target  {text}: not measured (required: {limit})"
    met = value <= at_most if at_most is not None else value >= (at_least or 0)
    return f"target  {text}: {value:.3g} (required: {limit}): {'met' if met else 'MISSED'}"


def describe_environment(*distributions: str) -> str:
    """Describe the machine and the versions of `distributions` in one line."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = (line for line in cpuinfo.read_text().splitlines() if line.startswith("model name"))
        processor = next(names, processor).split(":")[-1].strip()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    versions = ", ".join(map(version, distributions))
    return (
        f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}, {versions}."
    )


def version(distribution: str) -> str:
    """Return the name of a distribution with its version."""
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return f"{distribution} not installed"
