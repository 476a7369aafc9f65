"""Each call of a compiled graph is judged, also one that runs the graph of an earlier call."""

import pytest
import torch
from torch import nn

from filch.compare import compare_gradients
from filch.compare.dynamo._compiled_call import CompiledCall
from filch.compare.models._subject import Subject
from support.models.small import module_of
from support.processes.compilers import needs_compiler


class Scaled(nn.Module):
    """Scales by a number that is a constant of the graph."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), 2.0

    def forward(self, x):
        x = torch.tanh(self.linear(x))
        return self.linear(x * self.scale)


def _compiled(function, reports, **options):
    """Compile without guards: a later call runs the graph of the first one."""
    options = {"correctness_report": reports, "guard_filter_fn": torch.compiler.skip_all_guards_unsafe, **options}
    return torch.compile(function, backend="filch", options=options)


@needs_compiler
def test_a_call_that_runs_the_graph_of_another_one_is_found():
    """Its first operation that is another one is named; a call that may run the graph is not reported again."""
    torch.manual_seed(0)
    model, reports = Scaled().eval(), []
    compiled = _compiled(model, reports)
    with torch.no_grad():
        for scale in (2.0, 2.0, 3.0):
            model.scale = scale
            compiled(torch.randn(3, 4))

    first, later = reports
    assert first.close
    assert later.outcome == "different"
    assert later.first_divergence.op == "mul"
    assert later.program.endswith("call 2")
    assert "has no guard" in later.notes[0]


def test_a_branch_on_a_size_that_is_not_guarded_is_found():
    """The graph for all sizes has the branch of the first call."""

    def function(x):
        x = torch.cos(x)
        return x * 2 if x.shape[0] > 8 else x * 3

    reports = []
    options = {"correctness_report": reports, "inner": "eager"}
    options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    compiled = torch.compile(function, backend="filch", dynamic=True, options=options)
    for rows in (5, 6, 12):
        compiled(torch.randn(rows, 4))

    assert [report.outcome for report in reports] == ["close", "different"]
    assert reports[1].first_divergence.op == "mul"


def test_with_guards_nothing_is_reported_twice():
    """Other sizes, other numbers and changed inputs are what torch.compile expects of a caller."""
    torch.manual_seed(0)
    model, reports = Scaled().eval(), []

    def function(x, state):
        state.add_(1)
        return model(x) + state

    compiled = torch.compile(function, backend="filch", options={"correctness_report": reports, "inner": "eager"})
    with torch.no_grad():
        for rows, scale in ((3, 2.0), (5, 2.0), (6, 2.0), (7, 3.0), (7, 3.0)):
            model.scale = scale
            compiled(torch.randn(rows, 4), torch.zeros(4))

    assert all(report.close for report in reports)
    assert not any("call" in report.program for report in reports)


@pytest.mark.parametrize(("inner", "reason"), [("eager", ""), ("shares", "shares memory with input x, but should not")])
def test_a_result_in_the_memory_of_an_input_is_found(inner, reason):
    """Who writes to the result would change the input."""

    def shares(graph, inputs):
        return lambda x: (x,)

    reports = []
    compiler = shares if inner == "shares" else inner
    options = {"correctness_report": reports, "inner": compiler}
    torch.compile(lambda x: x * 1, backend="filch", options=options)(torch.randn(3))

    (report,) = reports
    assert report.close is not bool(reason)
    assert [row.reason for row in report.diverged] == [reason] * bool(reason)


def test_a_result_that_is_a_copy_of_an_input_is_said():
    """As Inductor copies what a dropout returns as it is; it is no error of the numbers."""
    reports = []
    options = {"correctness_report": reports, "inner": lambda *_: lambda x: (x.clone()[:1],)}
    torch.compile(lambda x: x[:1], backend="filch", options=options)(torch.randn(3))

    assert reports[0].close
    assert "is a copy of input x" in reports[0].notes[0]


def test_what_tracing_adds_to_a_module_is_removed():
    """Dynamo adds names to the globals of code that it traces, and removes those of code that it finishes."""
    compiled = torch.compile(lambda x: x + 1, backend="filch", options={"correctness_report": [], "inner": "eager"})
    compiled(torch.ones(2))
    before = {*globals()}
    for _ in range(3):
        compiled(torch.ones(2))

    assert {*globals()} == before


def test_why_later_calls_are_not_judged_is_said():
    """Random numbers are others in each run."""
    reports = []
    options = {"correctness_report": reports, "inner": "eager"}
    torch.compile(lambda x: x + torch.rand(2), backend="filch", options=options)(torch.ones(2))

    assert any("later calls of graph" in note and "random numbers" in note for note in reports[0].notes)


def branches(self, x):
    """Computes something else where it is compiled."""
    x = self.linear(x)
    return torch.sin(x) if torch.compiler.is_compiling() else torch.cos(x)


def test_what_is_traced_wrong_is_seen_without_a_compiler():
    """Each graph agrees with its own operations."""
    torch.manual_seed(0)
    wrong, right = (
        module_of(function, linear=nn.Linear(4, 4)) for function in (branches, lambda self, x: self.linear(x))
    )
    for model, outcome in ((wrong, "different"), (right, "close")):
        call = CompiledCall(Subject(model, (torch.randn(2, 4),), {}), "eager", {}, None)
        reports, problem = call.reports()

        assert not problem
        assert all(report.close for report in reports)
        assert call.is_close() is (outcome == "close")
        assert call.traced().outcome == outcome


def test_gradients_of_inputs_are_compared():
    """A model without parameters has them alone."""
    wrong, right = (module_of(function, linear=nn.Identity()) for function in (branches, lambda self, x: x.sin()))
    x = torch.randn(3, requires_grad=True)

    (row,) = compare_gradients(wrong, (x,), inner="eager").diverged
    assert row.value == "input x.grad"
    assert compare_gradients(right, (x,), inner="eager").close
    layer = module_of(lambda self, x: self.linear(x), linear=nn.Linear(3, 2))
    gradients = [row.value for row in compare_gradients(layer, (x,), inner="eager").rows if row.op == "gradient"]
    assert gradients == ["linear.bias.grad", "linear.weight.grad", "input x.grad"]


def test_a_tie_that_the_compiler_decides_otherwise_is_no_missing_guard():
    """In a later call as in the first one."""
    torch.manual_seed(0)
    table = torch.randn(2, 3)

    class Rounding(torch.fx.Interpreter):
        """Rounds the second column of a sine up."""

        def run_node(self, n):
            value = super().run_node(n)
            if "sin" in n.name:
                value[:, 1] = torch.nextafter(value[:, 1], torch.tensor(2.0))
            return value

    reports = []
    options = {"correctness_report": reports, "inner": lambda graph, _: Rounding(graph).run}
    compiled = torch.compile(lambda x: table[torch.sin(x).argmax(-1)], backend="filch", options=options)
    tie = torch.tensor([[0.3, 0.3]])
    results = [compiled(x) for x in (torch.tensor([[0.3, 0.1]]), tie)]

    assert [report.outcome for report in reports] == ["close"]
    assert not torch.equal(results[1], table[torch.sin(tie).argmax(-1)])
