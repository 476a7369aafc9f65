"""Random numbers in `torch.compile(backend="filch")`: those that PyTorch draws, and those of Inductor's kernels."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from filch.export import BackendError
from filch.export.backends.inductor._backend import InductorBackend
from support.processes.compilers import needs_compiler

pytestmark = needs_compiler
NO_CACHE = torch._inductor.config.patch(fx_graph_cache=False)  # noqa: SLF001  it has no public name
UNVECTORIZED = torch._inductor.config.patch({"cpp.simdlen": 1})  # noqa: SLF001  as above
OWN = "random numbers that kernels draw"


def reports_of(function, x):
    """Return the reports of one call, and of its backward pass if a result requires gradients."""
    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    reports = []
    result = torch.compile(function, backend="filch", options={"correctness_report": reports})(x)
    if result.requires_grad:
        result.sum().backward()
    return reports


def rows():
    torch.manual_seed(0)
    return torch.randn(32, 64)


def in_place(x):
    mask = torch.empty_like(x)
    mask.bernoulli_(0.3)
    return mask * x + mask.sum()


def into_a_part(x):
    changed = x.clone()
    changed[0].uniform_()
    return torch.tanh(changed) * 2


def compared(x):
    return torch.where(torch.rand_like(x) < 0.5, x, -x)


FUNCTIONS = {
    "dropout by default in training": lambda x: functional.dropout(x * 2, 0.3) + 1,
    "dropout in place": lambda x: functional.dropout(x * 2, 0.5, True, True) * 2,
    "two-dimensional dropout": lambda x: functional.dropout2d(x.view(1, 16, -1, 16), 0.4) + 1,
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.view(1, 4, -1, 16)] * 3, dropout_p=0.2) * 2,
    "rrelu": lambda x: functional.rrelu(x, training=True) * 2,
    "bernoulli in place": in_place,
    "uniform into a part": into_a_part,
    "comparison": compared,
    "integers": lambda x: x + torch.randint(0, 10, x.shape),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("gradients", [False, True])
def test_correct_random_numbers_are_close_and_the_kernels_own_are_judged(name, gradients):
    reports = reports_of(FUNCTIONS[name], rows().requires_grad_(gradients))
    assert {report.outcome for report in reports} == {"close"}
    assert any(note.startswith(OWN) and note.endswith("are close") for note in reports[0].notes)


def rewritten(monkeypatch, name, change):
    """Change the C++ code that Inductor writes for an operation."""
    from torch._inductor.codegen.cpp import CppOverrides

    right = getattr(CppOverrides, name)
    monkeypatch.setattr(CppOverrides, name, staticmethod(lambda *given: change(right(*given))))


class Shifted(nn.Module):
    def forward(self, x):
        return x + (torch.randint(-1, 0, (1,)) >> 40)


def test_what_reads_wrong_random_integers_is_named(monkeypatch):
    rewritten(monkeypatch, "randint64", "static_cast<uint64_t>({})".format)
    with NO_CACHE:
        (report,) = reports_of(Shifted(), rows())
    assert report.outcome == "different"
    assert report.program.endswith("with its own random numbers")
    assert report.first_divergence.op == "rshift"


def test_random_numbers_of_another_distribution_are_wrong(monkeypatch):
    rewritten(monkeypatch, "rand", "(0.5f * {})".format)
    with NO_CACHE, UNVECTORIZED:
        (report,) = reports_of(lambda x: x * torch.rand_like(x), rows())
    assert report.outcome == "different"
    assert "another distribution" in report.first_divergence.reason


def test_a_reason_is_given_if_the_kernels_own_are_not_judged():
    def unused(x):
        torch.rand(3)
        return x * torch.rand_like(x)

    (report,) = reports_of(unused, rows())
    assert report.outcome == "close"
    assert any(
        f"{OWN}, in a compilation without fallback_random, were not judged: nothing reads" in note
        for note in report.notes
    )


def test_a_compilation_that_fails_without_the_random_numbers_of_pytorch_is_a_note(monkeypatch):
    """The call itself can run."""
    right = InductorBackend.compile_graph

    def compile_graph(backend, module, inputs, *, own_random=False):
        if own_random:
            raise BackendError("there are no such kernels")
        return right(backend, module, inputs)

    monkeypatch.setattr(InductorBackend, "compile_graph", compile_graph)
    (report,) = reports_of(compared, rows())
    assert report.outcome == "close"
    assert any(note.startswith(OWN) and "there are no such kernels" in note for note in report.notes)
