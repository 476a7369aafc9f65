"""What plain `torch.compile` runs is also judged: constants, branches, vmap, arguments that share memory."""

import torch
from torch import nn

from filch.compare import compare_gradients
from support.models.small import module_of
from support.processes.compilers import needs_compiler
from support.thorough import slow


def writes(self, x):
    """Fills a slice and reads constants, inside of a branch and outside."""
    y = self.linear(x).clone()
    y[:, 1:4] = 7
    y = y * torch.tensor([1.0, 2, 3, 4, 5, 6])
    return torch.cond(y.sum() > 0, lambda z: z * torch.tensor(3.0), lambda z: z.cos(), (y,)) + 1


def _report(function, *args, **options):
    reports = []
    torch.compile(function, backend="filch", options={"correctness_report": reports, **options})(*args)
    return reports[0]


@slow
@needs_compiler
def test_a_graph_with_constants_and_branches_is_judged():
    """Each part of the compiled code runs with the constants of its own graph."""
    with torch.no_grad():
        report = _report(module_of(writes, linear=nn.Linear(6, 6)), torch.randn(3, 6))

    assert report.close, str(report)
    assert all(row.judged for row in report.rows if row.kind == "output")


@slow
@needs_compiler
def test_the_gradients_of_a_graph_with_constants_are_judged():
    """The backward graph has constants, too."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Hardtanh())
    model.register_forward_hook(lambda module, args, result: result * torch.tensor([1.0, 2, 3, 4, 5, 6]))

    assert compare_gradients(model, (torch.randn(3, 6),)).close


@needs_compiler
def test_arguments_that_share_memory_share_it_in_the_checked_run():
    """A write to the one changes what the other reads."""
    whole = torch.randn(10)

    def function(a, b):
        a.add_(1)
        return a * 2 + b

    assert _report(function, whole[:6], whole[2:8]).close


def test_values_inside_of_vmap_are_not_returned():
    """They can't leave it; what leaves it is judged."""

    def function(x):
        return torch.func.vmap(torch.func.grad(lambda row: (row.sin() ** 2).sum()))(x) + 1

    report = _report(function, torch.randn(4, 3), inner=lambda module, inputs: module.forward)

    rows = {row.node: row for row in report.rows}
    assert report.close and rows["add"].judged
    assert not rows["sin"].judged


def test_a_second_compilation_that_fails_is_a_note():
    """The results of the first one are judged all the same."""
    compiled = []

    def once(module, inputs):
        if compiled:
            raise TypeError("once is enough")
        compiled.append(module)
        return module.forward

    report = _report(lambda x: torch.sin(x) + 1, torch.randn(4), inner=once)

    (note,) = report.notes
    assert (
        note.startswith("a second compilation, which returns every value, does not work") and "once is enough" in note
    )
    assert all(row.judged for row in report.rows if row.kind == "output")


@needs_compiler
def test_a_graph_that_computes_nothing_is_returned_as_it_is():
    """A cast to the dtype that a tensor has is in Dynamo's graph, and Inductor makes no code of it."""
    x = torch.randn(3)

    assert _report(lambda x: x.to(torch.float32), x).close
