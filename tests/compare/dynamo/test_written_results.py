"""Results that are written in place, and what torch.func computes, are judged by their values at the end."""

import pytest
import torch
from torch import nn

from filch.compare import compare_gradients
from support.processes.compilers import needs_compiler
from support.thorough import slow


def _slice_set(x):
    y = x.exp()
    y[:, 1:4] = 7.0
    return y


def _row_of_zeros(x):
    y = torch.zeros_like(x)
    y[0] = x[1].exp()
    return y


def _strided(x):
    y = x.clone()
    y.as_strided((3, 2), (5, 2), 1).mul_(x[:3, :2])
    return y


def _indexed(x):
    y = x.exp()
    y.index_put_((torch.tensor([0, 0]),), x[1:3], accumulate=True)
    y.scatter_(1, torch.tensor([[0, 1], [2, 3]]), x[:2, :2])
    return y


def _copied(x):
    y = torch.empty_like(x)
    y.copy_(x.exp())
    return y


def _view_of_a_view(x):
    y = x.clone()
    y[1:][:, 2:].t()[0].add_(1)
    return y


def _view(x):
    y = torch.zeros_like(x)
    row = y[1]
    row.copy_(x[0])
    return row


def _shared(x):
    y = x.clone()
    part = y[1:]
    part[:, 1:4].mul_(x[1:, 1:4])
    return [y, part.t(), {"again": y}]


def _between(x):
    y = x.exp()
    total = y.sum()
    y.mul_(2)
    return y, total, y + 1


def _complex(x):
    y = torch.complex(x, x.sin())
    y.real[0] = 3
    return y


IN_PLACE = [
    _slice_set, _row_of_zeros, lambda x: x.clone().fill_diagonal_(0), _strided, _indexed, _copied, _view_of_a_view,
    _view, _shared, _between, _complex,
]  # fmt: skip


def _jacobians(x):
    def nested(row):
        y = row.clone()
        y[1:3] = row[0] * 2
        return y.sin()

    return torch.func.jacrev(nested)(x[0]), torch.func.jacfwd(nested)(x[0])


def _hessian(x):
    return torch.func.hessian(lambda row: (row.exp() * row).sum())(x[0])


def _report(function, inner="inductor"):
    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    reports, x = [], torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.compile(function, backend="filch", options={"inner": inner, "correctness_report": reports})(x)
    return reports[0]


def _off_at_the_end(module, _):
    """Add 0.01 to the last element of each result."""

    def run(*inputs):
        results = [item.clone() for item in module(*inputs)]
        for item in results:
            item[(-1,) * item.dim()] += 0.01
        return results

    return run


def _outputs(report):
    return [row for row in report.rows if row.kind == "output"]


@slow
@pytest.mark.parametrize("function", [*IN_PLACE, _jacobians, _hessian])
def test_a_right_result_is_close_and_judged_by_float64(function):
    """A reference is the value at the end, after all writes through whatever view."""
    report = _report(function, lambda module, _: module)
    assert report.close, report
    assert _outputs(report)
    assert all(row.float64 is not None for row in _outputs(report)), report
    assert not any("differ" in note for note in report.notes)


@pytest.mark.parametrize("function", [*IN_PLACE, _jacobians, _hessian])
def test_a_wrong_result_is_different(function):
    """Only the result is wrong: no value of a node is."""
    report = _report(function, _off_at_the_end)
    assert report.outcome == "different"
    assert all(row.diverged for row in _outputs(report)), report


def _plant(monkeypatch):
    """Let Inductor compute exponentials that are 1 % too large."""
    from torch._inductor import lowering

    right = lowering.lowerings[torch.ops.aten.exp.default]
    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.exp.default, lambda x: lowering.mul(right(x), 1.01))


@needs_compiler
def test_kernels_of_in_place_operations_and_transforms_are_close():
    """Inductor makes one buffer of zeros and of what is then written to it; its value is that after the write."""
    report = _report(lambda x: (torch.func.jacrev(torch.sin)(x[0]), _row_of_zeros(x)))
    assert report.close, report
    assert all(row.judged for row in report.rows if row.stage == "compiled"), report
    unjudged = {row.reason for row in report.rows if row.stage == "exported" and not row.judged}
    assert "a transform of torch.func computes it: no such tensor exists outside of it" in unjudged


@slow
@needs_compiler
@pytest.mark.parametrize("function", [_row_of_zeros, _hessian])
def test_a_wrong_lowering_is_found_in_the_kernel_and_the_result(function, monkeypatch):
    """The kernel that writes the buffer has the arrow, and the result is different."""
    _plant(monkeypatch)
    report = _report(function)
    assert report.outcome == "different"
    assert any(row.diverged for row in report.rows if row.stage == "compiled" and row.kind != "output"), report
    assert any(row.diverged for row in _outputs(report))


class Written(nn.Module):
    """Writes to a part of what its layer returns."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        y = self.layer(x).exp() + 1
        y[:, 1:4] = 7.0
        return y


@slow
@needs_compiler
@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_of_a_model_that_returns_what_it_writes(wrong, monkeypatch):
    """Its result is judged at the end of the call, and its gradients as always."""
    if wrong:
        _plant(monkeypatch)
    report = compare_gradients(Written(), (torch.randn(4, 6),))
    assert report.close != wrong, report
    assert all(row.judged for row in _outputs(report))
