"""Time what it costs to steal all that a model's modules take and give: Filch, its peers, and what nobody can undercut.

A: a small Llama; B: 400 tiny layers; C: convolutions, more than 4 GiB; D: 16 GiB by a process that may have 4 GiB of
memory; CUDA: a Llama whose forward takes a second. All variants of a model take turns, and medians are shown.
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
from _measure import GIB, about, in_child, interleave, limit_memory, table, verdict
from _profile import profile
from _runs import LIMIT, Subject, Timing, calmly, floors, middle, run, run_limit
from _variants import BUFFER, VARIANTS, hooked, tensors_in
from torch import nn


def small_llama(scale: float, layers: int = 8) -> Subject:  # noqa: ARG001  small already
    """A, about 0.85 GB in all that its modules take and give."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=2560,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=8000,
        use_cache=False,
    )
    ids = torch.randint(0, config.vocab_size, (4, 256))
    return Subject(LlamaForCausalLM(config).eval(), lambda: iter([ids]))


def tiny_layers(scale: float) -> Subject:  # noqa: ARG001  small already
    """B, 400 layers; ten forwards in a block, so that opening and closing a file is shared by 8,020 hook calls."""
    x = torch.randn(1, 8)
    return Subject(nn.Sequential(*(nn.Linear(8, 8) for _ in range(400))).eval(), lambda: iter([x] * 10))


def convolutions(scale: float) -> Subject:
    """C, 4.3 GiB; half of the bytes are unique, as each layer takes what the one before it gave."""
    blocks = range(round(30 * scale))
    layers = [layer for _ in blocks for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())]
    x = torch.randn(8, 64, 112, 112)
    return Subject(nn.Sequential(*layers).eval(), lambda: iter([x]))


def wide_convolution(scale: float) -> Subject:
    """D, 16 GiB and all of them unique: one layer that makes much of little, called 160 times."""

    def inputs() -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return (torch.rand(8, 3, 224, 224, generator=generator) for _ in range(round(160 * scale)))

    return Subject(nn.Conv2d(3, 64, 3, padding=1).eval(), inputs)


SUBJECTS = {"A": small_llama, "B": tiny_layers, "C": convolutions, "D": wide_convolution}
PEERS = ("clone, torch.save", "clone, safetensors", "onnx-diagnostic", "torchlens")
BARE = ("bare, page cache", "bare, past it")
OTHERS = {"A": ("clone", *PEERS), "B": ("clone", *PEERS, "torchlens in memory"), "C": ("clone", *PEERS), "D": ()}
OURS = {
    "A": ("Filch in memory", "Filch"),
    "B": ("Filch in memory", "Filch"),
    "C": ("Filch",),
    "D": ("Filch, 256 MiB buffer",),
}


def captured_bytes(subject: Subject) -> int:
    """The bytes of all that the modules take and give, as often as they do."""
    sizes = []

    def count(value: Any) -> None:
        sizes.extend(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))

    def before(_: str) -> Any:
        return lambda _, args, kwargs: count((args, kwargs))

    def after(_: str) -> Any:
        return lambda _, args, kwargs, output: count(output)  # noqa: ARG005

    with hooked(subject.model, before, after) as forward, torch.no_grad():
        for x in subject.inputs():
            forward(x)
    return sum(sizes)


def as_child(options: argparse.Namespace) -> None:
    """Run one variant in this process, and print its timing as JSON."""
    name, variant = options.child
    torch.manual_seed(0)
    subject = SUBJECTS[name](options.scale)
    with torch.no_grad():
        subject.model(next(subject.inputs()))  # what torch does once
    limit_memory(options.memory, options.cgroup)
    print(json.dumps(asdict(run(subject, VARIANTS[variant], options.folder))))


def sampler(name: str, subject: Subject, warm: int, options: argparse.Namespace) -> Callable[[str], Timing]:
    """What runs a variant of a model once: in this process, or in a child where its memory is measured too."""
    if name in "AB":
        return lambda variant: run(subject, VARIANTS[variant], options.folder, warm)
    # Who wants more than the machine has fails alone. D is about a limit, of which a plain run needs a part too.
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory, cgroup = (4 * GIB, options.cgroup) if name == "D" else (physical * 7 // 10, None)
    arguments = ["--memory", memory, "--folder", options.folder, "--scale", options.scale, "--warm", warm]
    arguments += [] if cgroup is None else ["--cgroup", cgroup]
    return lambda variant: Timing(**in_child(__file__, "--child", name, variant, *arguments))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All samples of a model's variants, with what failed."""
    torch.manual_seed(0)
    subject = SUBJECTS[name](options.scale)
    captured = captured_bytes(subject)
    warm = captured * 9 // 4  # clones of it all, a file of it all, and what the forward itself needs
    once, ours = sampler(name, subject, warm, options), OURS[name][-1]
    rounds = {"A": options.rounds, "B": 4 * options.rounds, "C": min(3, options.rounds), "D": 1}[name]
    try:
        unique = once(ours).size
    except Exception as error:  # noqa: BLE001  as in the rounds
        return {
            "captured": captured,
            "unique": 0,
            "hooks": 0,
            "samples": {},
            "failed": {ours: f"{type(error).__name__}: {error}"},
        }

    def one(variant: str) -> Timing:
        if variant != LIMIT:
            return once(variant)
        return run_limit(unique, options.folder, warm)

    others = OTHERS[name] if options.peers else ()
    least = ("plain", "empty hooks", LIMIT, *(BARE if name in "AC" else ()))
    samples, failed = interleave((*least, *others, *OURS[name]), calmly(one), rounds)
    hooks = subject.hook_calls()
    return {"captured": captured, "unique": unique, "hooks": hooks, "samples": samples, "failed": failed}


def shown(name: str, result: dict[str, Any]) -> str:
    """The table of one model: a line for each variant, and what failed."""
    samples, hooks = result["samples"], result["hooks"]
    base, floor = floors(samples)
    head = ["variant", "whole s", "inside s", "x plain", "x max(plain, limit)", "GB", "calm runs"]
    head += ["inside µs/hook", "whole µs/hook"] if name == "B" else ["peak over plain MB"] if name in "CD" else []
    rows = []
    for variant, taken in samples.items():
        inside, whole, size, peak = (
            middle(samples, variant, field) or 0 for field in ("inside", "whole", "size", "peak")
        )
        row = [variant, f"{whole:.4f}", f"{inside:.4f}", f"{whole / base:.2f}", f"{whole / floor:.2f}"]
        row += [f"{size / 1e9:.3f}", f"{sum(timing.is_calm() for timing in taken)} of {len(taken)}"]
        if name == "B":
            row += [f"{per_hook(samples, variant, field, hooks) or 0:.2f}" for field in ("inside", "whole")]
        elif name in "CD":
            row.append(f"{(peak - (middle(samples, 'plain', 'peak') or 0)) / 1e6:.0f}" if peak else "")
        rows.append(row)
    failures = [f"{variant}: no result: {reason}" for variant, reason in result["failed"].items()]
    said = f"{result['captured'] / 1e9:.3f} GB taken and given, {result['unique'] / 1e9:.3f} GB in Filch's files"
    return "\n".join([said, table(head, rows), *failures])


def per_hook(samples: dict[str, list[Timing]], variant: str, field: str, hooks: int) -> float | None:
    """Microseconds a hook call over those of an empty one."""
    ours, empty = (middle(samples, one, field) for one in (variant, "empty hooks"))
    return None if ours is None or empty is None else (ours - empty) / hooks * 1e6


def targets(name: str, result: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """What was promised, and whether it is kept."""
    samples, ours = result["samples"], OURS[name][-1]
    whole = middle(samples, ours, "whole")
    lines = []
    if name in "AC":
        ratio = whole and whole / floors(samples)[1]
        lines.append(verdict(f"{name}, whole / max(plain, limit)", ratio, most={"A": 1.25, "C": 1.15}[name]))
        bare = min((middle(samples, one, "whole") for one in BARE if one in samples), default=None)
        lines.append(f"note    {name}, whole / the faster of the bare ones: {whole and bare and whole / bare:.3g}")
        for peer in PEERS if options.peers else ():
            theirs = middle(samples, peer, "whole")
            lines.append(verdict(f"{name}, times faster than {peer}", theirs and whole and theirs / whole, least=3))
    if name == "B":
        memory, disk = (
            per_hook(samples, variant, field, result["hooks"])
            for variant, field in (("Filch in memory", "inside"), ("Filch", "whole"))
        )
        lines.append(verdict("B, µs a hook in memory, inside the block", memory, most=10))
        lines.append(verdict("B, µs a hook to disk, finished file included", disk, most=20))
    if name in "CD":
        peak, least = (middle(samples, variant, "peak") for variant in (ours, "plain"))
        over = None if peak is None or least is None else (peak - least) / 1e6
        lines.append(verdict(f"{name}, peak MB over the plain run", over, most=BUFFER / 1e6 + 300))
    return lines


def profiled(name: str, options: argparse.Namespace) -> str:
    """Where the time of Filch goes on a model."""
    torch.manual_seed(0)
    subject = SUBJECTS[name](options.scale)
    return profile(subject, options.folder, captured_bytes(subject) * 9 // 4, options.rounds)


def main() -> None:
    """Measure the models that were asked for, and print their tables; targets that are missed are no failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="A,B,C,D,CUDA", help="some of A,B,C,D,CUDA")
    parser.add_argument("--rounds", type=int, default=5, help="of A and CUDA; B has four times as many, C 3, D 1")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", metavar="FILE", help="write all samples there too")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that is to be measured")
    parser.add_argument("--profile", action="store_true", help="instead, say where the time of A or C goes")
    parser.add_argument("--scale", type=float, default=1.0, help="of C and D; 0.1 tries the script out")
    parser.add_argument("--cgroup", help="D joins this control group, which you made, instead of limiting its own heap")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "VARIANT"), help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        as_child(options)
        return
    print(about("filch", "torch", "transformers", "onnx", "onnx-diagnostic", "safetensors", "torchlens"))
    results: dict[str, Any] = {}
    for name in options.models.split(","):
        if options.profile:
            if name in "AC":  # clocks cost more than B's hooks, and D takes the disk's time
                print(f"\n{SUBJECTS[name].__doc__}\n{profiled(name, options)}", flush=True)
            continue
        if name == "CUDA":
            print(f"\nCUDA, {cuda(options)}", flush=True)
            continue
        results[name] = measure(name, options)
        print(f"\n{SUBJECTS[name].__doc__}\n{shown(name, results[name])}")
        print("\n".join(targets(name, results[name], options)), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, default=asdict, indent=1))


if __name__ == "__main__":
    main()
