"""Measure the overhead of recording while a GPU computes."""

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
from _runs import (
    LIMIT,
    Timing,
    Variant,
    Workload,
    lower_bounds,
    median_of,
    plain_forward,
    retry_high_steal,
    time_disk_write,
    time_forward,
)
from _variants import filch_layers


def cuda(options: argparse.Namespace) -> str:
    """Measure the overhead of recording each decoder layer on a GPU, and whether the compute stream has to wait.

    Only the layers are recorded: all submodules of such a model produce a hundred times more data than the bus can
    transfer during the forward pass.
    """
    if not torch.cuda.is_available():
        return f"skipped: torch.cuda.is_available() is False (torch {torch.__version__})"
    workload = cuda_llama(options.folder, options.scale)
    unique_bytes = time_forward(workload, filch_layers, options.folder).size
    variants: dict[str, Variant] = {
        "plain": plain_forward,
        "Filch": filch_layers,
        "Filch, buffer for all tensors": partial(filch_layers, buffer=2 * unique_bytes),
    }

    def measure(name: str) -> Timing:
        if name != LIMIT:
            return time_forward(workload, variants[name], options.folder, 2 * unique_bytes)
        return time_disk_write(unique_bytes, options.folder, 2 * unique_bytes)

    samples, failed = interleave((LIMIT, *variants), retry_high_steal(measure), options.rounds)
    bus = unique_bytes / bus_bytes_per_second()
    base, lower_bound = lower_bounds(samples)
    header = ["variant", "total s", "inside s", "x plain", "x max(plain, limit, bus)", *StreamUse.__annotations__]
    rows = []
    for name in samples:
        total, inside = (median_of(samples, name, field) or 0 for field in ("total", "inside"))
        use = stream_use(workload, variants[name], options.folder) if name in variants else None
        cells = [""] * 4 if use is None else [f"{value:.3f}" for value in asdict(use).values()]
        ratios = (total / base, total / max(lower_bound, bus))
        rows.append([name, f"{total:.3f}", f"{inside:.3f}", *(f"{ratio:.2f}" for ratio in ratios), *cells])
    title = f"{torch.cuda.get_device_name()}: {unique_bytes / 1e9:.2f} GB to pinned memory, {bus:.3f} s over the bus"
    return "\n".join([title, table(header, rows), *(f"{name}: no result: {reason}" for name, reason in failed.items())])


def cuda_llama(folder: str, scale: float) -> Workload:
    """Return a Llama in bfloat16, with a batch for which a forward pass takes about a second times `scale`."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=8, num_attention_heads=32,
        num_key_value_heads=32, vocab_size=8000, use_cache=False,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaModel(config).to(torch.bfloat16).eval()
    batch = 1
    while True:
        ids = torch.randint(0, config.vocab_size, (batch, 2048), device="cuda")
        workload = Workload(model, partial(single_batch, ids))
        time_forward(workload, plain_forward, folder)  # the first run of a shape chooses kernels and allocates memory
        seconds = time_forward(workload, plain_forward, folder).total
        # Above 0.7 s, this batch is nearer to one second than twice the batch, which also needs twice the memory.
        if seconds > 0.7 * scale or torch.cuda.max_memory_allocated() > torch.cuda.mem_get_info()[1] * 0.4:
            return workload
        batch *= 2


def single_batch(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the input of one forward pass."""
    yield x


def bus_bytes_per_second() -> float:
    """Measure the bandwidth of a copy from the device to pinned memory of the host."""
    size = 256 * MIB
    device, host = (
        torch.empty(size, dtype=torch.uint8, device="cuda"),
        torch.empty(size, dtype=torch.uint8).pin_memory(),
    )

    def measure() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        host.copy_(device, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return size / median([measure() for _ in range(11)][1:])


@dataclass(frozen=True)
class StreamUse:
    """How busy the compute stream is from its first kernel to its last: if it waits for a copy, it has gaps."""

    stream_s: float
    idle_share: float
    longest_gap_s: float
    copies_share: float  # of the time, on the same stream


def stream_use(workload: Workload, variant: Variant, folder: str) -> StreamUse:
    """Profile the forward pass of one variant."""
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory(dir=folder, prefix="filch-bench-") as output_folder, torch.no_grad():
        with variant(workload.model, Path(output_folder)) as forward:
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                for x in workload.inputs():
                    forward(x)
                torch.cuda.synchronize()
        trace = Path(output_folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return stream_use_of(json.loads(trace.read_text())["traceEvents"])


def stream_use_of(events: list[dict[str, Any]]) -> StreamUse:
    """Analyze the stream that computes most, from events in the format of chrome://tracing (in microseconds).

    Copies do not count as computation, on any stream.
    """
    spans: dict[str, dict[Any, list[tuple[float, float]]]] = {"kernel": {}, "gpu_memcpy": {}}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in spans:
            start, stream = float(event["ts"]), event["args"]["stream"]
            spans[event["cat"]].setdefault(stream, []).append((start, start + float(event["dur"])))
    stream, kernels = max(spans["kernel"].items(), key=lambda item: sum(end - start for start, end in item[1]))
    kernels.sort()
    first, last_end = kernels[0][0], kernels[0][0]
    gaps = []
    for start, end in kernels:
        gaps.append(max(0.0, start - last_end))
        last_end = max(last_end, end)
    copies = sum(end - start for start, end in spans["gpu_memcpy"].get(stream, ()) if first <= start < last_end)
    span = last_end - first
    return StreamUse(span / 1e6, sum(gaps) / span, max(gaps) / 1e6, copies / span)
