"""What a compiled graph does to its inputs, buffers among them, is judged like its outputs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from filch.compare import compare, compare_gradients
from filch.export import export
from support.models.small import capture_of


class Step(nn.Module):
    """Writes a row of a cache, reads all of it, and counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, cache):
        cache[1] = x[0]
        self.calls.add_(1)
        return x + cache.sum(0), x * 2


class Accumulate(nn.Module):
    """Adds to a view of its input."""

    def forward(self, x):
        x[1:].add_(1)
        return x.sum()


class Into(nn.Module):
    """Writes a product into an argument."""

    def forward(self, x, out):
        torch.mul(x, 3, out=out)
        return out + 1


def _norm():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


CLEAN = {
    "cache": (Step, (3, 4), (3, 4)),
    "view": (Accumulate, (3, 4)),
    "out": (Into, (3, 4), (3, 4)),
    "batch norm": (_norm, (3, 4)),
}


def _run(make, *shapes, fault=None):
    """Compile with a compiler that runs the graph as it is, and then changes its inputs as `fault` does."""

    def compiler(module, _):
        def run(*inputs):
            before = [item.clone() for item in inputs]
            with torch.no_grad():
                result = [item.clone() for item in module(*inputs)]
                if fault is not None:
                    fault(before, inputs)
            return result

        return run

    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    torch.manual_seed(0)
    model, inputs, reports = make(), [torch.randn(shape) for shape in shapes], []
    with torch.no_grad():
        torch.compile(model, backend="filch", options={"inner": compiler, "correctness_report": reports})(*inputs)
    return reports[0]


@pytest.mark.parametrize("case", CLEAN.values(), ids=CLEAN)
def test_inputs_that_are_changed_rightly_are_close(case):
    """Each has a row like an output's."""
    report = _run(*case)
    assert report.close, report
    changed = [row for row in report.rows if row.value.endswith(", after the call")]
    assert changed
    assert all(row.kind == "output" and row.judged for row in changed)


def _leaves_alone(before, inputs):
    for old, new in zip(before, inputs, strict=True):
        new.copy_(old)


def _writes_another_value(before, inputs):
    for old, new in zip(before, inputs, strict=True):
        new.copy_(torch.where(new != old, new * 1.01, new))


def _writes_all(_, inputs):
    inputs[0].add_(1)


def _writes_nan(before, inputs):
    for old, new in zip(before, inputs, strict=True):
        new.copy_(torch.where(new != old, float("nan"), new))


@pytest.mark.parametrize("fault", [_leaves_alone, _writes_another_value, _writes_all, _writes_nan])
@pytest.mark.parametrize("case", CLEAN.values(), ids=CLEAN)
def test_inputs_that_are_changed_wrongly_are_named(case, fault):
    """An input is not written, written with another value, or written although eager PyTorch leaves it alone."""
    report = _run(*case, fault=fault)
    assert report.outcome == "different"
    assert report.first_divergence.value.endswith(", after the call")
    assert "input" in report.first_divergence.value


def test_a_runtime_that_cannot_change_inputs_is_different():
    """ONNX has no operation for it: what eager PyTorch has written is missing."""
    torch._dynamo.reset()  # noqa: SLF001  as above
    reports, x = [], torch.randn(3, 4)
    with torch.no_grad():
        torch.compile(Accumulate(), backend="filch", options={"inner": "reference", "correctness_report": reports})(x)
    assert reports[0].first_divergence.value == "input x, after the call"


def test_an_exported_program_is_incomplete_without_what_the_model_changes():
    """The exporter leaves it out: each input and buffer is a gap with a name."""
    model, inputs = Step().eval(), (torch.randn(3, 4), torch.zeros(3, 4))
    program = export(model, inputs)
    capture = capture_of(model, *(item.clone() for item in inputs))
    report = compare(capture, program, backend="reference")
    assert report.outcome == "incomplete"
    assert {gap.name for gap in report.proof.gaps} == {"buffer calls, after the call", "input cache, after the call"}
    told = "the model changes it, and the program has no output for it: return it as well, or name it with a reason"
    assert all(told in gap.reason for gap in report.proof.gaps)
    assert not report.passes
    assert replace(report, accepted={gap.name: "a counter" for gap in report.proof.gaps}).passes


@pytest.mark.parametrize("wrong", [False, True])
def test_buffers_are_judged_with_gradients(wrong):
    """A BatchNorm's running mean is changed in the forward pass."""
    torch._dynamo.reset()  # noqa: SLF001  as above

    def compiler(module, _):
        def run(*inputs):
            result = module(*inputs)
            for item in inputs if wrong else ():
                if not item.requires_grad and item.shape == (4,):
                    item.data.mul_(1.1)  # autograd does not see it
            return result

        return run

    torch.manual_seed(0)
    report = compare_gradients(_norm(), (torch.randn(5, 4),), inner=compiler)
    assert report.close != wrong, report
    if wrong:
        assert "running_mean" in report.first_divergence.value


def test_what_an_operation_writes_through_a_view_is_a_value_of_its_own():
    """The base is judged after the write, and a write to an input names the operation that does it."""

    def function(x, state):
        x = x.exp()
        x[:, 1:].neg_()
        state[0] = 2.0
        return x * 2

    def forgets(graph, inputs):
        """Compile to what writes nothing through a view, nor to the state."""
        for node in list(graph.graph.nodes):
            if node.target == "neg_" or getattr(node.target, "__name__", "") == "setitem":
                node.replace_all_uses_with(node.args[0])
                graph.graph.erase_node(node)
        graph.recompile()
        return graph.forward

    for inner, wrong in (("eager", []), (forgets, ["input state, after the call"])):
        reports = []
        options = {"correctness_report": reports, "inner": inner}
        torch.compile(function, backend="filch", options=options)(torch.randn(2, 3), torch.zeros(3))
        (report,) = reports
        rows = {row.value: row for row in report.rows}

        assert report.close is not bool(wrong)
        changed = rows["input state, after the call"]
        assert (changed.diverged, changed.op) == (bool(wrong), "setitem")
        # What is written to is copied only if a result differs: for a large cache, that is much memory.
        found = {name: row.diverged for name, row in rows.items() if ", after " in name and row.kind != "output"}
        assert found == dict.fromkeys(wrong and ["x, after neg_", "state, after setitem"], True)
