"""A model that is run in several ways, and what is taken of each: seconds, bytes of the files, memory."""

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
from _measure import bytes_below, peak_bytes, seconds_to_write, settle, stolen_seconds
from torch import nn

Forward = Callable[..., Any]
Variant = Callable[[nn.Module, Path], AbstractContextManager[Forward]]
LIMIT = "limit"
MOST_STOLEN = 0.05
TRIES = 3


@dataclass(frozen=True)
class Subject:
    """A model, and what it is called with: `inputs` makes a tensor for each forward, the same ones every time."""

    model: nn.Module
    inputs: Callable[[], Iterator[torch.Tensor]]

    def hook_calls(self) -> int:
        """How many hooks run: one before and one after each module, in each forward."""
        return 2 * len(list(self.model.modules())) * sum(1 for _ in self.inputs())


@dataclass(frozen=True)
class Timing:
    """One run: seconds inside the block and of all of it with the finished file; the file's bytes, the peak memory.

    `stolen` are the seconds for which the machine's processors were somebody else's.
    """

    inside: float
    whole: float
    size: int
    peak: int
    stolen: float

    def is_calm(self) -> bool:
        """Whether it says something of the variant, and not of the machine's neighbours."""
        return self.stolen <= MOST_STOLEN * self.whole


def plain(model: nn.Module, folder: Path) -> AbstractContextManager[Forward]:  # noqa: ARG001  a variant's signature
    """Nothing."""
    return nullcontext(model)


def run(subject: Subject, variant: Variant, folder: str, warm: int = 0) -> Timing:
    """Run a variant once, with `warm` bytes of memory at hand, and delete what it wrote."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    with tempfile.TemporaryDirectory(dir=folder, prefix="filch-bench-") as here, torch.no_grad():
        settle(warm, Path(folder))
        synchronize()
        stolen, start = stolen_seconds(), time.perf_counter()
        with variant(subject.model, Path(here)) as forward:
            entered = time.perf_counter()
            for x in subject.inputs():
                forward(x)
            synchronize()
            left = time.perf_counter()
        done = time.perf_counter()
        stolen = stolen_seconds() - stolen
        return Timing(left - entered, done - start, bytes_below(Path(here)), peak_bytes(), stolen)


def run_limit(size: int, folder: str, warm: int) -> Timing:
    """Write so many bytes to a new file, and delete it."""
    settle(warm, Path(folder))
    stolen = stolen_seconds()
    seconds = seconds_to_write(size, Path(folder))
    return Timing(seconds, seconds, size, 0, stolen_seconds() - stolen)


def calmly(once: Callable[[str], Timing]) -> Callable[[str], Timing]:
    """Run a variant again, if the machine's neighbours took much of the time."""

    def tried(variant: str) -> Timing:
        for _ in range(TRIES):
            timing = once(variant)
            if timing.is_calm():
                break
        return timing

    return tried


def middle(samples: dict[str, list[Timing]], variant: str, field: str) -> float | None:
    """The median of one field of a variant's timings, the calm ones if there are any; None where it has none."""
    timings = samples.get(variant, [])
    calm = [timing for timing in timings if timing.is_calm()]
    return median(getattr(timing, field) for timing in calm or timings) if timings else None


def floors(samples: dict[str, list[Timing]]) -> tuple[float, float]:
    """Seconds of the plain forward, and of what nobody can undercut; not a number where nothing was measured."""
    nothing = float("nan")
    base, limit = (middle(samples, variant, "whole") or nothing for variant in ("plain", LIMIT))
    return base, max(base, limit)
