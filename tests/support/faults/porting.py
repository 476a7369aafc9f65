"""Porting bugs that a port does not know of, what plants them, and models with weights as before or after training."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn

from filch.compare.results._alignment import Departure

from ..models.ports import PORTS, Bug
from ..models.ports._port import Pair
from ..models.ports.heldout import HELD_OUT_PORTS
from ..models.ports.heldout5 import FIFTH_PORTS

Style = Literal["fresh", "trained"]
Plant = Callable[[nn.Module, nn.Module], None]
STYLES: tuple[Style, ...] = ("fresh", "trained")
SIZES = {
    "hidden_size": 64, "d_model": 64, "intermediate_size": 96, "ffn_hidden_size": 96, "d_ff": 96, "head_dim": 16,
    "d_kv": 16, "num_hidden_layers": 4, "n_layer": 4, "num_layers": 4, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
}  # fmt: skip
OUTLIERS, OUTLIER_GAIN = 3, 40.0
PRODUCT = "mm addmm bmm add"
ATTEND = "_safe_softmax _softmax bmm mul add where div baddbmm"
LAYER_NORM, RMS_NORM = "native_layer_norm", "_fused_rms_norm mul pow mean add rsqrt"
EMBED = "embedding"
ALL_PORTS = PORTS | HELD_OUT_PORTS | FIFTH_PORTS


@dataclass(frozen=True)
class PortingBug:
    """A bug that a port does not know of.

    Attributes:
        port: the name of the port.
        kind: what kind of bug it is.
        plant: makes the bug, given the model and its port.
        places: where it may show first; the first one is where it was planted.
    """

    port: str
    kind: str
    plant: Plant
    places: tuple[Bug, ...]

    def found(self, departure: Departure | None) -> str:
        """Return `"operation"`, `"module"` or `"elsewhere"`: how precisely a departure names a place of the bug."""
        found = {place.found(departure) for place in self.places}
        return next(name for name in ("operation", "module", "elsewhere") if name in found)


@contextmanager
def sized(port: str, style: Style) -> Iterator[None]:
    """Let a port be made of larger models, with weights as they are before or after training."""
    module = sys.modules[ALL_PORTS[port].make.__module__]
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
                is_large = torch.rand(parameter.shape, generator=generator) < 0.01
                parameter.mul_(torch.where(is_large, large, 1.0)).mul_(0.25)


def make(bugs: tuple[PortingBug, ...], port: str, style: Style) -> Pair:
    """Return a model, its port with bugs, and their arguments."""
    with sized(port, style), torch.no_grad():
        a, b, args, b_args = ALL_PORTS[port].make(None)
        for bug in bugs:
            bug.plant(a, b)
    return a, b, args, b_args


def weight(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change a parameter."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        parameter = b.get_parameter(name)
        parameter.data.copy_(change(parameter.data.clone()))

    return plant


def taken(name: str, other: str) -> Plant:
    """Take a parameter of another layer."""
    return lambda _, b: weight(name, lambda _: b.get_parameter(other))(_, b)


def exchanged(name: str, other: str) -> Plant:
    """Exchange all parameters of two modules."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        pairs = zip(b.get_submodule(name).parameters(), b.get_submodule(other).parameters(), strict=True)
        for first, second in pairs:
            kept = first.clone()
            first.data.copy_(second)
            second.data.copy_(kept)

    return plant


def constant(module: str, name: str, value: object) -> Plant:
    """Set an attribute of a module."""
    return lambda _, b: setattr(b.get_submodule(module), name, value)


def code(module: str, method: str, *edits: tuple[str, str]) -> Plant:
    """Replace parts of the code of a method of one module; its lines stay where they are."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        owner = b.get_submodule(module)
        function = getattr(type(owner), method)
        lines, first = inspect.getsourcelines(function)
        source = "".join(lines)
        for old, new in edits:
            if source.count(old) != 1:
                message = f"{module}.{method} has {source.count(old)} times {old!r}"
                raise ValueError(message)
            source = source.replace(old, new)
        tree = ast.increment_lineno(ast.parse(textwrap.dedent(source)), first - 1)
        space: dict[str, Any] = {}
        exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, space)  # noqa: S102
        setattr(owner, method, MethodType(space[method], owner))

    return plant


def both(*plants: Plant) -> Plant:
    """Make several changes that are one bug."""

    def plant(a: nn.Module, b: nn.Module) -> None:
        for part in plants:
            part(a, b)

    return plant


def bfloat16(parameter: Tensor) -> Tensor:
    return parameter.bfloat16().to(parameter.dtype)


def int8(parameter: Tensor) -> Tensor:
    scale = parameter.abs().max() / 127
    return (parameter / scale).round() * scale


def rows(first: int, last: int, of: int) -> Callable[[Tensor], Tensor]:
    """Return a change that overwrites rows with those that start at `of`."""

    def change(parameter: Tensor) -> Tensor:
        parameter[first:last] = parameter[of : of + last - first].clone()
        return parameter

    return change


def turned(first: int, last: int, by: int) -> Callable[[Tensor], Tensor]:
    """Return a change that rolls some of the rows."""

    def change(parameter: Tensor) -> Tensor:
        parameter[first:last] = parameter[first:last].roll(by, 0)
        return parameter

    return change


def swapped_halves(parameter: Tensor) -> Tensor:
    return parameter.roll(len(parameter) // 2, 0)


def named(port: str, *items: tuple[str, str, Plant, list[Bug]]) -> dict[str, PortingBug]:
    return {f"{port}: {name}": PortingBug(port, kind, plant, tuple(places)) for name, kind, plant, places in items}
