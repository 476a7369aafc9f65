"""Porting bugs as data: `first.toml` to `seventh.toml` say what is wrong in which port, and where it may show first.

A bug has a `kind`, `places` and one edit of the port, or several as `edits`:

- `code = "blocks.1.attention.forward"` with `old` and `new`: replaces a part of the code of this method of this module,
  or several parts if these are lists. The lines of the code stay where they are.
- `change = "blocks.2.down.weight"` with `to`: changes a parameter, a buffer or an attribute of a module. An index
  selects a part of a tensor: `"blocks.2.down.weight[:, 5]"`. `to` is a number, a list, or text with an expression in
  Python, in which `x` is a copy of what is changed, `whole` of the tensor that it is a part of, `a["path"]` a tensor or
  module of the model, and `b["path"]` one of the port. Expressions are evaluated: these files are trusted like code.
- `exchange = ["blocks.0.q", "blocks.0.k"]`: exchanges two tensors, parts of them, or all parameters of two modules.

A place is `"module.function: operators"`, and ends with `in path` where one module of the port does the work of several
of the model: only modules of the model whose path starts so count. The function is `library` for code that is not the
port's own. Operators in capitals are lists that `[operators]` of the file names. Braces are those of a shell:
`"layers.{0..3}.{q,k}.forward: PRODUCT"` are eight places. The first one is where the bug was planted.

`pairs` of a file lists a port and the names of two of its bugs.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from types import MethodType
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn

from filch.compare.results._alignment import Departure
from ports import PORTS, Bug
from ports._port import Pair, read_places

Style = Literal["fresh", "trained"]
Edit = Mapping[str, Any]
STYLES: tuple[Style, ...] = ("fresh", "trained")
SETS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
SIZES = {
    "hidden_size": 64, "d_model": 64, "intermediate_size": 96, "ffn_hidden_size": 96, "d_ff": 96, "head_dim": 16,
    "d_kv": 16, "num_hidden_layers": 4, "n_layer": 4, "num_layers": 4, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
}  # fmt: skip
OUTLIERS, OUTLIER_GAIN, LARGE_SHARE = 3, 40.0, 0.01


@dataclass(frozen=True)
class PortingBug:
    """A bug that a port does not know of.

    Attributes:
        port: the name of the port.
        kind: what kind of bug it is.
        edits: what makes the bug.
        places: where it may show first; the first one is where it was planted.
    """

    port: str
    kind: str
    edits: tuple[Edit, ...]
    places: tuple[Bug, ...]

    def plant(self, a: nn.Module, b: nn.Module) -> None:
        """Make the bug in port `b` of model `a`."""
        for edit in self.edits:
            if "code" in edit:
                _rewrite(b, edit["code"], edit["old"], edit["new"])
            elif "exchange" in edit:
                _exchange(b, *edit["exchange"])
            else:
                _change(a, b, edit["change"], edit["to"])

    def found(self, departure: Departure | None) -> str:
        """Return `"operation"`, `"module"` or `"elsewhere"`: how precisely a departure names a place of the bug."""
        found = {place.found(departure) for place in self.places}
        return next(name for name in ("operation", "module", "elsewhere") if name in found)


@dataclass(frozen=True)
class PortingSet:
    """Bugs by name, `"port: what is wrong"`, and pairs of names of bugs that are planted together."""

    bugs: Mapping[str, PortingBug]
    pairs: tuple[tuple[str, str], ...]


@cache
def read_set(name: str) -> PortingSet:
    """Read one of `SETS`."""
    data = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
    operators: dict[str, str] = {}
    for word, names in data["operators"].items():
        operators[word] = " ".join(operators.get(name, name) for name in names.split())
    bugs = {
        f"{port}: {bug}": PortingBug(
            port,
            entry["kind"],
            tuple(entry.get("edits", [entry])),
            tuple(place for text in entry["places"] for place in read_places(text, operators)),
        )
        for port, entries in data["bugs"].items()
        for bug, entry in entries.items()
    }
    return PortingSet(bugs, tuple((f"{port}: {first}", f"{port}: {second}") for port, first, second in data["pairs"]))


@contextmanager
def sized(port: str, style: Style) -> Iterator[None]:
    """Let a port be made of larger models, with weights as they are before or after training."""
    module = sys.modules[PORTS[port].make.__module__]
    original: Callable[..., nn.Module] = module.build  # type: ignore[attr-defined]

    def build(model: str, settings: dict[str, Any]) -> nn.Module:
        if model != "ResNetForImageClassification":  # its port has sizes of its own
            settings = settings | {name: size for name, size in SIZES.items() if name in settings}
            if model.startswith("Whisper"):
                settings |= {name: SIZES[name] for name in ("encoder_ffn_dim", "decoder_ffn_dim")}
        built = original(model, settings)
        if style == "trained":
            weigh(built)
        return built

    with mock.patch.object(module, "build", build):
        yield


def weigh(model: nn.Module) -> None:
    """Give a model heavy tails, and norms of which a few gains are large; smaller matrices make up for these."""
    generator = torch.Generator().manual_seed(7)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if "Norm" in type(module).__name__ and name == "weight":
                gain = torch.randn(parameter.shape, generator=generator).mul(0.5).exp()
                gain[torch.randperm(len(gain), generator=generator)[:OUTLIERS]] *= OUTLIER_GAIN
                parameter.copy_(gain - 1 if type(module).__name__.startswith("Gemma") else gain)
            elif parameter.ndim > 1:
                large = 1 + 8 * torch.empty(parameter.shape).exponential_(generator=generator)
                is_large = torch.rand(parameter.shape, generator=generator) < LARGE_SHARE
                parameter.mul_(torch.where(is_large, large, 1.0)).mul_(0.25)


def make(bugs: tuple[PortingBug, ...], port: str, style: Style) -> Pair:
    """Return a model, its port with bugs, and their arguments."""
    with sized(port, style), torch.no_grad():
        a, b, args, actual_args = PORTS[port].make(None)
        for bug in bugs:
            bug.plant(a, b)
    return a, b, args, actual_args


def int8(x: Tensor) -> Tensor:
    """Round a weight as symmetric int8 with one scale does."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


class _Items:
    """The tensors, modules and attributes of a module, by their paths."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getitem__(self, path: str) -> Any:
        return reduce(getattr, filter(None, path.split(".")), self.module)


class _Index:
    """What stands in brackets: `_Index()[:, 5]` is `(slice(None), 5)`."""

    def __getitem__(self, index: Any) -> Any:
        return index


def _part(path: str) -> tuple[str, Any]:
    """Return the path of a tensor and the index of its part; without an index, all of it."""
    path, bracket, index = path.partition("[")
    return path, eval(f"_Index()[{index}") if bracket else ...  # noqa: S307


def _change(a: nn.Module, b: nn.Module, path: str, to: Any) -> None:
    path, index = _part(path)
    module, _, name = path.rpartition(".")
    owner = _Items(b)[module]
    old = getattr(owner, name, None)
    is_tensor = isinstance(old, Tensor)
    if isinstance(to, str):
        whole = old.clone() if is_tensor else old
        scope = {"x": whole[index].clone() if is_tensor else old, "whole": whole, "a": _Items(a), "b": _Items(b)}
        to = eval(f"({to})", scope | {"torch": torch, "int8": int8})  # noqa: S307
    if is_tensor:
        old[index] = to
    else:
        setattr(owner, name, to)


def _exchange(b: nn.Module, first: str, second: str) -> None:
    (path, index), (other_path, other_index) = _part(first), _part(second)
    one, other = _Items(b)[path], _Items(b)[other_path]
    pairs = zip(one.parameters(), other.parameters(), strict=True) if isinstance(one, nn.Module) else [(one, other)]
    for x, y in pairs:
        kept = x[index].clone()
        x[index] = y[other_index].clone()
        y[other_index] = kept


def _rewrite(b: nn.Module, path: str, old: str | list[str], new: str | list[str]) -> None:
    module, _, method = path.rpartition(".")
    owner = _Items(b)[module]
    function = getattr(type(owner), method)
    lines, first = inspect.getsourcelines(function)
    source = "".join(lines)
    for before, after in zip(old, new, strict=True) if isinstance(old, list) else [(old, new)]:
        if source.count(before) != 1:
            raise ValueError(f"{path} has {source.count(before)} times {before!r}")
        source = source.replace(before, after)
    tree = ast.increment_lineno(ast.parse(textwrap.dedent(source)), first - 1)
    space: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, space)  # noqa: S102
    setattr(owner, method, MethodType(space[method], owner))
