"""Time reading a dump of 10,000 records and 4 GiB back, beside safetensors of the same tensors.

Each sample is a fresh process, with the file in the page cache. Opening it, the first tensor, and then all of them: as
views, which nobody has looked at, and as sums, which read every byte.
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
from _measure import GIB, about, in_child, interleave, table, verdict

from filch.steal import restore, steal_append, steal_forward

DUMP, SAFETENSORS = "dump.onnx", "tensors.safetensors"
FILCH, PEER = "Filch", "safetensors"
Open = Callable[[Path], Callable[[int], torch.Tensor]]


def made(records: int, size: int) -> Iterator[torch.Tensor]:
    """Tensors of `size` bytes together, each different from all others."""
    base = torch.rand(size // records // 4, generator=torch.Generator().manual_seed(0))
    return (base + index for index in range(records))


def write(folder: Path, records: int, size: int) -> None:
    """A dump, and a file of safetensors with the same."""
    with steal_forward(torch.nn.Identity(), dump_file=folder / DUMP):
        for tensor in made(records, size):
            steal_append("tensor", tensor)
    try:
        from safetensors.torch import save_file
    except ImportError:
        return
    save_file({str(index): tensor for index, tensor in enumerate(made(records, size))}, folder / SAFETENSORS)


def open_filch(folder: Path) -> Callable[[int], torch.Tensor]:
    """Open the dump; what returns gives a tensor by its number."""
    dump = restore(folder / DUMP)
    return lambda index: dump["tensor", index, "V"]


def open_safetensors(folder: Path) -> Callable[[int], torch.Tensor]:
    """Open the file of safetensors."""
    from safetensors import safe_open

    file = safe_open(folder / SAFETENSORS, framework="pt")
    return lambda index: file.get_tensor(str(index))


OPENS: dict[str, Open] = {FILCH: open_filch, PEER: open_safetensors}


def as_child(name: str, way: str, options: argparse.Namespace) -> None:
    """Open and read in this process; print seconds as JSON."""
    if name == PEER:
        import safetensors  # noqa: F401  as Filch's imports, it is no part of opening
    look: Callable[[torch.Tensor], object] = torch.sum if way == "sums" else torch.Tensor.numel
    torch.ones(1).sum()  # what torch does once
    start = time.perf_counter()
    get = OPENS[name](Path(options.folder))
    opened = time.perf_counter()
    look(get(options.records // 2))
    first = time.perf_counter()
    for index in range(options.records):
        look(get(index))
    done = time.perf_counter()
    print(json.dumps({"open": opened - start, "first": first - opened, "all": done - first}))


def measure(folder: Path, options: argparse.Namespace) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """Samples of both readers in both ways, in turns."""
    names = [f"{name}, {way}" for way in ("views", "sums") for name in OPENS]

    def once(name: str) -> dict[str, float]:
        arguments = ("--child", *name.split(", "), "--folder", folder, "--records", options.records)
        return in_child(__file__, *arguments)

    return interleave(names, once, options.rounds)


def report(samples: dict[str, list[dict[str, float]]], failed: dict[str, str], size: int) -> str:
    """The table, and the targets."""
    medians = {
        name: {field: median(sample[field] for sample in taken) for field in ("open", "first", "all")}
        for name, taken in samples.items()
    }
    rows = []
    for name, each in medians.items():
        row = [name, f"{each['open'] * 1e3:.1f}", f"{each['first'] * 1e3:.2f}", f"{each['all']:.3f}"]
        rows.append([*row, f"{size / each['all'] / 1e9:.2f}", str(len(samples[name]))])
    lines = [table(["variant", "open ms", "first ms", "all s", "GB/s", "runs"], rows)]
    lines += [f"{name}: no result: {reason}" for name, reason in failed.items()]
    ours, theirs = medians.get(f"{FILCH}, sums"), medians.get(f"{PEER}, sums")
    lines.append(verdict("opening, ms", ours and ours["open"] * 1e3, most=150))
    lines.append(verdict("first tensor, ms", ours and ours["first"] * 1e3, most=5))
    lines.append(verdict("all, speed / safetensors", ours and theirs and theirs["all"] / ours["all"], least=0.9))
    return "\n".join(lines)


def main() -> None:
    """Write both files, read them in turns, and print what came out; targets that are missed are no failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--json", metavar="FILE", help="write all samples there too")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that is to be measured")
    parser.add_argument("--child", nargs=2, metavar=("READER", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        as_child(*options.child, options)
        return
    print(about("filch", "torch", "onnx", "safetensors"))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="filch-bench-") as name:
        folder = Path(name)
        write(folder, options.records, round(options.gib * GIB))
        size = sum(path.stat().st_size for path in folder.glob(f"{DUMP}*"))
        os.sync()  # the disk is idle then, and both files are in the page cache
        print(f"\n{options.records} records, {size / 1e9:.2f} GB")
        samples, failed = measure(folder, options)
    print(report(samples, failed, size))
    if options.json:
        results: dict[str, Any] = {"size": size, "samples": samples, "failed": failed}
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
