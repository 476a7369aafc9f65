"""A check on Inductor judges what torch.compile compiles: inputs that are written to, and what can't be exported."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from support.processes.commands import run


class _Stateful(nn.Module):
    """Writes to the cache that it is given; a program of torch.export has no such input after the call."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, cache, x):
        cache.copy_(torch.tanh(self.inner(x)))
        return self.outer(functional.gelu(x))


class _Forces(nn.Module):
    """Computes derivatives sample by sample, which torch.export refuses."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.inner(x)
        return torch.tanh(self.outer(x + torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x)))


def stateful():
    torch.manual_seed(0)
    return _Stateful().eval(), (torch.zeros(4, 6), torch.randn(4, 6))


def forces():
    torch.manual_seed(0)
    return _Forces().eval(), (torch.randn(4, 6),)


@pytest.fixture
def wrong_tanh(monkeypatch):
    """Compile tanh to something a thousandth too large."""
    from torch._inductor import lowering

    tanh = torch.ops.aten.tanh.default
    right = lowering.lowerings[tanh]
    monkeypatch.setitem(lowering.lowerings, tanh, lambda x: lowering.mul(right(x), 1.001))


def _check(factory, tmp_path, *options):
    torch.compiler.reset()
    code = run("check", f"{__file__}:{factory}", "-b", "inductor", "-q", "-o", str(tmp_path / "r.json"), *options)
    return code, json.loads((tmp_path / "r.json").read_text())


@pytest.mark.parametrize("factory", ["stateful", "forces"])
def test_a_clean_model_is_close(tmp_path, factory):
    """Also where the exported program is incomplete, or there is none."""
    code, report = _check(factory, tmp_path)

    assert (code, report["outcome"]) == (0, "close"), report["headline"]


@pytest.mark.parametrize("factory", ["stateful", "forces"])
def test_a_wrong_lowering_is_named(tmp_path, factory, wrong_tanh):
    """Of `stateful`, only what is written to the input shows it."""
    code, report = _check(factory, tmp_path)

    wrong = [row for row in report["rows"] if row["status"] == "different"]
    assert (code, report["outcome"]) == (1, "different")
    assert "tanh" in wrong[0]["op"] and wrong[0]["source"].split(":")[0].endswith("test_check_model.py")


def test_a_model_that_can_not_be_exported_is_an_error_elsewhere(capsys):
    """ONNX Runtime needs the exported program."""
    code = run("check", f"{__file__}:forces", "-q")

    assert code == 2 and "torch can't export _Forces" in capsys.readouterr().err
