"""Shared by the tests of capturing: modules, fixtures, and an exact comparison of values."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from filch.steal import restore, steal_forward
from support.models.small import module_of


def echo_module(answer=None):
    """Takes anything, and returns its answer."""
    return module_of(lambda self, *args, **kwargs: self.answer, answer=answer)


@pytest.fixture
def echo():
    """Return the class `echo_module`."""
    return echo_module


@pytest.fixture
def captured():
    """Return a function that passes a value through a module and returns what a capture in memory has of it."""

    def send(value):
        module = echo_module()
        with steal_forward(("echo", module)) as capture:
            module(value)
        return capture["echo", 0, "I"][0][0]

    return send


@pytest.fixture
def restored(tmp_path):
    """Return a function that passes a value through a module and returns what a dump has of it."""

    def send(value):
        module = echo_module()
        with steal_forward(("echo", module), dump_file=tmp_path / "echo.onnx"):
            module(value)
        return restore(tmp_path / "echo.onnx")["echo", 0, "I"][0][0]

    return send


def bits(tensor):
    """Return the bytes of a tensor's elements in the order of its indices."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    real = torch.view_as_real(plain) if plain.dtype.is_complex else plain
    return real.reshape(-1).view(torch.uint8).numpy().tobytes()


def difference(actual, expected):
    """Return how two values differ in bits or class; None if they don't."""
    if isinstance(expected, torch.Tensor):
        wanted, found = (
            (expected.dtype, expected.shape),
            (getattr(actual, "dtype", None), getattr(actual, "shape", None)),
        )
        if type(actual) is not torch.Tensor or wanted != found or actual.device.type != "cpu":
            return f"{actual!r} is not a plain CPU tensor of {wanted}"
        return None if bits(actual) == bits(expected) else f"{actual} does not have the bits of {expected}"
    if type(actual) is not type(expected):
        return f"{actual!r} does not have the type of {expected!r}"
    if isinstance(expected, np.ndarray | np.generic):
        same = (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        return None if same and actual.tobytes() == expected.tobytes() else f"{actual!r} is not {expected!r}"
    if isinstance(expected, float):
        same = actual == expected and math.copysign(1, actual) == math.copysign(1, expected)
        return None if same or (math.isnan(actual) and math.isnan(expected)) else f"{actual} is not {expected}"
    if isinstance(expected, complex):
        return difference([actual.real, actual.imag], [expected.real, expected.imag])
    if (parts := _parts(expected)) is None:
        return None if actual == expected else f"{actual!r} is not {expected!r}"
    found = _parts(actual)
    if [name for name, _ in found] != [name for name, _ in parts]:
        return f"{actual!r} does not have the parts of {expected!r}"
    pairs = zip(found, parts, strict=True)
    return next((text for (name, one), (_, other) in pairs if (text := _at(name, difference(one, other)))), None)


def _at(name, text):
    return text and f"[{name}] {text}"


def _parts(value):
    if isinstance(value, torch.Size | str | bytes):
        return None
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    items = list(value.items()) if isinstance(value, Mapping) else []
    if dataclasses.is_dataclass(value):
        return items + [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return items
    if type(value).__module__ == "transformers.cache_utils" and not isinstance(value, type):
        return list(vars(value).items())
    return None


@pytest.fixture
def differ():
    """Return the function `difference`."""
    return difference


@pytest.fixture(params=["memory", "dump"])
def steal(request, tmp_path):
    """Return a function that captures modules while a function runs, and returns the capture or the restored dump."""
    path = tmp_path / "dump.onnx" if request.param == "dump" else None

    def run(modules, function, **options):
        with steal_forward(modules, dump_file=path, **options) as capture:
            function()
        return capture if path is None else restore(path)

    return run


@pytest.fixture
def comparable():
    """Return a function that converts values to a form which `differ` can compare."""

    def of(value):
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_nested:
            return ["nested", *value.unbind()]
        if value.layout != torch.strided:
            return [value.layout, value.to_dense()]
        if value.is_quantized:
            return [value.dtype, value.q_scale(), value.int_repr()]
        return [value.shape, value.dtype, value.device] if value.is_meta else value

    return of
