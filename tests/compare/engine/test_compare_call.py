"""One call of a model: what is prepared for it, the order of its stages, and what is noted of backends that fail."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import pytest
import torch

from filch.compare.engine._compare_call import _spread, compare_call
from filch.compare.engine._options import CompareOptions
from filch.compare.engine._prepare import attempt, prepare
from filch.compare.references._inputs import captured_calls
from filch.export import BackendError, Program
from filch.export.backends import Compiled
from support.models.small import capture_of, module_of

TWO_NODES = """<ir_version: 10, opset_import: ["" : 18]>
main (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { a = Mul(x, w) y = Neg(a) }"""


@dataclass
class Refusing:
    """A backend that runs a program as it is, and refuses some stages."""

    refused: tuple[str, ...] = ()
    name: str = "refusing"
    stages: tuple[str, ...] = ("exported", "compiled")
    asked: list[str] = field(default_factory=list)

    def compile(self, program, *, optimize):
        stage = self.stages[optimize]
        self.asked.append(stage)
        if stage in self.refused:
            raise BackendError(f"no {stage} graph")
        return Compiled(program.graph, None)

    def run(self, compiled, inputs, watch=()):
        raise NotImplementedError


def prepared(*refused, stages=("exported", "compiled"), every_node=False):
    options = CompareOptions(stages, None, False, False, False, 2**20, every_node)
    return prepare({}, Program(ir.from_onnx_text(TWO_NODES)), Refusing(refused), options)


def test_the_first_stage_that_the_backend_refuses_is_an_error():
    """Nothing is compiled yet."""
    with pytest.raises(BackendError, match="no exported graph"):
        prepared("exported")


def test_a_later_stage_that_the_backend_refuses_is_missing_with_the_reason():
    """The first stage is still compared."""
    found = prepared("compiled")
    assert [*found.compiled] == [*found.wanted] == ["exported"]
    assert found.failed == ("no compiled graph",)
    assert found.provenance is None


def test_only_the_stages_that_were_asked_for_are_compiled():
    """A single stage has its own provenance, or none."""
    assert [*prepared(stages=("compiled",)).compiled] == ["compiled"]
    assert prepared(stages=("compiled",)).provenance is not None
    assert prepared(stages=("exported",)).provenance is None


def test_values_that_are_looked_up_are_computed_ones():
    """Weights are excluded: looking up folded weights would compute every product with them again."""
    assert prepared().wanted == dict.fromkeys(("exported", "compiled"), frozenset({"a", "y"}))


def test_constants_are_those_of_the_program():
    """Values that depend on the inputs are no constants."""
    found = prepared()
    assert torch.equal(found.constant("w"), torch.arange(1.0, 5.0))
    assert found.constant("a") is None


def test_an_attempt_that_is_not_required_notes_the_error():
    """Other errors than a backend's are raised in any case."""
    failed = []

    def refuse():
        raise BackendError("refused")

    assert attempt(refuse, failed, required=False) is None
    assert failed == ["refused"]
    assert attempt(lambda: 7, failed, required=False) == 7
    with pytest.raises(BackendError):
        attempt(refuse, failed, required=True)
    with pytest.raises(ZeroDivisionError):
        attempt(lambda: 1 / 0, failed, required=False)
    assert failed == ["refused"]


X = torch.arange(1.0, 5.0)
MODEL = """<ir_version: 10, opset_import: ["" : 18]>
main (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }"""
TWO = """<ir_version: 10, opset_import: ["" : 18]>
main (float[4] x) => (float[4] y, float[4] a) { a = Relu(x) y = Neg(a) }"""


@dataclass
class Given:
    """A backend that computes the two operations, with a hook for faults.

    Attributes:
        fault: is called with the stage, whether the run is observed and the values, and returns them changed.
        runs: the stages that ran, and whether they were observed.
    """

    fault: Callable[[str, bool, dict[str, Any]], dict[str, Any]] = lambda stage, observed, values: values
    name: str = "given"
    stages: tuple[str, ...] = ("exported", "compiled")
    runs: list[tuple[str, bool]] = field(default_factory=list)

    def compile(self, program, *, optimize):
        return Compiled(program.graph, self.stages[optimize])

    def run(self, compiled, inputs, watch=()):
        self.runs.append((compiled.handle, bool(watch)))
        values = {"a": inputs["x"].relu(), "y": -inputs["x"].relu()}
        values = self.fault(compiled.handle, bool(watch), values)
        return {name: values[name] for name in {*compiled.graph.outputs, *watch} if name in values}


@pytest.fixture(scope="module")
def capture():
    """Return a capture of one call of the model."""
    model = module_of(lambda self, x: -x.relu())
    return capture_of(model, X)


def compared(capture, backend, model=MODEL):
    program = Program(ir.from_onnx_text(model))
    options = CompareOptions(("exported", "compiled"), None, False, False, False, 2**20)
    (call,) = captured_calls(capture, program).calls
    return compare_call(prepare(capture, program, backend, options), call)


def test_each_stage_runs_plainly_then_observed(capture):
    """The exported stage comes first, and a correct program has no notes."""
    backend = Given()
    result = compared(capture, backend)
    assert backend.runs == [("exported", False), ("exported", True), ("compiled", False), ("compiled", True)]
    assert [(row.stage, row.value) for row in result.rows if row.kind == "output"] == [
        ("exported", "y"),
        ("compiled", "y"),
    ]
    assert not any(row.diverged for row in result.rows)
    assert (result.notes, result.failed, result.exchanged, result.observer_effect) == ((), (), (), None)


def failing(stage):
    """Return a backend that can't run a stage."""

    def fail(running, observed, values):
        if running == stage:
            raise BackendError(f"no memory for {running}")
        return values

    return Given(fail)


def test_the_first_stage_that_fails_to_run_is_an_error(capture):
    """There are no rows yet."""
    with pytest.raises(BackendError, match="no memory for exported"):
        compared(capture, failing("exported"))


def test_a_later_stage_that_fails_to_run_is_noted(capture):
    """The rows of the first stage are kept."""
    result = compared(capture, failing("compiled"))
    assert {row.stage for row in result.rows} == {"exported"}
    assert result.failed == ("no memory for compiled",)


@pytest.mark.parametrize("stage", ["exported", "compiled"])
def test_the_effect_of_observing_is_that_of_the_last_stage_and_a_note_for_others(capture, stage):
    """The outputs of the plain run differ in one stage only."""

    def change(running, observed, values):
        return {**values, "y": values["y"] * 2} if running == stage and not observed else values

    result = compared(capture, Given(change))
    assert (result.observer_effect is not None) == (stage == "compiled")
    assert [note.partition(" graph")[0] for note in result.notes] == (
        ["without instrumentation the exported"] if stage == "exported" else []
    )
    assert [row.stage for row in result.rows if row.diverged] == [stage]


def test_a_program_with_another_number_of_outputs_is_noted(capture):
    """Its values are still compared."""
    result = compared(capture, Given(), TWO)
    assert result.failed == ("the model returns 1 tensors, the graph has 2 outputs",)
    assert {row.value for row in result.rows} == {"a", "y"}


def test_the_spread_of_repeated_runs_is_the_largest_distance_of_each_element():
    """NaN in all runs has distance 0; a number that is finite only in some runs has infinite distance."""
    inf, nan = math.inf, math.nan
    first = torch.tensor([1.0, nan, inf, 3.0, nan])
    others = [torch.tensor([1.5, nan, inf, inf, nan]), torch.tensor([0.0, nan, inf, 3.0, 1.0])]
    assert _spread(first, others).tolist() == [1.0, 0.0, 0.0, inf, inf]
