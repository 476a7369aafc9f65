"""Measure time, peak memory and bytes on disk of Filch on a Llama of real size, as multiples of its weights.

The model has random weights. Each step runs in a new process, beside the steps of other tools: the model in eager
PyTorch, and a session of plain ONNX Runtime. Memory is the largest resident size; the part that is anonymous can't be
reclaimed, the rest are pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _measure import GIB, MIB, describe_environment, format_target, run_in_subprocess, table
from torch import nn

SMALL = ("words=4000", "heads=8", "kv_heads=4")  # so that the vocabulary does not dominate
EAGER, PLAIN, CHECK = "eager forward", "plain ONNX Runtime", "check"
MAX_PEAK, MAX_DISK, MAX_CHECK = 2.2, 1.05, 8.0  # of the weights, of the weights, of the plain runs' sum


@dataclass(frozen=True)
class Size:
    """The size of a Llama: layers, width, width of the MLP, heads, heads of keys and values, words."""

    layers: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    words: int


SIZES = {
    "130M": Size(12, 768, 2048, 12, 4, 32000),
    "350M": Size(20, 1024, 4096, 16, 8, 32000),
    "1B": Size(16, 2048, 8192, 32, 8, 32000),
    "3B": Size(28, 3072, 8192, 24, 8, 32000),
}


@dataclass(frozen=True)
class Usage:
    """What one step used.

    Attributes:
        seconds: its duration.
        peak: the largest resident memory of the process in bytes, imports and model included.
        anonymous: the largest anonymous part of it in bytes.
        written: bytes written to files.
        files: bytes of the files that are left.
        phases: the seconds of each part of the step.
    """

    seconds: float
    peak: int
    anonymous: int
    written: int
    files: int
    phases: dict[str, float]


def make_llama(options: argparse.Namespace) -> tuple[nn.Module, torch.Tensor]:
    """Return a Llama with random weights, and its input."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size = SIZES[options.size]
    size = replace(size, **{name: int(text) for name, text in (item.split("=") for item in options.change)})
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=size.layers, hidden_size=size.width, intermediate_size=size.mlp,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, vocab_size=size.words, use_cache=False,
        torch_dtype=getattr(torch, options.dtype),
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, options.dtype))  # so that no float32 copy is ever made
    try:
        model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    return model, torch.randint(0, size.words, (1, options.tokens))


def weights_of(model: nn.Module) -> int:
    """Return the bytes of the parameters of a model."""
    return sum(parameter.nbytes for parameter in model.parameters())


class Step:
    """One step that is measured in this process."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Prepare the step of these options of the command line."""
        self.options = options
        self.folder = Path(options.folder)
        self.phases: dict[str, float] = {}
        self.weights = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a part of the step."""
        start = time.perf_counter()
        yield
        self.phases[name] = round(time.perf_counter() - start, 3)

    def run(self) -> Usage:
        """Run the step of the options and return what it used."""
        for function in STEPS[self.options.child](self):
            written, start = _written(), time.perf_counter()
            with _sampled_memory() as memory:
                function()
            usage = Usage(
                time.perf_counter() - start,
                memory["VmHWM"],
                memory["RssAnon"],
                _written() - written,
                sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file()),
                self.phases,
            )
        return usage

    def load_model(self) -> tuple[nn.Module, torch.Tensor]:
        """Return the model and its input."""
        model, ids = make_llama(self.options)
        self.weights = weights_of(model)
        return model, ids


Work = Callable[[], object]


def step_eager(step: Step) -> Iterator[Work]:
    """Run the model in eager PyTorch, once."""
    model, ids = step.load_model()
    yield lambda: model(ids)


def step_files(step: Step) -> Iterator[Work]:
    """Export the model with torch alone, for the plain session."""
    model, ids = step.load_model()
    path = step.folder / "plain.onnx"
    yield lambda: torch.onnx.export(model, (ids,), path, dynamo=True, external_data=True, verbose=False)


def step_plain(step: Step) -> Iterator[Work]:
    """Create a session of ONNX Runtime and run it once."""
    import onnxruntime

    ids = torch.zeros(1, step.options.tokens, dtype=torch.int64)

    def run() -> None:
        with step.phase("session"):
            session = onnxruntime.InferenceSession(step.folder / "plain.onnx", providers=["CPUExecutionProvider"])
        with step.phase("run"):
            session.run(None, {session.get_inputs()[0].name: ids.numpy()})

    yield run


def step_capture(step: Step) -> Iterator[Work]:
    """Capture all modules in memory."""
    from filch.steal import steal_forward

    model, ids = step.load_model()

    def run() -> None:
        with steal_forward(model, submodules=True):
            model(ids)

    yield run


def step_dump(step: Step) -> Iterator[Work]:
    """Capture all modules in a dump file; the steps of files need it."""
    from filch.steal import steal_forward

    model, ids = step.load_model()

    def run() -> None:
        with steal_forward(model, submodules=True, dump_file=step.folder / "run.dump.onnx"):
            model(ids)

    yield run


def step_save(step: Step) -> Iterator[Work]:
    """Export the model and save the program."""
    from filch.export import export

    model, ids = step.load_model()

    def run() -> None:
        with step.phase("export"):
            program = export(model, (ids,))
        with step.phase("save"):
            program.save(step.folder / "model.onnx")

    yield run


def step_export(step: Step) -> Iterator[Work]:
    """Export the model."""
    from filch.export import export

    model, ids = step.load_model()
    yield lambda: export(model, (ids,))


def step_load(step: Step) -> Iterator[Work]:
    """Load the program and its graph."""
    from filch.export import load_program

    yield lambda: load_program(step.folder / "model.onnx").graph


def compare_files(backend: str, stages: tuple[str, ...]) -> Callable[[Step], Iterator[Work]]:
    """Return the step that compares the saved program with the dump."""

    def run_step(step: Step) -> Iterator[Work]:
        from filch.compare import compare

        def run() -> None:
            report = compare(
                step.folder / "run.dump.onnx",
                step.folder / "model.onnx",
                backend=backend,
                stages=stages,  # type: ignore[arg-type]
                buffer=step.options.buffer * MIB,
                **step.options.compare,
            )
            _write_report(step, report)

        yield run

    return run_step


def step_check(step: Step) -> Iterator[Work]:
    """Do what `filch check` does: export, capture and compare, with the model in memory."""
    from filch.compare._compare_export import compare_export
    from filch.export import export
    from filch.steal import steal_forward

    model, ids = step.load_model()

    def run() -> None:
        with step.phase("export"):
            program = export(model, (ids,))
        with step.phase("capture"), torch.no_grad(), steal_forward(model, submodules=True) as capture:
            model(ids)
        with step.phase("compare"):
            report = compare_export(capture, program, **step.options.compare)
        _write_report(step, report)

    yield run


def _write_report(step: Step, report: Any) -> None:
    """Write the rows, so that two versions of Filch can be compared."""
    if step.options.rows:
        Path(step.options.rows).joinpath(f"{step.options.child.replace(' ', '_')}.json").write_text(report.to_json())


STEPS: dict[str, Callable[[Step], Iterator[Work]]] = {
    EAGER: step_eager,
    "torch.onnx.export": step_files,
    PLAIN: step_plain,
    "capture": step_capture,
    "dump": step_dump,
    "export": step_export,
    "save": step_save,
    "load": step_load,
    "compare exported": compare_files("onnxruntime-cpu", ("exported",)),
    "compare compiled": compare_files("onnxruntime-cpu", ("compiled",)),
    "compare both": compare_files("onnxruntime-cpu", ("exported", "compiled")),
    "compare inductor": compare_files("inductor", ("compiled",)),
    "compare eager": compare_files("eager", ("exported",)),
    CHECK: step_check,
}


def _written() -> int:
    """Return the bytes that this process has written so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar"):
            return int(line.split()[1])
    return 0


@contextmanager
def _sampled_memory() -> Iterator[dict[str, int]]:
    """Yield the largest resident memory of this process inside of the block: all of it, and its anonymous part."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    peaks, stopped = {"VmHWM": 0, "RssAnon": 0}, threading.Event()

    def sample() -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, text = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(text.split()[0]) * 1024)
            if stopped.wait(0.01):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        stopped.set()
        thread.join()


def run_child(options: argparse.Namespace) -> None:
    """Measure one step in this process and print the result as JSON."""
    step = Step(options)
    with torch.no_grad():
        usage = step.run()
    print(json.dumps({"usage": asdict(usage), "weights": step.weights}))


def measure(options: argparse.Namespace, arguments: list[str]) -> tuple[dict[str, Usage], dict[str, str], int]:
    """Measure each step in a new process; return the results, the errors of those that failed, and the weights."""
    usages: dict[str, Usage] = {}
    failed: dict[str, str] = {}
    weights = 0
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="filch-bench-") as folder:
        for name in options.steps or STEPS:
            for _ in range(options.rounds):
                os.sync()
                try:
                    result = run_in_subprocess(__file__, *arguments, "--child", name, "--folder", folder)
                except RuntimeError as error:
                    failed[name] = str(error)
                    break
                usage, weights = Usage(**result["usage"]), result["weights"] or weights
                if name not in usages or usage.seconds < usages[name].seconds:
                    usages[name] = usage
            if name in usages:
                print(f"{name}: {usages[name]}", flush=True)
    return usages, failed, weights


# Changes of the size, the smallest first; only one property grows in each.
GROWTH: dict[str, list[tuple[list[str], int]]] = {
    "layers": [([f"layers={layers}", *SMALL], 32) for layers in (2, 4, 8)],
    "width": [([f"width={width}", f"mlp={4 * width}", *SMALL], 32) for width in (512, 1024, 2048)],
    "tokens": [(["layers=2", *SMALL], tokens) for tokens in (32, 128, 512)],
}


def measure_growth(options: argparse.Namespace, arguments: list[str]) -> str:
    """Measure the last step with growing layers, width and number of tokens; return the table.

    Time and memory grow linearly if the last two columns do not grow.
    """
    rows = []
    for name, sizes in GROWTH.items():
        for change, tokens in sizes:
            more = [*arguments, "--change", *change, "--tokens", str(tokens), "--steps", EAGER, options.steps[-1]]
            parsed = argparse.Namespace(**{**vars(options), "steps": [EAGER, options.steps[-1]]})
            usages, failed, weights = measure(parsed, more)
            if failed or not weights:
                return "\n".join(f"{step}: no result: {reason}" for step, reason in failed.items())
            usage, plain = usages[options.steps[-1]], usages[EAGER]
            extra = (usage.peak - plain.peak) / weights
            cells = (f"{weights / MIB:.0f}", tokens, f"{usage.seconds:.1f}", f"{usage.seconds / plain.seconds:.1f}")
            rows.append((name, *cells, f"{extra:.2f}"))
    header = ("growing", "weights MiB", "tokens", "seconds", "seconds / eager", "(peak - eager's) / weights")
    return table(header, rows)


def format_table(usages: dict[str, Usage], failed: dict[str, str], weights: int) -> str:
    """Format the results: memory and bytes written as multiples of the weights."""
    rows = []
    for name, usage in usages.items():
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in usage.phases.items())
        ratios = (f"{size / weights:.2f}" for size in (usage.peak, usage.anonymous, usage.written))
        rows.append((name, f"{usage.seconds:.1f}", *ratios, parts))
    header = ("step", "seconds", "peak / weights", "anonymous / weights", "written / weights", "seconds of its parts")
    return "\n".join([table(header, rows), *(f"{name}: no result: {reason}" for name, reason in failed.items())])


def targets(usages: dict[str, Usage], weights: int, buffer: int) -> list[str]:
    """Return a line for each target."""
    lines = []
    for name, usage in usages.items():
        if name.startswith(("compare", CHECK)):
            allowed = MAX_PEAK + buffer / weights
            lines.append(format_target(f"peak / weights, {name}", usage.peak / weights, at_most=round(allowed, 2)))
    if "save" in usages:
        lines.append(format_target("written / weights, save", usages["save"].written / weights, at_most=MAX_DISK))
    if {EAGER, PLAIN, CHECK} <= usages.keys():
        plain = usages[EAGER].seconds + usages[PLAIN].seconds
        lines.append(format_target("check / both plain runs", usages[CHECK].seconds / plain, at_most=MAX_CHECK))
    return lines


def main() -> None:
    """Measure and print the table; a missed target is not a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="130M")
    parser.add_argument(
        "--change", nargs="*", default=[], metavar="NAME=NUMBER", help=f"of {', '.join(Size.__annotations__)}"
    )
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--buffer", type=int, default=256, help="MiB")
    parser.add_argument("--compare", type=json.loads, default={}, help="further arguments of compare, as JSON")
    parser.add_argument("--rounds", type=int, default=1, help="the fastest counts")
    parser.add_argument("--steps", nargs="+", choices=STEPS, metavar="STEP", help="some of: %(choices)s")
    parser.add_argument("--growth", action="store_true", help="measure only how the last of the steps grows")
    parser.add_argument("--rows", metavar="FOLDER", help="write the reports to this folder")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for the files")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options, arguments = parser.parse_args(), sys.argv[1:]
    if options.child:
        run_child(options)
        return
    print(describe_environment("filch", "torch", "onnx", "onnxruntime-gpu", "transformers"))
    if options.growth:
        options.steps = options.steps or [CHECK]
        print(measure_growth(options, [item for item in arguments if item != "--growth"]))
        return
    usages, failed, weights = measure(options, arguments)
    print(f"{weights / GIB:.2f} GiB of weights", format_table(usages, failed, weights), sep="\n\n")
    print(*targets(usages, weights, options.buffer * MIB), sep="\n")


if __name__ == "__main__":
    main()
