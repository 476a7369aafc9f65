"""What the benchmarks of this folder share: clocks, the disk's own speed, child processes, tables."""

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
MOST_WARM = 6 * GIB
# By default, a variant that has taken this long in all sits out the rounds that remain.
PATIENCE_S = 120.0
TIMEOUT_S = 900.0

T = TypeVar("T")


def bytes_below(folder: Path) -> int:
    """The size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def seconds_to_write(size: int, folder: Path) -> float:
    """How long the machine needs to write this many bytes to a new file: nothing that writes a dump can be faster."""
    chunk = memoryview(os.urandom(CHUNK))
    path = folder / f"limit-{os.getpid()}"  # one that a killed run left is in nobody's way
    start = time.perf_counter()
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    left = size
    while left:
        left -= os.write(handle, chunk[:left])
    os.close(handle)
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def settle(warm: int, folder: Path) -> None:
    """Wait until the disk has what others wrote, and let the machine have about `warm` bytes of memory at hand.

    The host of a virtual machine gives pages out slowly that the guest has not used for seconds: on the machine of
    RESULTS.md, who writes 0.85 GB just after others freed a file's pages needs 0.2 s, else up to 2.7 s. Only a file
    helps: anonymous memory that was freed goes back to the host in pieces of 2 MiB.
    """
    gc.collect()
    os.sync()
    seconds_to_write(min(warm, MOST_WARM), folder)
    os.sync()


def stolen_seconds() -> float:
    """The time for which the host of this virtual machine gave its processors to others; 0 where nobody says."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    return int(stat.read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


def peak_bytes() -> int:
    """The most memory that this process has held since it began, pages of mapped files included.

    Not `ru_maxrss`: on Linux that starts from the peak of the process that started this one (exec keeps it).
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """The most memory of its own that this process holds inside of the block: the last number of what it yields.

    Looked at every few milliseconds. Pages of mapped files are left out: the kernel takes them back when it needs them.
    """
    status, found, over = Path("/proc/self/status"), [0], threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
            found.append(max(found[-1], int(line.split()[1]) * 1024))

    thread = threading.Thread(target=look, daemon=True)
    if status.exists():
        thread.start()
    try:
        yield found
    finally:
        over.set()
        if thread.is_alive():
            thread.join()


def limit_memory(size: int, cgroup: str | None) -> None:
    """Let this process have no more than `size` bytes: by a control group that somebody made, else by RLIMIT_DATA.

    RLIMIT_DATA counts what is private and writable, touched or not: the heap, and copy-on-write maps of files too. It
    does not count the page cache; a control group does.
    """
    if cgroup is not None:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    elif size:
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def in_child(script: str, *arguments: object) -> dict[str, Any]:
    """Run `script` with `arguments` in a fresh process; the last line that it prints is JSON.

    Raises:
        RuntimeError: it failed; the message is the last line of what it said.
    """
    command = [sys.executable, script, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {TIMEOUT_S:.0f} s") from None
    if done.returncode < 0:
        raise RuntimeError(f"killed by signal {-done.returncode}")
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "no message").splitlines()[-1])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def interleave(
    names: Sequence[str], once: Callable[[str], T], rounds: int, patience: float = PATIENCE_S
) -> tuple[dict[str, list[T]], dict[str, str]]:
    """Sample each of `names` once a round, after a first round that only warms up.

    Returns:
        the samples of each, and why those failed that have none. Who fails is not asked again; of who was too slow for
        a second round, the first counts.
    """
    samples: dict[str, list[T]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    failed: dict[str, str] = {}
    for index in range(rounds + 1):
        for name in names:
            if name in failed or spent[name] > patience:
                continue
            print(f"\r\033[Kround {index} of {rounds}: {name}", end="", file=sys.stderr, flush=True)
            start = time.perf_counter()
            try:
                samples[name].append(once(name))
            except Exception as error:  # noqa: BLE001  a peer may fail as it likes; the table says so
                failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            spent[name] += time.perf_counter() - start
    print("\r\033[K", end="", file=sys.stderr, flush=True)
    return {name: taken[1:] or taken for name, taken in samples.items() if taken and name not in failed}, failed


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain table; the first column is text, the others are numbers."""
    lines = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def verdict(text: str, value: float | None, *, most: float | None = None, least: float | None = None) -> str:
    """Say whether a target is met; `value` is None where it could not be measured."""
    wanted = f"at most {most:g}" if most is not None else f"at least {least:g}"
    if value is None:
        return f"target  {text}: not measured, {wanted} wanted"
    met = value <= most if most is not None else value >= (least or 0)
    return f"target  {text}: {value:.3g}, {wanted} wanted: {'met' if met else 'MISSED'}"


def about(*distributions: str) -> str:
    """The machine and the versions, in one paragraph."""
    processor = platform.processor() or platform.machine()
    models = Path("/proc/cpuinfo")
    if models.exists():
        names = (line for line in models.read_text().splitlines() if line.startswith("model name"))
        processor = next(names, processor).split(":")[-1].strip()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    versions = ", ".join(map(version, distributions))
    return (
        f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}, {versions}."
    )


def version(distribution: str) -> str:
    """Name a distribution with its version."""
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return f"{distribution} not installed"
