"""Count what commands of Filch cost: runs, sessions and passes with a small model, memory and bytes with a large one.

What is counted is counted where it happens, in torch, in ONNX Runtime and in the operating system: Filch itself has no
counters. How often a model is computed, and in which dtype, is told by its matrix products, which torch's profiler sees
whoever runs them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import math
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime
import torch
from _measure import peak_memory
from torch._inductor.graph import GraphLowering
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from filch.compare import tiny_llm
from filch.compare.cli._app import app
from filch.steal import Capture, restore, steal_forward

Figures = dict[str, float]

COUNTED: dict[str, tuple[tuple[Any, str], ...]] = {
    "exports": ((torch.export, "export"),),
    "translations": ((torch.onnx, "export"),),
    "compilations": ((GraphLowering, "compile_to_module"),),
    "sessions": ((onnxruntime.InferenceSession, "__init__"),),
    "session runs": tuple(
        (onnxruntime.InferenceSession, name) for name in ("run", "run_with_ort_values", "run_with_iobinding")
    ),
}
# Operators that go over no numbers, besides views.
FREE = frozenset({"_unsafe_view", "as_strided_", "empty", "empty_strided", "is_same_size", "result_type", "set_"})
PRODUCTS = frozenset({"aten::mm", "aten::addmm"})


Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def small() -> Made:
    """Return the language model of one layer, and an input that has more numbers than the weights."""
    model, _ = tiny_llm()
    return model, (torch.randint(0, 1024, (4, 120), generator=torch.Generator().manual_seed(0)),)


def small_llama() -> Made:
    """Return a Llama of one layer, which has a cache, and its input."""
    return llama(layers=1, width=64, mlp=96, heads=4, words=128)  # no width is the number of tokens


def llama_50m() -> Made:
    """Return a Llama with 50 million parameters and its input."""
    return llama(layers=3, width=1024, mlp=4096, heads=16, words=2000)


def llama_1b() -> Made:
    """Return a Llama with a billion parameters and its input."""
    return llama(layers=4, width=4096, mlp=14336, heads=32, words=16000)


def llama(*, layers: int, width: int, mlp: int, heads: int, words: int) -> Made:
    """Return a Llama with random weights, in float32, and an input of 40 tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=mlp, num_attention_heads=heads,
        num_key_value_heads=max(2, heads // 4), vocab_size=words, use_cache=False,
    )  # fmt: skip
    model: torch.nn.Module = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    return model, (torch.randint(0, words, (1, 40)),)


MODELS = {"small": small, "small llama": small_llama, "50m": llama_50m, "1b": llama_1b}


@dataclass(frozen=True)
class Place:
    """A model and the folder of its files.

    Attributes:
        model: the name of the model in `MODELS`.
        folder: the folder.
    """

    model: str
    folder: Path

    @property
    def factory(self) -> str:
        """The model on the command line."""
        return f"{Path(__file__).resolve()}:{MODELS[self.model].__name__}"

    def filch(self, *arguments: str) -> str:
        """Run a command of Filch in this process, and return what it prints; it has to find that all is close.

        Args:
            *arguments: its arguments, in which `MODEL` stands for the model, and names of files are of the folder.
        """
        given = [self.factory if item == "MODEL" else item for item in arguments]
        given = [str(self.folder / item) if Path(item).suffix in (".onnx", ".toml") else item for item in given]
        result = CliRunner().invoke(app, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def prepare(self, *files: str) -> None:
        """Make the folder, and those of its files that do not exist yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            path = self.folder / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with torch.no_grad():
                    FILES[name](self, path)


def record(place: Place, path: Path, **options: Any) -> Capture:
    """Record a run of the model in a file."""
    model, inputs = MODELS[place.model]()
    with steal_forward(model, submodules=True, dump_file=path, **options) as capture:
        model(*inputs)
    return capture


def copy_program(place: Place, path: Path) -> None:
    """Copy the program with its weights."""
    place.prepare("program/a.onnx")
    shutil.copytree(place.folder / "program", path.parent, dirs_exist_ok=True)


# The files that commands read; two of them have the weights as well, so that there is something to read.
FILES: dict[str, Callable[[Place, Path], object]] = {
    "run.onnx": record,
    "before.onnx": functools.partial(record, parameters=True),
    "after.onnx": functools.partial(record, parameters=True),
    "program/a.onnx": lambda place, _: place.filch("export", "MODEL", "-o", "program/a.onnx"),
    "copy/a.onnx": copy_program,
    "map.toml": lambda place, _: place.filch("align", "MODEL", "MODEL", "-o", "map.toml"),
}


@dataclass(frozen=True)
class Command:
    """Something that users do.

    Attributes:
        run: does it, and returns what it prints, if it prints anything.
        files: what it reads.
        rows: whether it prints the judged values in JSON.
        models: how many models it makes.
        counted: the model with which it is counted.
        measured: the models with which its memory is measured.
    """

    run: Callable[[Place], object]
    files: tuple[str, ...] = ()
    rows: bool = False
    models: int = 1
    counted: str = "small"
    measured: tuple[str, ...] = ("50m",)


def command(*arguments: str, **options: Any) -> Command:
    """Return a command of the command line."""
    needed, models = tuple(item for item in arguments if item in FILES), arguments.count("MODEL")
    return Command(lambda place: place.filch(*arguments), needed, "--json" in arguments, models, **options)


def capture_in_memory(place: Place) -> None:
    """Record all modules in memory."""
    model, inputs = MODELS[place.model]()
    with torch.no_grad(), steal_forward(model, submodules=True):
        model(*inputs)


def restore_all(place: Place) -> None:
    """Restore each value of a dump with the weights, one after the other."""
    records = restore(place.folder / "before.onnx")
    for key in records:
        records[key]


LARGE = ("50m", "1b")
COMMANDS = {
    "steal_forward in memory": Command(capture_in_memory),
    "steal": command("steal", "MODEL", "-o", "new.onnx", measured=LARGE),
    "restore": Command(restore_all, ("before.onnx",), models=0),
    "check": command("check", "MODEL", "--json", measured=LARGE),
    "check -b inductor": command("check", "MODEL", "-b", "inductor", "--json", measured=LARGE),
    "compare run.onnx a.onnx": command("compare", "run.onnx", "program/a.onnx", "--json"),
    "compare --mapping": command("compare", "run.onnx", "program/a.onnx", "--mapping", "map.toml", "--json"),
    "compare a.onnx b.onnx": command("compare", "program/a.onnx", "copy/a.onnx", "--json"),
    "diff": command("diff", "before.onnx", "after.onnx", "--json"),
    "diff --model": command("diff", "before.onnx", "after.onnx", "--model", "MODEL", "--json"),
    "align": command("align", "MODEL", "MODEL"),
    "decode": command("decode", "MODEL", "--tokens", "8", counted="small llama"),
}


@contextlib.contextmanager
def counted_calls(model: type[torch.nn.Module]) -> Iterator[Counter[str]]:
    """Count the calls of `COUNTED`, and those of models of a class outside of compilers, in the block."""
    counts: Counter[str] = Counter()

    def counting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "forward runs" or not torch.compiler.is_compiling():
                counts[name] += 1
            return function(*args, **kwargs)

        return call

    places = [(name, *where) for name, all_of_it in COUNTED.items() for where in all_of_it]
    with contextlib.ExitStack() as stack:
        for name, owner, attribute in [*places, ("forward runs", model, "forward")]:
            call = counting(getattr(owner, attribute), name)
            stack.enter_context(mock.patch.object(owner, attribute, call))
        yield counts


@dataclass(frozen=True)
class Operation:
    """An operation of torch that has run on numbers.

    Attributes:
        name: the name of the operator.
        shapes: the shapes of the tensors that it was given, also as results.
        dtype: the dtype of the first one.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @property
    def numbers(self) -> int:
        """How many numbers it has gone over: those of its largest tensor."""
        return max(map(math.prod, self.shapes))


def operations_of(work: Callable[[], object]) -> list[Operation]:
    """Run something, and return the operations that go over numbers themselves; those of fake tensors are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the profiler itself
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            work()
    found: list[Operation] = []
    pending = [*profiled.profiler.kineto_results.experimental_event_tree()]
    while pending:
        event = pending.pop()
        pending += event.children
        is_last = _goes_over_numbers(event) and not any(map(_goes_over_numbers, event.children))
        if is_last or event.name in PRODUCTS:  # these may copy what they add to
            given = [*_tensors(event.extra_fields.inputs)]
            if given and all(tensor.storage_data_ptr or not math.prod(tensor.sizes) for tensor in given):
                shapes = tuple(tuple(tensor.sizes) for tensor in given)
                found.append(Operation(event.name, shapes, given[0].dtype))
    return found


def _tensors(inputs: Iterable[Any]) -> Iterator[Any]:
    """Yield what the profiler knows of the tensors among inputs."""
    for item in inputs:
        if isinstance(item, list):
            yield from _tensors(item)
        elif hasattr(item, "storage_data_ptr"):
            yield item


def _goes_over_numbers(event: Any) -> bool:
    """Whether the profiler has seen an operator that returns more than a view, or memory as it is."""
    space, _, name = event.name.partition("::")
    return event.tag.name == "TorchOp" and space == "aten" and not (name in FREE or _returns_view(name))


@functools.cache
def _returns_view(name: str) -> bool:
    """Whether an operator of torch returns a view of what it is given."""
    packet = getattr(torch.ops.aten, name)
    return any(getattr(packet, overload).is_view for overload in packet.overloads())


def count(name: str, place: Place) -> Figures:
    """Return the counts of a command.

    - forward runs: calls of the model with numbers.
    - exports, translations, compilations: calls of `torch.export.export` and `torch.onnx.export`, and graphs for which
      Inductor writes code.
    - sessions, session runs: of ONNX Runtime.
    - evaluations, float64 evaluations: how often torch computes all products of values with the model's weights, in the
      model or in a program of it, in float32 and in float64.
    - passes: how many numbers torch's operations and NumPy's comparisons and checksums go over, besides those of the
      model itself, divided by the numbers of the values that are judged or recorded.
    - written / values: the written bytes, divided by those of the values that the model's modules take and return.
    """
    command = COMMANDS[name]
    place.prepare(*command.files)
    model, inputs = MODELS[place.model]()
    weights = {tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2}
    weights |= {shape[::-1] for shape in weights}

    def products(operations: Iterable[Operation]) -> Counter[torch.dtype]:
        found = (item for item in operations if item.name in PRODUCTS)
        return Counter(item.dtype for item in found if sum(shape in weights for shape in item.shapes) == 1)

    with torch.no_grad():
        one_run = operations_of(lambda: model(*inputs))
    of_one_run, bytes_before = products(one_run)[torch.float32], written()
    printed: list[Any] = []
    with counted_calls(type(model)) as calls, counted_arrays() as arrays:
        operations = operations_of(lambda: printed.append(command.run(place)))
    bytes_written, computed, recorded = written() - bytes_before, products(operations), value_bytes(model, inputs)
    own = calls["forward runs"] * numbers_of(one_run) + command.models * numbers_of(operations_of(MODELS[place.model]))
    figures: Figures = {figure: calls[figure] for figure in ("forward runs", *COUNTED)}
    figures["evaluations"] = round(computed[torch.float32] / of_one_run, 3)
    figures["float64 evaluations"] = round(computed[torch.float64] / of_one_run, 3)
    values = _judged_numbers(printed[0]) if command.rows else recorded / 4
    figures["passes"] = (numbers_of(operations) - own + sum(arrays)) / values
    if name == "steal":
        figures["written / values"] = bytes_written / recorded
    return figures


def numbers_of(operations: Iterable[Operation]) -> int:
    """Return how many numbers operations have gone over."""
    return sum(item.numbers for item in operations)


@contextlib.contextmanager
def counted_arrays() -> Iterator[list[int]]:
    """Count how many numbers of 4 bytes `numpy.array_equal` and `numpy.einsum`, of checksums, go over in the block."""
    counts: list[int] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts.append(max(item.nbytes for item in args if isinstance(item, np.ndarray)) // 4)
            return function(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for function in (np.array_equal, np.einsum):
            stack.enter_context(mock.patch.object(np, function.__name__, counting(function)))
        yield counts


def _judged_numbers(printed: str) -> int:
    """Return how many numbers the values have that a result in JSON has judged."""
    results = json.loads(printed)
    rows = [row for result in (results if isinstance(results, list) else [results]) for row in result["rows"]]
    return sum(row["difference"]["count"] for row in rows if row["difference"] is not None)


def value_bytes(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """Return the bytes of the memory of all tensors that the modules of a model take and return; each memory once."""
    kept: list[torch.Tensor] = []  # so that no memory is used twice

    def keep(_module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        kept.extend(item for item in pytree.tree_leaves((args, kwargs, output)) if isinstance(item, torch.Tensor))

    hooks = [module.register_forward_hook(keep, with_kwargs=True) for module in model.modules()]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}.values())


def written() -> int:
    """Return the bytes that this process has written so far."""
    text = Path("/proc/self/io").read_text("ascii")
    return int(text.partition("wchar:")[2].split()[0])


def measure(name: str, place: Place) -> Figures:
    """Return the memory and the written bytes of a command with a large model, in multiples of the weights.

    Memory is the largest that the process has, with pages of mapped files, above that of a process that has imported
    everything and run the command with the smallest model.
    """
    small_place = Place(COMMANDS[name].counted, place.folder / "small")
    small_place.prepare(*COMMANDS[name].files)
    COMMANDS[name].run(small_place)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak so far
    before, bytes_before = peak_memory(), written()
    COMMANDS[name].run(place)
    peak, bytes_written = peak_memory() - before, written() - bytes_before
    with torch.device("meta"):
        weights = sum(parameter.nbytes for parameter in MODELS[place.model]()[0].parameters())
    return {"peak / weights": peak / weights, "written / weights": bytes_written / weights}
