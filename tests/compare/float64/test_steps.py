"""Tests of decisions that are floating-point numbers: of functions that round, and of signs."""

import math

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from faults.decisions import replaced
from filch.compare import compare
from filch.compare.dynamo._eager_run import eager_run
from filch.compare.float64._decision_values import differing
from filch.compare.float64._verdict import Float64Value, rounding_verdict
from filch.compare.runs._evaluation import Float64Evaluator
from filch.export import export
from support.models.small import module_of, recorded
from support.thorough import slow

UNIT = 2.0**-24


def test_numbers_are_compared_in_parts():
    """A float64 copy of all weights that a model rounds would take twice their memory, several times."""

    class Largest(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.dtype == torch.float64:
                self.count = max(self.count, result.numel())
            return result

    one = torch.randn(2**17)
    with Largest() as largest:
        assert not differing(one, one + 0, UNIT).any()
    assert 0 < largest.count <= 2**15


def judged(actual, reference, value, noisy):
    """Return the verdict on numbers that are constant but for jumps."""
    exact = Float64Value(torch.tensor(value).double(), torch.tensor(noisy).double(), UNIT)
    found = rounding_verdict(torch.tensor(actual), torch.tensor(reference), exact, unit=UNIT, is_step=True)
    assert found is not None
    return found


def test_numbers_differ_if_rounding_to_their_dtype_does_not_explain_it():
    """A number without a fraction in this dtype is no decision, however it was computed; NaN is NaN."""
    one = torch.tensor([1.0, 1.0, 3e9, 0.0, math.nan, math.nan, math.inf])
    other = torch.tensor([2.0, 1.0 + 1e-7, 3e9 + 1e4, -0.0, math.nan, 1.0, 1.0])
    assert differing(one, other, UNIT).tolist() == [True, False, False, False, False, True, True]


def test_a_jump_is_a_decision_where_float64_or_its_noise_makes_it():
    """Elsewhere it is wrong, in whichever element, and so is a number that neither has."""
    right = [0.0, 1.0, 3.0, 3.0]
    flipped = [1.0, 1.0, 3.0, 3.0]
    assert judged(flipped, right, right, flipped).verdict == "decision"
    assert judged(flipped, right, flipped, flipped).verdict == "decision"  # the model decides otherwise
    assert judged(flipped, right, right, right).verdict == "wrong"
    assert judged([0.0, 1.0, 3.0, 4.0], right, right, flipped).verdict == "wrong"
    assert judged([2.0, 1.0, 3.0, 3.0], right, right, flipped).verdict == "wrong"
    assert judged([math.nan, 1.0, 3.0, 3.0], right, right, flipped).verdict == "wrong"
    scaled = [number * (1 + 1e-4) for number in flipped]
    assert judged(scaled, right, right, flipped).verdict == "wrong"


class Quantized(nn.Module):
    """Layers of few bits, which round their weights and activations in the model itself."""

    def __init__(self, width, layers):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(layers))

    def forward(self, x):
        for weight in self.weights:
            size = weight.abs().mean()
            ternary = (weight / size).round().clamp(-1, 1) * size
            normalized = nn.functional.layer_norm(x, x.shape[-1:])
            scale = 127 / normalized.abs().amax(-1, keepdim=True)
            x = nn.functional.gelu((normalized * scale).round() / scale @ ternary.T)
        return x


def quantized(dtype, seed, backend="onnxruntime-cpu", plant=None):
    """Return the report of a model; `plant` changes its program, at the last node that rounds activations."""
    torch.manual_seed(seed)
    model, x = Quantized(128, 4).eval().to(dtype), torch.randn(64, 128).to(dtype)
    capture, program = recorded(model, x, submodules=True)
    if plant is not None:
        plant(program.model, [node for node in program.model.graph if node.op_type == "Round"][-1])
    return compare(capture, program, backend=backend)


RUNS = [
    (dtype, seed, backend)
    for dtype, seed in ((torch.float32, 1), (torch.float16, 1), (torch.float16, 2))
    for backend in ("onnxruntime-cpu", "inductor")
]


@slow
@pytest.mark.parametrize(("dtype", "seed", "backend"), RUNS)
def test_a_clean_model_that_rounds_is_close(dtype, seed, backend):
    """In float32 one number is rounded otherwise, in float16 dozens are; ONNX Runtime keeps some in float32."""
    report = quantized(dtype, seed, backend)
    assert report.close, report.verdict()
    assert backend == "inductor" or any(row.decides for row in report.rows)


def _floor(_, node):
    node.op_type = "Floor"


def _one_more(model, node):
    one = torch.zeros(64, 128)
    one[7, 5] = 1.0
    replaced(model, node.outputs[0], "Add", one)


@slow
@pytest.mark.parametrize(("plant", "ops"), [(_floor, {"Floor"}), (_one_more, {"Round", "Add", "Div"})])
def test_a_fault_is_found_where_other_numbers_are_decisions(plant, ops):
    """Another function, and one wrong integer among 8,192, where another one is a decision."""
    report = quantized(torch.float32, 1, plant=plant)
    assert not report.close
    assert any(row.decides for row in report.rows)
    assert report.first_divergence is not None
    assert report.first_divergence.op in ops


def test_torch_compile_goes_on_with_a_decision_in_float64():
    """One that a kernel keeps to itself is known from float64 alone; what reads it keeps the dtypes of the model."""
    module = fx.symbolic_trace(module_of(lambda self, x: (x.round() * 2,)))
    x = torch.tensor([0.4999, 3.0], dtype=torch.float16)
    (name,) = (node.name for node in module.graph.nodes if node.target == "round")
    values = eager_run(module, [x], {name: torch.tensor([1.0, 3.0], dtype=torch.float64)}).values
    assert values[name].tolist() == [0.0, 3.0]
    assert torch.equal(values["mul"], torch.tensor([2.0, 6.0], dtype=torch.float16))


def test_a_node_by_itself_is_computed_from_a_given_decision():
    """What the model computes from its own decision is no reference for it then."""
    model, x = module_of(lambda self, x: x.sign().clamp(-1, 1) * 3), torch.tensor([1.0, -2.0, 1e-9])
    program = export(model, (x,))
    known = {"sign": x.sign(), "clamp": x.sign()}
    values = Float64Evaluator(program).isolated({"x": x}, known.get)
    end = program.graph.outputs[0]
    before = values.get(end)
    after = values.with_decisions({"sign": torch.tensor([1.0, -1.0, -1.0])})
    assert before is not None
    assert after is not None
    found = after.get(end)
    assert found is not None
    assert (before.value.tolist(), found.value.tolist()) == ([3.0, -3.0, 3.0], [3.0, -3.0, -3.0])
