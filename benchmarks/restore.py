"""Measure the time to read a dump of 10,000 records and 4 GiB, and the same tensors with safetensors.

Each sample is a new process, with the file in the page cache. It opens the file, gets the first tensor, and then all of
them: as views, without reading their data, or as sums, which read every byte.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import GIB, describe_environment, format_target, interleave, run_in_subprocess, table

from filch.steal import restore, steal_append, steal_forward

DUMP, SAFETENSORS = "dump.onnx", "tensors.safetensors"
FILCH, PEER = "Filch", "safetensors"
Opener = Callable[[Path], Callable[[int], torch.Tensor]]


def make_tensors(records: int, size: int) -> Iterator[torch.Tensor]:
    """Yield different tensors with `size` bytes in total."""
    base = torch.rand(size // records // 4, generator=torch.Generator().manual_seed(0))
    return (base + index for index in range(records))


def write_files(folder: Path, records: int, size: int) -> None:
    """Write a dump and a safetensors file with the same tensors."""
    with steal_forward(torch.nn.Identity(), dump_file=folder / DUMP):
        for tensor in make_tensors(records, size):
            steal_append("tensor", tensor)
    try:
        from safetensors.torch import save_file
    except ImportError:
        return
    save_file({str(index): tensor for index, tensor in enumerate(make_tensors(records, size))}, folder / SAFETENSORS)


def open_filch(folder: Path) -> Callable[[int], torch.Tensor]:
    """Open the dump, and return a function that gets a tensor by its index."""
    dump = restore(folder / DUMP)
    return lambda index: dump["tensor", index, "V"]


def open_safetensors(folder: Path) -> Callable[[int], torch.Tensor]:
    """Open the safetensors file, and return a function that gets a tensor by its index."""
    from safetensors import safe_open

    file = safe_open(folder / SAFETENSORS, framework="pt")
    return lambda index: file.get_tensor(str(index))


READERS: dict[str, Opener] = {FILCH: open_filch, PEER: open_safetensors}


def run_child(name: str, reduction: str, options: argparse.Namespace) -> None:
    """Open and read a file in this process, and print the seconds as JSON."""
    if name == PEER:
        import safetensors  # noqa: F401  Filch is already imported too
    reduce: Callable[[torch.Tensor], object] = torch.sum if reduction == "sums" else torch.Tensor.numel
    torch.ones(1).sum()  # torch initializes itself in the first call
    start = time.perf_counter()
    get_tensor = READERS[name](Path(options.folder))
    opened = time.perf_counter()
    reduce(get_tensor(options.records // 2))
    first = time.perf_counter()
    for index in range(options.records):
        reduce(get_tensor(index))
    finished = time.perf_counter()
    print(json.dumps({"open": opened - start, "first": first - opened, "all": finished - first}))


def measure(folder: Path, options: argparse.Namespace) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """Measure both readers, with views and with sums, in turns."""
    names = [f"{name}, {reduction}" for reduction in ("views", "sums") for name in READERS]

    def measure_once(name: str) -> dict[str, float]:
        arguments = ("--child", *name.split(", "), "--folder", folder, "--records", options.records)
        return run_in_subprocess(__file__, *arguments)

    return interleave(names, measure_once, options.rounds)


def format_report(samples: dict[str, list[dict[str, float]]], failed: dict[str, str], size: int) -> str:
    """Format the table and the targets."""
    medians = {
        name: {field: median(sample[field] for sample in timings) for field in ("open", "first", "all")}
        for name, timings in samples.items()
    }
    rows = []
    for name, seconds in medians.items():
        row = [name, f"{seconds['open'] * 1e3:.1f}", f"{seconds['first'] * 1e3:.2f}", f"{seconds['all']:.3f}"]
        rows.append([*row, f"{size / seconds['all'] / 1e9:.2f}", str(len(samples[name]))])
    lines = [table(["variant", "open ms", "first ms", "all s", "GB/s", "runs"], rows)]
    lines += [f"{name}: no result: {reason}" for name, reason in failed.items()]
    filch, peer = medians.get(f"{FILCH}, sums"), medians.get(f"{PEER}, sums")
    lines.append(format_target("opening, ms", filch and filch["open"] * 1e3, at_most=150))
    lines.append(format_target("first tensor, ms", filch and filch["first"] * 1e3, at_most=5))
    lines.append(format_target("all, speed / safetensors", filch and peer and peer["all"] / filch["all"], at_least=0.9))
    return "\n".join(lines)


def main() -> None:
    """Write both files, read them in turns, and print the results; a missed target is not a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--json", metavar="FILE", help="also write all samples to this file")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="a folder on the disk to measure")
    parser.add_argument("--child", nargs=2, metavar=("READER", "REDUCTION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(*options.child, options)
        return
    print(describe_environment("filch", "torch", "onnx", "safetensors"))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="filch-bench-") as name:
        folder = Path(name)
        write_files(folder, options.records, round(options.gib * GIB))
        size = sum(path.stat().st_size for path in folder.glob(f"{DUMP}*"))
        os.sync()  # afterwards the disk is idle, and both files are in the page cache
        print(f"\n{options.records} records, {size / 1e9:.2f} GB")
        samples, failed = measure(folder, options)
    print(format_report(samples, failed, size))
    if options.json:
        results: dict[str, Any] = {"size": size, "samples": samples, "failed": failed}
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
