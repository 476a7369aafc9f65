"""Run a model with one variant of recording, and measure the seconds, the bytes written and the memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import cpu_steal_seconds, folder_size, peak_memory, prepare_machine, time_write
from torch import nn

Forward = Callable[..., Any]
Variant = Callable[[nn.Module, Path], AbstractContextManager[Forward]]
LIMIT = "limit"
MAX_CPU_STEAL = 0.05
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Workload:
    """A model with its inputs: each call of `inputs` returns the same tensors, one for each forward pass."""

    model: nn.Module
    inputs: Callable[[], Iterator[torch.Tensor]]

    def hook_calls(self) -> int:
        """Return how many hooks run: one before and one after each module call."""
        return 2 * len(list(self.model.modules())) * sum(1 for _ in self.inputs())


@dataclass(frozen=True)
class Timing:
    """The measurements of one run.

    Attributes:
        inside: seconds inside the `with` block of the variant.
        total: seconds including the start and the end of the block, which finishes the file.
        size: bytes of the files.
        peak: peak memory in bytes.
        cpu_steal: seconds that the host gave to other virtual machines.
    """

    inside: float
    total: float
    size: int
    peak: int
    cpu_steal: float

    def has_low_steal(self) -> bool:
        """Return whether the host gave little of the time to other virtual machines."""
        return self.cpu_steal <= MAX_CPU_STEAL * self.total


def plain_forward(model: nn.Module, folder: Path) -> AbstractContextManager[Forward]:  # noqa: ARG001  a variant's signature
    """Run the model without recording."""
    return nullcontext(model)


def time_forward(workload: Workload, variant: Variant, folder: str, warm_up: int = 0) -> Timing:
    """Measure a variant once, after allocating `warm_up` bytes of memory, and delete its files."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    with tempfile.TemporaryDirectory(dir=folder, prefix="filch-bench-") as output_folder, torch.no_grad():
        prepare_machine(warm_up, Path(folder))
        synchronize()
        cpu_steal, start = cpu_steal_seconds(), time.perf_counter()
        with variant(workload.model, Path(output_folder)) as forward:
            entered = time.perf_counter()
            for x in workload.inputs():
                forward(x)
            synchronize()
            exited = time.perf_counter()
        finished = time.perf_counter()
        cpu_steal = cpu_steal_seconds() - cpu_steal
        return Timing(exited - entered, finished - start, folder_size(Path(output_folder)), peak_memory(), cpu_steal)


def time_disk_write(size: int, folder: str, warm_up: int) -> Timing:
    """Measure writing `size` bytes to a new file, and delete it."""
    prepare_machine(warm_up, Path(folder))
    cpu_steal = cpu_steal_seconds()
    seconds = time_write(size, Path(folder))
    return Timing(seconds, seconds, size, 0, cpu_steal_seconds() - cpu_steal)


def retry_high_steal(measure: Callable[[str], Timing]) -> Callable[[str], Timing]:
    """Wrap `measure` to repeat a run during which the host gave much time to other virtual machines."""

    def measure_with_retries(variant: str) -> Timing:
        for _ in range(MAX_ATTEMPTS):
            timing = measure(variant)
            if timing.has_low_steal():
                break
        return timing

    return measure_with_retries


def median_of(samples: dict[str, list[Timing]], variant: str, field: str) -> float | None:
    """Return the median of a field over a variant's timings with low steal, or else over all; None without any."""
    timings = samples.get(variant, [])
    low_steal = [timing for timing in timings if timing.has_low_steal()]
    return median(getattr(timing, field) for timing in low_steal or timings) if timings else None


def lower_bounds(samples: dict[str, list[Timing]]) -> tuple[float, float]:
    """Return the seconds of the plain forward pass, and the larger of these and the limit; NaN if not measured."""
    missing = float("nan")
    base, limit = (median_of(samples, variant, "total") or missing for variant in ("plain", LIMIT))
    return base, max(base, limit)
