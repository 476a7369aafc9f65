"""Values that a run computes from other decisions than the model: judged by what float64 computes from these."""

from dataclasses import replace

import onnx_ir as ir
import pytest
import torch

from filch.compare import Report, compare
from filch.export import export
from support.models.decisions import ALMOST_TEN, COUNT, WIDTH, Buckets, Experts, above_integers, rounded_to_integers
from support.models.small import capture_of
from support.processes.compilers import needs_compiler
from support.thorough import kept, slow

ERROR = 3e-5  # of the embeddings; another bucket changes them by more than 1


def recorded(numbers):
    """Return a capture and the program of a model that adds the embedding of ten times each number."""
    torch.manual_seed(0)
    model, x = Buckets().eval(), torch.randn(COUNT, WIDTH)
    capture = capture_of(model, x, numbers, submodules=True)
    return capture, export(model, (x, numbers))


def judged(capture, program, *, factor=10.0, error=0.0):
    """Judge a changed program: it multiplies the numbers by a factor, and its embeddings have a relative error."""
    model = program.model.clone()
    (multiply,) = (node for node in model.graph if node.op_type == "Mul")
    other = ir.Value(name="factor", const_value=ir.tensor(factor, dtype=ir.DataType.FLOAT, name="factor"))
    model.graph.register_initializer(other)
    multiply.replace_input_with(1, other)
    weight = model.graph.initializers["bias.weight"]
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * (1 + error), dtype=ir.DataType.FLOAT, name=weight.name)
    return compare(capture, replace(program, model=model), stages=["exported"])


def nodes_by_operator(report):
    """Return the text of the verdict of each node by its operator."""
    return {row.op: str(row.float64) for row in report.rows if row.kind == "node"}


def test_rounding_of_what_a_node_reads_explains_another_decision():
    """Also where noise does not happen to change it: all numbers are rounded down, and noise changes half of them."""
    capture, program = recorded(above_integers())
    assert judged(capture, program).close

    report = judged(capture, program, factor=ALMOST_TEN)

    assert report.close, str(report)
    assert nodes_by_operator(report)["Cast"].startswith("decision: 10 of 64 differ, margin 0.19 times rounding")
    assert max(row.difference.absolute for row in report.rows if row.difference is not None) > 1


def test_another_decision_for_the_same_input_is_wrong():
    """Ten times the numbers is far from an integer."""
    capture, program = recorded(above_integers() + 0.05)
    report = judged(capture, program, factor=9.0)
    first = report.first_divergence
    assert first is not None
    assert first.op == "Mul"
    assert "instead of" in nodes_by_operator(report)["Cast"]


@pytest.mark.parametrize(
    ("numbers", "factor"),
    [(above_integers(), ALMOST_TEN), (rounded_to_integers(), 10.0)],
    ids=["the run decides otherwise", "float64 decides otherwise"],
)
def test_a_small_error_is_found_after_other_decisions(numbers, factor):
    """The other decisions are no reason to expect large errors behind them."""
    capture, program = recorded(numbers)
    assert judged(capture, program, factor=factor).close

    report = judged(capture, program, factor=factor, error=ERROR)

    first = report.first_divergence
    assert first is not None
    assert first.op == "Gather"


# ONNX Runtime's CPU provider has no bfloat16.
RUNS = [(torch.float16, "onnxruntime-cpu"), (torch.bfloat16, "inductor"), (torch.float16, "inductor")]


@slow
@needs_compiler
@pytest.mark.parametrize(("dtype", "backend"), kept(RUNS, *RUNS[:2]))
def test_a_clean_mixture_of_experts_is_close(dtype, backend):
    """In half precision, other experts are selected for some tokens."""
    torch.manual_seed(0)
    model, tokens = Experts(layers=2).eval().to(dtype), torch.randint(0, 1000, (512,))
    capture = capture_of(model, tokens, submodules=True)

    report = compare(capture, export(model, (tokens,)), backend=backend)

    assert report.close, report.verdict()
    assert others_selected(report)


@needs_compiler
@slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_clean_mixture_of_experts_is_close_in_torch_compile(dtype):
    """The same, without exported program and isolated runs."""
    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    torch.manual_seed(0)
    model, tokens = Experts(layers=2).eval().to(dtype), torch.randint(0, 1000, (512,))
    reports: list[Report] = []
    with torch.no_grad():
        torch.compile(model, backend="filch", options={"correctness_report": reports})(tokens)

    assert reports[0].close, reports[0].verdict()
    assert others_selected(reports[0])


def others_selected(report):
    """Return whether the backend has selected other experts or tokens than eager PyTorch."""
    return any(row.dtype == "int64" and row.difference and row.difference.absolute for row in report.rows)
