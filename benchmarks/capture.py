"""Time what it costs to steal all that a model's modules take and give: Filch, its peers, and what nobody can undercut.

A: a small Llama; B: 400 tiny layers; C: convolutions, more than 4 GiB; D: 16 GiB by a process that may have 4 GiB of
memory; CUDA: a Llama whose forward takes a second. All variants of a model take turns, and medians are shown.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import (
    GIB,
    MIB,
    about,
    bytes_below,
    in_child,
    interleave,
    limit_memory,
    peak_bytes,
    seconds_to_write,
    settle,
    table,
    verdict,
)
from torch import nn

from filch.steal import steal_forward

BUFFER = 256 * MIB
Forward = Callable[..., Any]
Variant = Callable[[nn.Module, Path], AbstractContextManager[Forward]]


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
    """One run: seconds inside the block and of all of it with the finished file; the file's bytes, the peak memory."""

    inside: float
    whole: float
    size: int
    peak: int


def small_llama(scale: float) -> Subject:  # noqa: ARG001  small already
    """A, about 0.85 GB in all that its modules take and give."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=2560,
        num_hidden_layers=8,
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


def plain(model: nn.Module, folder: Path) -> AbstractContextManager[Forward]:  # noqa: ARG001  a variant's signature
    """Nothing."""
    return nullcontext(model)


@contextmanager
def hooked(model: nn.Module, before: Callable[[str], Any], after: Callable[[str], Any]) -> Iterator[Forward]:
    """Let all modules have the hooks that `before` and `after` make for their names."""
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
        handles.append(module.register_forward_hook(after(name), with_kwargs=True, always_call=True))
    try:
        yield model
    finally:
        for handle in handles:
            handle.remove()


def empty_hooks(model: nn.Module, folder: Path) -> AbstractContextManager[Forward]:  # noqa: ARG001
    """What torch takes to call hooks that do nothing."""

    def nothing(*_: object) -> None:
        pass

    return hooked(model, lambda _: nothing, lambda _: nothing)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a nesting of tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


@contextmanager
def clones(model: nn.Module, folder: Path, save: Callable[[dict[str, torch.Tensor], Path], None]) -> Iterator[Forward]:
    """What everybody writes first: hooks that clone into memory; then `save` makes a file of it."""
    kept: dict[str, torch.Tensor] = {}

    def keep(key: str, value: Any) -> None:
        for tensor in tensors_in(value):
            # Not as it lies: safetensors takes contiguous ones alone.
            kept[f"{key}.{len(kept)}"] = tensor.clone(memory_format=torch.contiguous_format)

    def before(name: str) -> Any:
        return lambda _, args, kwargs: keep(f"{name}.I", (args, kwargs))

    def after(name: str) -> Any:
        return lambda _, args, kwargs, output: keep(f"{name}.O", output)  # noqa: ARG005

    with hooked(model, before, after) as forward:
        yield forward
    save(kept, folder / "saved")


def keep_in_memory(kept: dict[str, torch.Tensor], path: Path) -> None:
    """No file."""


def by_safetensors(kept: dict[str, torch.Tensor], path: Path) -> None:
    """One file of safetensors."""
    from safetensors.torch import save_file

    save_file(kept, path)


@contextmanager
def onnx_diagnostic(model: nn.Module, folder: Path) -> Iterator[Forward]:
    """Its steal_forward, without its limit of 128 MiB a tensor, and with nothing to print."""
    from onnx_diagnostic.helpers.torch_helper import steal_forward as steal

    dump = str(folder / "dump.onnx")
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            steal(model, fprint=lambda *_, **__: "", submodules=True, dump_file=dump, storage_limit=2**62),
        ):
            yield model
    finally:
        for module in model.modules():  # it leaves the bound method in each
            module.__dict__.pop("forward", None)


@contextmanager
def torchlens(model: nn.Module, folder: Path, *, disk: bool = True) -> Iterator[Forward]:
    """Its trace of every operation, streamed to its bundles (`tl.to_disk`) or kept in memory."""
    import torchlens as tl
    from torchlens.options import CaptureOptions

    kept = []

    def forward(x: torch.Tensor) -> None:
        storage = {"storage": tl.to_disk(folder / f"{len(kept)}.tlspec")} if disk else {}
        # Unwrapped, or all of torch would be slower for who comes next.
        kept.append(tl.trace(model, (x,), capture=CaptureOptions(unwrap_when_done=True), **storage))

    with warnings.catch_warnings(action="ignore"):
        yield forward


@contextmanager
def filch(model: nn.Module, folder: Path, *, disk: bool = True, **options: Any) -> Iterator[Forward]:
    """Filch."""
    with steal_forward(model, submodules=True, dump_file=folder / "dump.onnx" if disk else None, **known(options)):
        yield model


@contextmanager
def filch_layers(model: nn.Module, folder: Path, **options: Any) -> Iterator[Forward]:
    """Filch on the decoder layers alone."""
    with steal_forward(list(model.layers.named_children()), dump_file=folder / "dump.onnx", **known(options)):
        yield model


def known(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that this Filch has: one from before streaming has no buffer."""
    return {name: value for name, value in options.items() if name in inspect.signature(steal_forward).parameters}


VARIANTS: dict[str, Variant] = {
    "plain": plain,
    "empty hooks": empty_hooks,
    "clone": partial(clones, save=keep_in_memory),
    "clone, torch.save": partial(clones, save=torch.save),
    "clone, safetensors": partial(clones, save=by_safetensors),
    "onnx-diagnostic": onnx_diagnostic,
    "torchlens in memory": partial(torchlens, disk=False),
    "torchlens": torchlens,
    "Filch in memory": partial(filch, disk=False),
    "Filch": filch,
    "Filch, 256 MiB buffer": partial(filch, buffer=BUFFER),
}
PEERS = ("clone, torch.save", "clone, safetensors", "onnx-diagnostic", "torchlens")
OTHERS = {"A": ("clone", *PEERS), "B": ("clone", *PEERS, "torchlens in memory"), "C": ("clone", *PEERS), "D": ()}
OURS = {
    "A": ("Filch in memory", "Filch"),
    "B": ("Filch in memory", "Filch"),
    "C": ("Filch",),
    "D": ("Filch, 256 MiB buffer",),
}
LIMIT = "limit"


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


def run(subject: Subject, variant: Variant, folder: str, warm: int = 0) -> Timing:
    """Run a variant once, with `warm` bytes of memory at hand, and delete what it wrote."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    with tempfile.TemporaryDirectory(dir=folder, prefix="filch-bench-") as here, torch.no_grad():
        settle(warm, Path(folder))
        synchronize()
        start = time.perf_counter()
        with variant(subject.model, Path(here)) as forward:
            entered = time.perf_counter()
            for x in subject.inputs():
                forward(x)
            synchronize()
            left = time.perf_counter()
        done = time.perf_counter()
        return Timing(left - entered, done - start, bytes_below(Path(here)), peak_bytes())


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
        settle(warm, Path(options.folder))
        seconds = seconds_to_write(unique, Path(options.folder))
        return Timing(seconds, seconds, unique, 0)

    others = OTHERS[name] if options.peers else ()
    samples, failed = interleave(("plain", "empty hooks", LIMIT, *others, *OURS[name]), one, rounds)
    hooks = subject.hook_calls()
    return {"captured": captured, "unique": unique, "hooks": hooks, "samples": samples, "failed": failed}


def middle(samples: dict[str, list[Timing]], variant: str, field: str) -> float | None:
    """The median of one field of a variant's timings; None where it has none."""
    taken = [getattr(timing, field) for timing in samples.get(variant, ())]
    return median(taken) if taken else None


def shown(name: str, result: dict[str, Any]) -> str:
    """The table of one model: a line for each variant, and what failed."""
    samples, hooks = result["samples"], result["hooks"]
    base, floor = floors(samples)
    head = ["variant", "whole s", "inside s", "x plain", "x max(plain, limit)", "GB", "runs"]
    head += ["inside µs/hook", "whole µs/hook"] if name == "B" else ["peak over plain MB"] if name in "CD" else []
    rows = []
    for variant, taken in samples.items():
        inside, whole, size, peak = (middle(samples, variant, field) or 0 for field in Timing.__annotations__)
        row = [variant, f"{whole:.4f}", f"{inside:.4f}", f"{whole / base:.2f}", f"{whole / floor:.2f}"]
        row += [f"{size / 1e9:.3f}", str(len(taken))]
        if name == "B":
            row += [f"{per_hook(samples, variant, field, hooks) or 0:.2f}" for field in ("inside", "whole")]
        elif name in "CD":
            row.append(f"{(peak - (middle(samples, 'plain', 'peak') or 0)) / 1e6:.0f}" if peak else "")
        rows.append(row)
    failures = [f"{variant}: no result: {reason}" for variant, reason in result["failed"].items()]
    said = f"{result['captured'] / 1e9:.3f} GB taken and given, {result['unique'] / 1e9:.3f} GB in Filch's files"
    return "\n".join([said, table(head, rows), *failures])


def floors(samples: dict[str, list[Timing]]) -> tuple[float, float]:
    """Seconds of the plain forward, and of what nobody can undercut; not a number where nothing was measured."""
    nothing = float("nan")
    base, limit = (middle(samples, variant, "whole") or nothing for variant in ("plain", LIMIT))
    return base, max(base, limit)


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
        settle(2 * unique, Path(options.folder))
        seconds = seconds_to_write(unique, Path(options.folder))
        return Timing(seconds, seconds, unique, 0)

    samples, failed = interleave((LIMIT, *ways), once, options.rounds)
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


def main() -> None:
    """Measure the models that were asked for, and print their tables; targets that are missed are no failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="A,B,C,D,CUDA", help="some of A,B,C,D,CUDA")
    parser.add_argument("--rounds", type=int, default=5, help="of A and CUDA; B has four times as many, C 3, D 1")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", metavar="FILE", help="write all samples there too")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that is to be measured")
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
