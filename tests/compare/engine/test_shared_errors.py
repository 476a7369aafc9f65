"""A value that agrees with its reference is wrong if both run the same wrong kernel."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
from torch import nn

from filch.compare import compare_programs
from filch.export import export
from support.faults.fakes import WrongBackend
from support.models.small import onnx_model

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
FAULTS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a factor": ("LayerNormalization", lambda t: t * 1.001),
    "one number": ("LayerNormalization", lambda t: t.index_fill(0, torch.tensor([3]), 0.25)),
    "a number for NaN": ("Sqrt", lambda t: t.nan_to_num(1.0)),
    "NaN for a number": ("Sqrt", lambda t: t.masked_fill(t > 1, float("nan"))),
    "NaN for infinity": ("Log", lambda t: t.masked_fill(t.isinf(), float("nan"))),
    "a number for infinity": ("Log", lambda t: t.nan_to_num(nan=float("nan"), neginf=-3.0)),
    "a number beside infinity": ("Log", lambda t: t * 1.001),
    "only NaN for only infinity": ("ReduceMin", lambda t: t * float("nan")),
    "another integer": ("ArgMax", lambda t: (t + 1) % 8),
}


class Net(nn.Module):
    """A norm, a root with NaN, a decision and logarithms of 0, each followed by another operation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        """Return a result of each."""
        hidden, logs = self.norm(self.first(x)), x.abs().floor().log()
        return self.last(hidden).relu(), x.sqrt().exp(), hidden.argmax(-1) * 2, logs.exp(), logs.amin(-1).exp()


@pytest.fixture(scope="module")
def program():
    return export(Net().eval(), (X,))


def compared(program, op, fault):
    """Compare a program with itself, on a backend whose kernel of one operator is wrong."""
    (node,) = (node for node in program.graph.nodes if node.op == op)
    wrong = WrongBackend({node.outputs[0]: fault})
    return compare_programs(program, program, inputs={"x": X}, backend=wrong, reference_backend=wrong)


@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_that_is_wrong_on_both_sides_is_named(name, program):
    """The bits are equal; the node is wrong by itself, and what follows from it is not blamed."""
    op, fault = FAULTS[name]
    report = compared(program, op, fault)

    assert report.outcome == "different"
    assert [row.op for row in report.introduced] == [op]
    assert "both are wrong: the reference has the same numbers" in " ".join(str(report).split())
    assert "remain within rounding" not in str(report)


@pytest.mark.parametrize("op", sorted({op for op, _ in FAULTS.values()}))
def test_right_kernels_are_silent(op, program):
    """NaN where float64 has it, too, and the same decisions are no fault."""
    report = compared(program, op, lambda t: t)

    assert report.close
    assert all(row.isolated is None for row in report.rows)


def test_errors_that_have_grown_are_no_fault_of_a_kernel():
    """Cancellation makes the rounding errors of both sides large; each node is right by itself."""

    class Cancels(nn.Module):
        def forward(self, x):
            large = x.double().square().float() * 1e7
            return (large + x) - large

    program = export(Cancels(), (X,))
    report = compare_programs(program, program, inputs={"x": X})

    assert report.outcome == "close", str(report)


def test_what_rounding_decides_in_a_folded_constant_is_no_fault_of_a_kernel(tmp_path):
    """The buckets of distances in T5 are such integers: rounding in float32 makes a quotient a whole number."""
    text = "(int64[4] x) => (int64[4] y) <float[4] a = {53.1, 53.1, 53.1, 53.1}, float[4] b = {5.9, 5.9, 5.9, 5.9}>"
    text += "{ quotient = Div(a, b) bucket = Cast<to = 7>(quotient) y = Min(bucket, x) }"
    onnx.save(onnx_model(text, 17, ir_version=8), tmp_path / "a.onnx")

    report = compare_programs(tmp_path / "a.onnx", tmp_path / "a.onnx", inputs={"x": torch.full((4,), 100)})

    assert report.outcome == "close", str(report)
