"""Time comparing every node of the graph that ONNX Runtime really runs: Filch, its peers, and the plain runs.

A small Llama, as in `capture.py`. All ways take turns, and medians of calm runs are shown; then the time and the memory
of Filch with more and more layers, each in a fresh process.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import tempfile
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _comparers import CALLS, OURS, PEERS, PLAIN, TRUTH, Setting, Way, load, make
from _measure import (
    GIB,
    MIB,
    about,
    in_child,
    interleave,
    settle,
    stolen_seconds,
    table,
    verdict,
    watched_memory,
)
from _runs import Timing, calmly, middle

WARM = 2 * GIB
PATIENCE_S = 60.0  # who takes longer is timed once
SUM, FURTHER = "their sum", "Filch, a further call"
WAYS: dict[str, Way] = {**PLAIN, **OURS, **PEERS}
Samples = dict[str, list[Timing]]


def timed(way: Way, setting: Setting, folder: str) -> Timing:
    """Compare once."""
    settle(WARM, Path(folder))
    stolen, start = stolen_seconds(), time.perf_counter()
    with watched_memory() as held:
        way(setting)
    seconds = time.perf_counter() - start
    return Timing(seconds, seconds, 0, held[-1], stolen_seconds() - stolen)


def measure(options: argparse.Namespace) -> tuple[Samples, dict[str, str]]:
    """All samples of all ways, with what failed."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="filch-bench-") as folder:
        make(Path(folder), 8)
        setting = load(Path(folder), 8)
        chosen = {*PLAIN, *(options.ways or [*OURS, *PEERS])} - {*(() if options.peers else PEERS)}
        names = [name for name in WAYS if name in chosen]
        once = calmly(lambda name: timed(WAYS[name], setting, options.folder))
        return interleave(names, once, options.rounds, PATIENCE_S)


def seconds_of(samples: Samples) -> dict[str, float]:
    """The median seconds of each way, of the plain runs' sum, and of a call of the model more."""
    found = {name: middle(samples, name, "whole") or 0.0 for name in samples}
    found[SUM] = sum(found.get(name, float("nan")) for name in PLAIN)
    often = found.pop(f"Filch, {CALLS} calls", None)
    if often is not None and "Filch" in found:
        found[FURTHER] = (often - found["Filch"]) / (CALLS - 1)
    return found


def shown(samples: Samples, failed: dict[str, str]) -> str:
    """A line for each way, and what failed."""
    seconds = seconds_of(samples)
    order = [*PLAIN, SUM, FURTHER, *OURS, *PEERS]
    rows = []
    for name in order:
        if name in seconds:
            taken = samples.get(name, [])
            calm = f"{sum(timing.is_calm() for timing in taken)} of {len(taken)}" if taken else ""
            rows.append((name, f"{seconds[name]:.3f}", f"{seconds[name] / seconds[SUM]:.2f}", calm))
    head = ("way", "seconds", "x the plain runs' sum", "calm runs")
    return "\n".join([table(head, rows), *(f"{name}: no result: {reason}" for name, reason in failed.items())])


def targets(samples: Samples) -> list[str]:
    """What was promised, and whether it is kept.

    The plain runs use a session that exists already, so they are compared with a further call of the model, for which
    nothing is written, optimised or prepared either. Peers create their sessions, so they are compared with all of it.
    """
    seconds = seconds_of(samples)
    further, whole = seconds.get(FURTHER), seconds.get("Filch")
    lines = [verdict("a further call / the plain runs' sum", further and further / seconds[SUM], most=1.5)]
    by_float64 = seconds.get(TRUTH)
    added = (by_float64 - whole) / whole if by_float64 and whole else None
    lines.append(verdict("what float64 and nodes run by themselves add / Filch without", added, most=3))
    for name in PEERS:
        theirs = seconds.get(name)
        lines.append(verdict(f"times faster than {name}", theirs and whole and theirs / whole, least=5))
    return lines


def as_child(options: argparse.Namespace) -> None:
    """Run one way in this process, and print its timing as JSON."""
    way, layers, buffer = options.child[0], *map(int, options.child[1:])
    setting = load(Path(options.folder), layers, buffer)
    setting.once  # noqa: B018  all hold the capture, that what they need besides can be told
    found = timed(plain if way == SUM else WAYS[way], setting, options.folder)
    print(json.dumps(asdict(found)))


def plain(setting: Setting) -> object:
    """Both plain runs, one after the other; the session is made too, as its memory counts."""
    for way in PLAIN.values():
        way(setting)
    return gc.collect()


def grown(options: argparse.Namespace) -> tuple[dict[str, list[Timing]], dict[str, str]]:
    """Samples of processes of their own, by way, layers and buffer."""
    counts, buffers = (list(map(int, text.split(","))) for text in (options.layers, options.buffers))
    names = [json.dumps((SUM, count, 0)) for count in counts]
    names += [
        json.dumps((way, count, buffer)) for way in options.ways or ("Filch",) for count in counts for buffer in buffers
    ]
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="filch-bench-") as name:
        folders = {count: Path(name) / str(count) for count in counts}
        for count, folder in folders.items():
            folder.mkdir()
            make(folder, count)

        def once(name: str) -> Timing:
            way, count, buffer = json.loads(name)
            arguments = ("--child", way, count, buffer * MIB or 1, "--folder", folders[count])
            return Timing(**in_child(__file__, *arguments))

        return interleave(names, calmly(once), min(2, options.rounds))


def growth(samples: dict[str, list[Timing]], failed: dict[str, str]) -> str:
    """A line for each number of layers and each buffer."""
    rows = []
    for (way, count, buffer), taken in ((json.loads(name), taken) for name, taken in samples.items()):
        over = _over(samples, count, way, buffer)
        shown = ("", "") if way == SUM else (str(buffer), f"{over:.0f}")
        rows.append((way, count, f"{middle({'': taken}, '', 'whole'):.3f}", *shown))
    head = ("way", "layers", "seconds", "buffer MiB", "peak over plain MB")
    return "\n".join([table(head, rows), *(f"{name}: no result: {reason}" for name, reason in failed.items())])


def _over(samples: dict[str, list[Timing]], count: int, way: str, buffer: int) -> float:
    """Megabytes of peak memory over the plain runs'."""
    ours, least = (middle(samples, json.dumps(key), "peak") or 0.0 for key in ((way, count, buffer), (SUM, count, 0)))
    return (ours - least) / 1e6


def growth_targets(samples: dict[str, list[Timing]], options: argparse.Namespace) -> list[str]:
    """What was promised of growth.

    Time is linear if a layer more costs as much among many as among few: what it adds in the upper half of the range is
    compared with what it adds below; for all of the time, for what is over the plain runs, and for these themselves, as
    the machine slows down with more memory. Memory is bounded if it is over the plain runs' by the buffer and what does
    not grow with the layers.
    """
    counts, buffers = (list(map(int, text.split(","))) for text in (options.layers, options.buffers))
    lines = []
    for way, buffer in product(options.ways or ("Filch",), buffers):
        ours = {count: middle(samples, json.dumps((way, count, buffer)), "whole") for count in counts}
        plain = {count: middle(samples, json.dumps((SUM, count, 0)), "whole") for count in counts}
        both = {count: (seconds, plain[count]) for count, seconds in ours.items()}
        over = {count: None if a is None or b is None else a - b for count, (a, b) in both.items()}
        text = f"{way}, {counts[-2]} to {counts[-1]} / {counts[0]} to {counts[-2]} layers, buffer {buffer} MiB"
        lines.append(verdict(f"seconds a layer, {text}", _bend(ours), most=1.25))
        lines.append(verdict(f"seconds a layer over the plain runs, {text}", _bend(over), most=1.25))
        lines.append(f"note    the plain runs' own: {_bend(plain) or math.nan:.3g}")
        most = max(_over(samples, count, way, buffer) for count in counts)
        lines.append(
            verdict(f"most MB over the plain runs, {way}, buffer {buffer} MiB", most, most=buffer * MIB / 1e6 + 300)
        )
    return lines


def _bend(seconds: dict[int, float | None]) -> float | None:
    """What a layer more takes among the most, as a multiple of what it takes below; by their numbers of layers."""
    low, *_, middle_, high = seconds
    first, second, third = (seconds[count] for count in (low, middle_, high))
    if first is None or second is None or third is None:
        return None
    few, many = (second - first) / (middle_ - low), (third - second) / (high - middle_)
    return many / few if few > 0 else None  # else there is more noise than growth


def main() -> None:
    """Measure, and print the tables; targets that are missed are no failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of the first table; of the second, two at most")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--ways", nargs="+", choices=[*OURS, *PEERS], metavar="WAY", help="of ours and the peers'")
    parser.add_argument("--layers", default="2,4,8,16", help="of the second table; three numbers at least")
    parser.add_argument("--buffers", default="64,256", help="MiB")
    parser.add_argument("--only", choices=("time", "growth"), help="one of the tables")
    parser.add_argument("--json", metavar="FILE", help="write all samples there too")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for the exported programs")
    parser.add_argument("--child", nargs=3, metavar=("WAY", "LAYERS", "BUFFER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.child:
        as_child(options)
        return
    print(
        about(
            "filch", "torch", "onnx", "onnxruntime-gpu", "onnxruntime", "transformers", "onnx-diagnostic", "polygraphy"
        )
    )
    results: dict[str, Any] = {}
    if options.only != "growth":
        samples, failed = measure(options)
        results["time"] = {"samples": samples, "failed": failed}
        print("", shown(samples, failed), *targets(samples), sep="\n", flush=True)
    if options.only != "time":
        samples, failed = grown(options)
        results["growth"] = {"samples": samples, "failed": failed}
        print("", growth(samples, failed), *growth_targets(samples, options), sep="\n", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, default=asdict, indent=1))


if __name__ == "__main__":
    main()
