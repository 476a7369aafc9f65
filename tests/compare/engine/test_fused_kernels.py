"""Kernels of Inductor that compute their inputs again are judged by what they round on the way."""

import copy

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import export
from filch.export.backends import get_backend
from support.models.small import capture_of, module_of
from support.processes.compilers import needs_compiler

pytestmark = needs_compiler


def rotated_module():
    """Rotates some channels, as GPT-NeoX does, and concatenates the others: one kernel computes all."""
    angles = torch.arange(24.0)[:, None] * torch.tensor([1.0, 0.1])

    def forward(self, x):
        query = self.query(x)
        part, rest = query[..., :4], query[..., 4:]
        turned = torch.cat((-part[..., 2:], part[..., :2]), -1)
        return torch.cat((part * self.angles.cos() + turned * self.angles.sin(), rest), -1)

    return module_of(forward, query=nn.Linear(16, 16), angles=torch.cat((angles, angles), -1))


@pytest.fixture(scope="module")
def rotated():
    """Return a capture of the model, its program, and Inductor with the compiled program."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, x = rotated_module().eval(), torch.randn(8, 24, 16)
        capture = capture_of(model, x, submodules=True)
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
    report = compare(capture, program, backend=backend, every_node=True)
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
        capture, program, backend=changing(backend, vars(backend)["made"], **{end: wrong}), every_node=True
    )
    assert not report.close
    assert [row.value for row in report.introduced] == [end]


class Residuals(nn.Module):
    """Adds large numbers that nearly cancel; Inductor keeps the sum in float32, where eager PyTorch has float16."""

    def __init__(self):
        super().__init__()
        self.linears, self.norm = nn.ModuleList(nn.Linear(64, 64) for _ in range(4)), nn.LayerNorm(64)

    def forward(self, x):
        total = x
        for linear in self.linears:
            total = total + linear(x)
        return self.norm(total)


@pytest.fixture(scope="module")
def residuals():
    """Return a capture of the model in float16, its program, Inductor, and the name of the sum in the kernel."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, x = Residuals().eval(), torch.randn(4, 64)
        for first, second in ((0, 1), (2, 3)):
            model.linears[first].weight.mul_(30)
            model.linears[second].weight.copy_(-model.linears[first].weight)
        model, x = model.half(), x.half()
        capture = capture_of(model, x)
    program, backend = export(model, (x,)), get_backend("inductor")
    backend = changing(backend, backend.compile(program, optimize=True))
    rows = compare(capture, program, backend=backend).rows
    name = next(row.value for row in rows if row.value not in program.graph.values and row.dtype == "float32")
    return capture, program, backend, name


def test_rounding_that_only_eager_pytorch_has_is_no_fault_of_a_kernel(residuals):
    """The sum exceeds the tolerance, so its float64 value is computed from Inductor's own graph."""
    capture, program, backend, name = residuals

    report = compare(capture, program, backend=backend)

    row = next(row for row in report.rows if row.value == name)
    assert row.evidence == "derived"
    assert not row.difference.close
    assert row.float64.verdict == "rounding"
    assert report.close, str(report)
    assert compare(capture, program, backend=backend, every_node=True).close
    assert not compare(capture, program, backend=backend, tolerance="default").close


def test_a_wrong_value_that_only_a_kernel_has_is_found(residuals):
    """An error as large as the largest number is more than rounding."""
    capture, program, backend, name = residuals
    wrong = changing(backend, backend.made, **{name: lambda tensor: tensor + tensor.abs().max()})

    report = compare(capture, program, backend=wrong)

    row = next(row for row in report.rows if row.value == name)
    assert row.float64.verdict == "wrong"
    assert report.first_divergence == row
