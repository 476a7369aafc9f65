"""Measure the time to compare every node of the graph that ONNX Runtime runs: Filch, other tools, and plain runs.

The model is the small Llama of `capture.py`. The methods take turns, and the first table shows medians of low-steal
runs. The second shows the time and the memory of Filch by the number of layers, each in a new process.
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
from _comparers import (
    CALLS,
    FILCH,
    ISOLATED,
    MANY_CALLS,
    PEERS,
    PLAIN,
    TOLERANCE,
    Context,
    Method,
    export_llama,
    load_context,
)
from _measure import (
    GIB,
    MIB,
    cpu_steal_seconds,
    describe_environment,
    format_target,
    interleave,
    monitor_memory,
    prepare_machine,
    run_in_subprocess,
    table,
)
from _runs import Timing, median_of, retry_high_steal

WARM_UP = 2 * GIB
TIME_BUDGET_S = 60.0  # a method that takes longer is measured once
PLAIN_SUM, ONE_MORE_CALL = "both plain runs", f"{TOLERANCE}, one more call"
METHODS: dict[str, Method] = {**PLAIN, **FILCH, **PEERS}
Samples = dict[str, list[Timing]]


def time_comparison(method: Method, context: Context, folder: str) -> Timing:
    """Measure one comparison."""
    prepare_machine(WARM_UP, Path(folder))
    cpu_steal, start = cpu_steal_seconds(), time.perf_counter()
    with monitor_memory() as memory:
        method(context)
    seconds = time.perf_counter() - start
    return Timing(seconds, seconds, 0, memory[-1], cpu_steal_seconds() - cpu_steal)


def measure(options: argparse.Namespace) -> tuple[Samples, dict[str, str]]:
    """Measure all methods: the samples, and the errors of those that failed."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="filch-bench-") as folder:
        export_llama(Path(folder), 8)
        context = load_context(Path(folder), 8)
        selected = {*PLAIN, *(options.methods or [*FILCH, *PEERS])} - {*(() if options.peers else PEERS)}
        names = [name for name in METHODS if name in selected]
        measure_once = retry_high_steal(lambda name: time_comparison(METHODS[name], context, options.folder))
        return interleave(names, measure_once, options.rounds, TIME_BUDGET_S)


def seconds_of(samples: Samples) -> dict[str, float]:
    """Return the median seconds of each method, of the plain runs together, and of one more call of the model."""
    seconds = {name: median_of(samples, name, "total") or 0.0 for name in samples}
    seconds[PLAIN_SUM] = sum(seconds.get(name, float("nan")) for name in PLAIN)
    many_calls = seconds.pop(MANY_CALLS, None)
    if many_calls is not None and TOLERANCE in seconds:
        seconds[ONE_MORE_CALL] = (many_calls - seconds[TOLERANCE]) / (CALLS - 1)
    return seconds


def format_table(samples: Samples, failed: dict[str, str]) -> str:
    """Format the first table: a row for each method, and the errors of those that failed."""
    seconds = seconds_of(samples)
    order = [*PLAIN, PLAIN_SUM, ONE_MORE_CALL, *FILCH, *PEERS]
    rows = []
    for name in order:
        if name in seconds:
            timings = samples.get(name, [])
            low_steal = f"{sum(timing.has_low_steal() for timing in timings)} of {len(timings)}" if timings else ""
            rows.append((name, f"{seconds[name]:.3f}", f"{seconds[name] / seconds[PLAIN_SUM]:.2f}", low_steal))
    header = ("method", "seconds", "x both plain runs", "low-steal runs")
    return "\n".join([table(header, rows), *(f"{name}: no result: {reason}" for name, reason in failed.items())])


def targets(samples: Samples) -> list[str]:
    """Return a line for each target of the first table.

    The plain runs use an existing session, so they are compared with one more call of the model, for which nothing has
    to be optimized or prepared either. The other tools create their sessions, so they are compared with the total time,
    by tolerance, as they judge.
    """
    seconds = seconds_of(samples)
    one_more_call, by_float64 = seconds.get(ONE_MORE_CALL), seconds.get("Filch")
    ratio = one_more_call and one_more_call / seconds[PLAIN_SUM]
    lines = [format_target("one more call / both plain runs", ratio, at_most=1.5)]
    by_tolerance, isolated = seconds.get(TOLERANCE), seconds.get(ISOLATED)
    ratio = by_float64 / by_tolerance if by_tolerance and by_float64 else None
    lines.append(format_target("Filch / Filch by tolerance", ratio, at_most=2.5))
    added = (isolated - by_tolerance) / by_tolerance if isolated and by_tolerance else None
    lines.append(format_target("time that float64 and isolated nodes add / Filch by tolerance", added, at_most=3))
    for name in PEERS:
        peer_seconds = seconds.get(name)
        ratio = peer_seconds and by_tolerance and peer_seconds / by_tolerance
        lines.append(format_target(f"times faster than {name}", ratio, at_least=5))
    return lines


def run_child(options: argparse.Namespace) -> None:
    """Measure one method in this process, and print its timing as JSON."""
    method, layers, buffer = options.child[0], *map(int, options.child[1:])
    context = load_context(Path(options.folder), layers, buffer)
    context.capture_of_one  # noqa: B018  every method has the capture in memory, so that it cancels out
    seconds = time_comparison(run_plain if method == PLAIN_SUM else METHODS[method], context, options.folder)
    print(json.dumps(asdict(seconds)))


def run_plain(context: Context) -> object:
    """Run the model and the session, one after the other; this makes the session, because its memory counts."""
    for method in PLAIN.values():
        method(context)
    return gc.collect()


def measure_growth(options: argparse.Namespace) -> tuple[dict[str, list[Timing]], dict[str, str]]:
    """Measure each method, number of layers and buffer in a new process."""
    layer_counts, buffers = (list(map(int, text.split(","))) for text in (options.layers, options.buffers))
    names = [json.dumps((PLAIN_SUM, layers, 0)) for layers in layer_counts]
    names += [
        json.dumps((method, layers, buffer))
        for method in options.methods or ("Filch",)
        for layers in layer_counts
        for buffer in buffers
    ]
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="filch-bench-") as name:
        folders = {layers: Path(name) / str(layers) for layers in layer_counts}
        for layers, folder in folders.items():
            folder.mkdir()
            export_llama(folder, layers)

        def measure_once(name: str) -> Timing:
            method, layers, buffer = json.loads(name)
            arguments = ("--child", method, layers, buffer * MIB or 1, "--folder", folders[layers])
            return Timing(**run_in_subprocess(__file__, *arguments))

        return interleave(names, retry_high_steal(measure_once), min(2, options.rounds))


def format_growth(samples: dict[str, list[Timing]], failed: dict[str, str]) -> str:
    """Format the second table: a row for each method, number of layers and buffer."""
    rows = []
    for (method, layers, buffer), timings in ((json.loads(name), timings) for name, timings in samples.items()):
        extra = _extra_peak(samples, layers, method, buffer)
        cells = ("", "") if method == PLAIN_SUM else (str(buffer), f"{extra:.0f}")
        rows.append((method, layers, f"{median_of({'': timings}, '', 'total'):.3f}", *cells))
    header = ("method", "layers", "seconds", "buffer MiB", "peak over plain MB")
    return "\n".join([table(header, rows), *(f"{name}: no result: {reason}" for name, reason in failed.items())])


def _extra_peak(samples: dict[str, list[Timing]], layers: int, method: str, buffer: int) -> float:
    """Return the peak memory in addition to that of the plain runs, in MB."""
    filch, plain = (
        median_of(samples, json.dumps(key), "peak") or 0.0 for key in ((method, layers, buffer), (PLAIN_SUM, layers, 0))
    )
    return (filch - plain) / 1e6


def growth_targets(samples: dict[str, list[Timing]], options: argparse.Namespace) -> list[str]:
    """Return a line for each target of the second table.

    Time is linear if one more layer adds as much to a large model as to a small one: the seconds per layer in the upper
    part of the range are divided by those below. This is done for the total time, for the time in addition to the plain
    runs, and for the plain runs, because the machine slows down with more memory. Memory is bounded if it exceeds
    that of the plain runs by no more than the buffer and a constant.
    """
    layer_counts, buffers = (list(map(int, text.split(","))) for text in (options.layers, options.buffers))
    lines = []
    for method, buffer in product(options.methods or ("Filch",), buffers):
        filch = {layers: median_of(samples, json.dumps((method, layers, buffer)), "total") for layers in layer_counts}
        plain = {layers: median_of(samples, json.dumps((PLAIN_SUM, layers, 0)), "total") for layers in layer_counts}
        pairs = {layers: (seconds, plain[layers]) for layers, seconds in filch.items()}
        extra = {layers: None if a is None or b is None else a - b for layers, (a, b) in pairs.items()}
        first, middle, last = layer_counts[0], *layer_counts[-2:]
        text = f"{method}, {middle} to {last} / {first} to {middle} layers, buffer {buffer} MiB"
        lines.append(format_target(f"seconds per layer, {text}", _growth_ratio(filch), at_most=1.25))
        added = f"seconds per layer in addition to the plain runs, {text}"
        lines.append(format_target(added, _growth_ratio(extra), at_most=1.25))
        lines.append(f"note    seconds per layer of the plain runs alone: {_growth_ratio(plain) or math.nan:.3g}")
        peak = max(_extra_peak(samples, layers, method, buffer) for layers in layer_counts)
        text = f"peak MB in addition to the plain runs, {method}, buffer {buffer} MiB"
        lines.append(format_target(text, peak, at_most=buffer * MIB / 1e6 + 300))
    return lines


def _growth_ratio(seconds: dict[int, float | None]) -> float | None:
    """Return the seconds per layer at the end of the range, as a multiple of those below; by number of layers."""
    low, *_, middle, high = seconds
    first, second, third = (seconds[layers] for layers in (low, middle, high))
    if first is None or second is None or third is None:
        return None
    few, many = (second - first) / (middle - low), (third - second) / (high - middle)
    return many / few if few > 0 else None  # otherwise noise exceeds growth


def main() -> None:
    """Measure and print both tables; a missed target is not a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of the first table; the second has at most two")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--methods", nargs="+", choices=[*FILCH, *PEERS], metavar="METHOD", help="some of: %(choices)s")
    parser.add_argument("--layers", default="2,4,8,16", help="of the second table; at least three numbers")
    parser.add_argument("--buffers", default="64,256", help="MiB")
    parser.add_argument("--only", choices=("time", "growth"), help="only the first or only the second table")
    parser.add_argument("--json", metavar="FILE", help="also write all samples to this file")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for the exported programs")
    parser.add_argument("--child", nargs=3, metavar=("METHOD", "LAYERS", "BUFFER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.child:
        run_child(options)
        return
    print(
        describe_environment(
            "filch", "torch", "onnx", "onnxruntime-gpu", "onnxruntime", "transformers", "onnx-diagnostic", "polygraphy"
        )
    )
    results: dict[str, Any] = {}
    if options.only != "growth":
        samples, failed = measure(options)
        results["time"] = {"samples": samples, "failed": failed}
        print("", format_table(samples, failed), *targets(samples), sep="\n", flush=True)
    if options.only != "time":
        samples, failed = measure_growth(options)
        results["growth"] = {"samples": samples, "failed": failed}
        print("", format_growth(samples, failed), *growth_targets(samples, options), sep="\n", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, default=asdict, indent=1))


if __name__ == "__main__":
    main()
