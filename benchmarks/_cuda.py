"""What stealing costs while a GPU computes."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import MIB, interleave, table
from _runs import LIMIT, Subject, Timing, Variant, calmly, floors, middle, plain, run, run_limit
from _variants import filch_layers


def cuda(options: argparse.Namespace) -> str:
    """What stealing each decoder layer costs while a GPU computes, and whether it lets the compute stream wait.

    Only the layers: all submodules of such a model give a hundred times what a bus can carry in its time.
    """
    if not torch.cuda.is_available():
        return f"skipped: torch.cuda.is_available() is False (torch {torch.__version__})"
    subject = cuda_llama(options.folder)
    unique = run(subject, filch_layers, options.folder).size
    ways: dict[str, Variant] = {
        "plain": plain,
        "Filch": filch_layers,
        "Filch, buffer with room for all": partial(filch_layers, buffer=2 * unique),
    }

    def once(name: str) -> Timing:
        if name != LIMIT:
            return run(subject, ways[name], options.folder, 2 * unique)
        return run_limit(unique, options.folder, 2 * unique)

    samples, failed = interleave((LIMIT, *ways), calmly(once), options.rounds)
    bus = unique / bus_bytes_per_second()
    base, floor = floors(samples)
    head = ["variant", "whole s", "inside s", "x plain", "x max(plain, limit, bus)", *StreamUse.__annotations__]
    rows = []
    for name in samples:
        whole, inside = (middle(samples, name, field) or 0 for field in ("whole", "inside"))
        used = stream_use(subject, ways[name], options.folder) if name in ways else None
        cells = [""] * 4 if used is None else [f"{value:.3f}" for value in asdict(used).values()]
        ratios = (whole / base, whole / max(floor, bus))
        rows.append([name, f"{whole:.3f}", f"{inside:.3f}", *(f"{ratio:.2f}" for ratio in ratios), *cells])
    said = f"{torch.cuda.get_device_name()}: {unique / 1e9:.2f} GB to the host, {bus:.3f} s by the bus (pinned)"
    return "\n".join([said, table(head, rows), *(f"{name}: no result: {why}" for name, why in failed.items())])


def cuda_llama(folder: str) -> Subject:
    """A Llama in bfloat16, with the batch that lets a forward take about a second."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=32,
        vocab_size=8000,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = LlamaModel(config).to(torch.bfloat16).eval()
    batch = 1
    while True:
        ids = torch.randint(0, config.vocab_size, (batch, 2048), device="cuda")
        subject = Subject(model, partial(iter_one, ids))
        run(subject, plain, folder)  # the first of a shape chooses kernels and gets memory
        seconds = run(subject, plain, folder).whole
        # From there, one second is nearer than twice the time; and twice the batch takes twice the memory.
        if seconds > 0.7 or torch.cuda.max_memory_allocated() > torch.cuda.mem_get_info()[1] * 0.4:  # noqa: PLR2004
            return subject
        batch *= 2


def iter_one(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """One forward."""
    yield x


def bus_bytes_per_second() -> float:
    """What the bus carries from the device to pinned memory of the host."""
    size = 256 * MIB
    there, here = torch.empty(size, dtype=torch.uint8, device="cuda"), torch.empty(size, dtype=torch.uint8).pin_memory()

    def once() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        here.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return size / median([once() for _ in range(11)][1:])


@dataclass(frozen=True)
class StreamUse:
    """What the compute stream did from its first kernel to its last: a stream that waits for a copy has gaps."""

    stream_s: float
    idle_share: float
    longest_gap_s: float
    copies_share: float  # of the time, on this same stream


def stream_use(subject: Subject, variant: Variant, folder: str) -> StreamUse:
    """Profile the forward of one variant."""
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory(dir=folder, prefix="filch-bench-") as here, torch.no_grad():
        with variant(subject.model, Path(here)) as forward:
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                for x in subject.inputs():
                    forward(x)
                torch.cuda.synchronize()
        trace = Path(here) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return stream_use_of(json.loads(trace.read_text())["traceEvents"])


def stream_use_of(events: list[dict[str, Any]]) -> StreamUse:
    """Of a trace's events, as chrome://tracing has them (microseconds), those of the stream that computes most.

    A copy is no computation, whatever stream it is on.
    """
    spans: dict[str, dict[Any, list[tuple[float, float]]]] = {"kernel": {}, "gpu_memcpy": {}}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in spans:
            start, stream = float(event["ts"]), event["args"]["stream"]
            spans[event["cat"]].setdefault(stream, []).append((start, start + float(event["dur"])))
    stream, kernels = max(spans["kernel"].items(), key=lambda item: sum(end - start for start, end in item[1]))
    kernels.sort()
    first, reached = kernels[0][0], kernels[0][0]
    gaps = []
    for start, end in kernels:
        gaps.append(max(0.0, start - reached))
        reached = max(reached, end)
    copies = sum(end - start for start, end in spans["gpu_memcpy"].get(stream, ()) if first <= start < reached)
    span = reached - first
    return StreamUse(span / 1e6, sum(gaps) / span, max(gaps) / 1e6, copies / span)
