"""Kernels of Inductor that compute their inputs again are judged by what they round on the way."""

import copy

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import export
from filch.export.backends import get_backend
from filch.steal import steal_forward
from support.processes.compilers import needs_compiler

pytestmark = needs_compiler


class Rotated(nn.Module):
    """Rotates some channels, as GPT-NeoX does, and concatenates the others: one kernel computes all."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(16, 16)
        angles = torch.arange(24.0)[:, None] * torch.tensor([1.0, 0.1])
        self.register_buffer("angles", torch.cat((angles, angles), -1))

    def forward(self, x):
        query = self.query(x)
        part, rest = query[..., :4], query[..., 4:]
        turned = torch.cat((-part[..., 2:], part[..., :2]), -1)
        return torch.cat((part * self.angles.cos() + turned * self.angles.sin(), rest), -1)


@pytest.fixture(scope="module")
def rotated():
    """Return a capture of the model, its program, and Inductor with the compiled program."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, x = Rotated().eval(), torch.randn(8, 24, 16)
        with steal_forward(model, submodules=True) as capture:
            model(x)
    program, backend = export(model, (x,)), get_backend("inductor")
    made = backend.compile(program, optimize=True)
    return capture, program, changing(backend, made)


def changing(backend, made, **changes):
    """Return the backend with the compiled program; it changes some of the values."""

    def changed(values):
        return {name: changes[name](tensor) if name in changes else tensor for name, tensor in values}

    shadow = copy.copy(backend)
    vars(shadow)["compile"] = lambda program, *, optimize: made
    vars(shadow)["run"] = lambda *args, **how: changed(backend.run(*args, **how).items())
    vars(shadow)["isolate"] = lambda *args, **how: iter(changed(backend.isolate(*args, **how)).items())
    vars(shadow)["made"] = made
    return shadow


def test_a_concatenation_of_what_its_kernel_computes_is_rounded_as_that_is(rotated):
    """The rotated part is a known value, but the kernel computes it again, with its own rounding."""
    capture, program, backend = rotated
    report = compare(capture, program, backend=backend, truth="float64")
    row = next(row for row in report.rows if "Concat" in row.operators and row.value == program.graph.outputs[0])
    assert row.isolated.verdict == "rounding"
    assert report.close
    assert not report.introduced


@pytest.mark.parametrize("factor", [1.0001, 0.0])
def test_a_fault_in_a_kernel_that_computes_its_inputs_is_found(rotated, factor):
    """One of the rotated channels is off by a ten-thousandth, or zero."""
    capture, program, backend = rotated
    end = program.graph.outputs[0]

    def wrong(tensor):
        tensor = tensor.clone()
        tensor[..., 1] *= factor
        return tensor

    report = compare(
        capture, program, backend=changing(backend, vars(backend)["made"], **{end: wrong}), truth="float64"
    )
    assert not report.close
    assert [row.value for row in report.introduced] == [end]
