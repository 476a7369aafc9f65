"""Measure the time to record the inputs and outputs of all modules: Filch, other tools, and lower bounds.

A: a small Llama; B: 400 tiny layers; C: convolutions, more than 4 GiB; D: 16 GiB in a process limited to 4 GiB of
memory; CUDA: a Llama whose forward pass takes a second. The variants of a model take turns; the tables show medians.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _cuda import cuda
from _measure import GIB, describe_environment, format_target, interleave, limit_memory, run_in_subprocess, table
from _profile import profile
from _runs import LIMIT, Timing, Workload, lower_bounds, median_of, retry_high_steal, time_disk_write, time_forward
from _variants import BUFFER, VARIANTS, hooked, tensors_in
from torch import nn


def small_llama(scale: float, layers: int = 8) -> Workload:  # noqa: ARG001  small already
    """A: a small Llama, whose modules take and return about 0.85 GB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=2560, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=8000, use_cache=False,
    )  # fmt: skip
    ids = torch.randint(0, config.vocab_size, (4, 256))
    return Workload(LlamaForCausalLM(config).eval(), lambda: iter([ids]))


def tiny_layers(scale: float) -> Workload:  # noqa: ARG001  small already
    """B: 400 layers; ten forward passes in one block, so that 8,020 hook calls share the cost of its start and end."""
    x = torch.randn(1, 8)
    return Workload(nn.Sequential(*(nn.Linear(8, 8) for _ in range(400))).eval(), lambda: iter([x] * 10))


def convolutions(scale: float) -> Workload:
    """C: convolutions, 4.3 GiB; half of the bytes are unique, as each layer reads the output of the one before."""
    blocks = range(round(30 * scale))
    layers = [layer for _ in blocks for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())]
    x = torch.randn(8, 64, 112, 112)
    return Workload(nn.Sequential(*layers).eval(), lambda: iter([x]))


def wide_convolution(scale: float) -> Workload:
    """D: 16 GiB, all unique: one layer with small inputs and large outputs, called 160 times."""

    def inputs() -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return (torch.rand(8, 3, 224, 224, generator=generator) for _ in range(round(160 * scale)))

    return Workload(nn.Conv2d(3, 64, 3, padding=1).eval(), inputs)


WORKLOADS = {"A": small_llama, "B": tiny_layers, "C": convolutions, "D": wide_convolution}
PEERS = ("clone, torch.save", "clone, safetensors", "onnx-diagnostic", "torchlens")
BARE = ("bare, page cache", "bare, direct I/O")
OTHER_TOOLS = {"A": ("clone", *PEERS), "B": ("clone", *PEERS, "torchlens in memory"), "C": ("clone", *PEERS), "D": ()}
FILCH_VARIANTS = {
    "A": ("Filch in memory", "Filch"),
    "B": ("Filch in memory", "Filch"),
    "C": ("Filch",),
    "D": ("Filch, 256 MiB buffer",),
}


def captured_bytes(workload: Workload) -> int:
    """Return the total bytes of the inputs and outputs of all module calls."""
    sizes = []

    def add_sizes(value: Any) -> None:
        sizes.extend(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))

    def before(_: str) -> Any:
        return lambda _, args, kwargs: add_sizes((args, kwargs))

    def after(_: str) -> Any:
        return lambda _, args, kwargs, output: add_sizes(output)  # noqa: ARG005

    with hooked(workload.model, before, after) as forward, torch.no_grad():
        for x in workload.inputs():
            forward(x)
    return sum(sizes)


def run_child(options: argparse.Namespace) -> None:
    """Measure one variant in this process, and print its timing as JSON."""
    name, variant = options.child
    torch.manual_seed(0)
    workload = WORKLOADS[name](options.scale)
    with torch.no_grad():
        workload.model(next(workload.inputs()))  # torch initializes itself in the first call
    limit_memory(options.memory, options.cgroup)
    print(json.dumps(asdict(time_forward(workload, VARIANTS[variant], options.folder, options.warm))))


def sampler(name: str, workload: Workload, warm_up: int, options: argparse.Namespace) -> Callable[[str], Timing]:
    """Return a function that measures a variant: in this process, or in a subprocess that also measures its memory."""
    if name in "AB":
        return lambda variant: time_forward(workload, VARIANTS[variant], options.folder, warm_up)
    # The limit makes a variant that needs too much memory fail alone. In D, it is what is measured.
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory, cgroup = (4 * GIB, options.cgroup) if name == "D" else (physical * 7 // 10, None)
    arguments = ["--memory", memory, "--folder", options.folder, "--scale", options.scale, "--warm", warm_up]
    arguments += [] if cgroup is None else ["--cgroup", cgroup]
    return lambda variant: Timing(**run_in_subprocess(__file__, "--child", name, variant, *arguments))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all variants of a model: the samples, and the errors of those that failed."""
    torch.manual_seed(0)
    workload = WORKLOADS[name](options.scale)
    captured = captured_bytes(workload)
    warm_up = captured * 9 // 4  # for clones of all tensors, a file with all of them, and the forward pass itself
    measure_once, filch_variant = sampler(name, workload, warm_up, options), FILCH_VARIANTS[name][-1]
    rounds = {"A": options.rounds, "B": 4 * options.rounds, "C": min(3, options.rounds), "D": 1}[name]
    try:
        unique = measure_once(filch_variant).size
    except Exception as error:  # noqa: BLE001  as in `interleave`
        return {
            "captured": captured,
            "unique": 0,
            "hooks": 0,
            "samples": {},
            "failed": {filch_variant: f"{type(error).__name__}: {error}"},
        }

    def measure_variant(variant: str) -> Timing:
        if variant != LIMIT:
            return measure_once(variant)
        return time_disk_write(unique, options.folder, warm_up)

    others = OTHER_TOOLS[name] if options.peers else ()
    bounds = ("plain", "empty hooks", LIMIT, *(BARE if name in "AC" else ()))
    samples, failed = interleave((*bounds, *others, *FILCH_VARIANTS[name]), retry_high_steal(measure_variant), rounds)
    hooks = workload.hook_calls()
    return {"captured": captured, "unique": unique, "hooks": hooks, "samples": samples, "failed": failed}


def format_table(name: str, result: dict[str, Any]) -> str:
    """Format the table of one model: a row for each variant, and the errors of those that failed."""
    samples, hooks = result["samples"], result["hooks"]
    base, lower_bound = lower_bounds(samples)
    header = ["variant", "total s", "inside s", "x plain", "x max(plain, limit)", "GB", "low-steal runs"]
    header += ["inside µs/hook", "total µs/hook"] if name == "B" else ["peak over plain MB"] if name in "CD" else []
    rows = []
    for variant, timings in samples.items():
        inside, total, size, peak = (
            median_of(samples, variant, field) or 0 for field in ("inside", "total", "size", "peak")
        )
        row = [variant, f"{total:.4f}", f"{inside:.4f}", f"{total / base:.2f}", f"{total / lower_bound:.2f}"]
        row += [f"{size / 1e9:.3f}", f"{sum(timing.has_low_steal() for timing in timings)} of {len(timings)}"]
        if name == "B":
            row += [f"{per_hook(samples, variant, field, hooks) or 0:.2f}" for field in ("inside", "total")]
        elif name in "CD":
            row.append(f"{(peak - (median_of(samples, 'plain', 'peak') or 0)) / 1e6:.0f}" if peak else "")
        rows.append(row)
    failures = [f"{variant}: no result: {reason}" for variant, reason in result["failed"].items()]
    title = f"{result['captured'] / 1e9:.3f} GB of inputs and outputs, {result['unique'] / 1e9:.3f} GB in Filch's files"
    return "\n".join([title, table(header, rows), *failures])


def per_hook(samples: dict[str, list[Timing]], variant: str, field: str, hooks: int) -> float | None:
    """Return the microseconds of a hook call in addition to those of an empty hook."""
    seconds, empty = (median_of(samples, name, field) for name in (variant, "empty hooks"))
    return None if seconds is None or empty is None else (seconds - empty) / hooks * 1e6


def targets(name: str, result: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Return a line for each target of a model."""
    samples, filch_variant = result["samples"], FILCH_VARIANTS[name][-1]
    total = median_of(samples, filch_variant, "total")
    lines = []
    if name in "AC":
        ratio = total and total / lower_bounds(samples)[1]
        lines.append(format_target(f"{name}, total / max(plain, limit)", ratio, at_most={"A": 1.25, "C": 1.15}[name]))
        bare = min((median_of(samples, variant, "total") for variant in BARE if variant in samples), default=None)
        lines.append(f"note    {name}, total / the faster bare capture: {total and bare and total / bare:.3g}")
        for peer in PEERS if options.peers else ():
            peer_seconds = median_of(samples, peer, "total")
            ratio = peer_seconds and total and peer_seconds / total
            lines.append(format_target(f"{name}, times faster than {peer}", ratio, at_least=3))
    if name == "B":
        memory, disk = (
            per_hook(samples, variant, field, result["hooks"])
            for variant, field in (("Filch in memory", "inside"), ("Filch", "total"))
        )
        lines.append(format_target("B, µs per hook in memory, inside the block", memory, at_most=10))
        lines.append(format_target("B, µs per hook to disk, with the finished file", disk, at_most=20))
    if name in "CD":
        peak, plain_peak = (median_of(samples, variant, "peak") for variant in (filch_variant, "plain"))
        extra_peak = None if peak is None or plain_peak is None else (peak - plain_peak) / 1e6
        lines.append(format_target(f"{name}, peak MB over the plain run", extra_peak, at_most=BUFFER / 1e6 + 300))
    return lines


def profile_workload(name: str, options: argparse.Namespace) -> str:
    """Return a table of where the time of a capture goes."""
    torch.manual_seed(0)
    workload = WORKLOADS[name](options.scale)
    return profile(workload, options.folder, captured_bytes(workload) * 9 // 4, options.rounds)


def main() -> None:
    """Measure the selected models and print their tables; a missed target is not a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="A,B,C,D,CUDA", help="comma-separated, default: %(default)s")
    parser.add_argument(
        "--rounds", type=int, default=5, help="for A and CUDA; B has four times as many, C at most 3, D 1"
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", metavar="FILE", help="also write all samples to this file")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="a folder on the disk to measure")
    parser.add_argument("--profile", action="store_true", help="show where the time of A and C goes instead")
    parser.add_argument("--scale", type=float, default=1.0, help="size of C, D and CUDA; 0.1 for a quick trial")
    parser.add_argument("--cgroup", help="limit the memory of D by this existing control group instead of RLIMIT_DATA")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "VARIANT"), help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options)
        return
    print(describe_environment("filch", "torch", "transformers", "onnx", "onnx-diagnostic", "safetensors", "torchlens"))
    results: dict[str, Any] = {}
    for name in options.models.split(","):
        if options.profile:
            if name in "AC":  # timing costs more than the hooks of B, and D depends on the disk
                print(f"\n{WORKLOADS[name].__doc__}\n{profile_workload(name, options)}", flush=True)
            continue
        if name == "CUDA":
            print(f"\nCUDA, {cuda(options)}", flush=True)
            continue
        results[name] = measure(name, options)
        print(f"\n{WORKLOADS[name].__doc__}\n{format_table(name, results[name])}")
        print("\n".join(targets(name, results[name], options)), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, default=asdict, indent=1))


if __name__ == "__main__":
    main()
