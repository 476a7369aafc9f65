"""What is prepared once: a compiled program for each stage that the backend can do, and the values to look up."""

from dataclasses import dataclass, field

import onnx_ir as ir
import pytest
import torch

from filch.compare import CompareError
from filch.compare.engine._options import CompareOptions
from filch.compare.engine._prepare import attempt, prepare
from filch.export import BackendError, Program
from filch.export.backends import Compiled

MODEL = """<ir_version: 10, opset_import: ["" : 18]>
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
    return prepare({}, Program(ir.from_onnx_text(MODEL)), Refusing(refused), options)


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


def test_every_node_needs_the_exported_program():
    """It needs the exported program, which a bare ONNX file does not have."""
    assert prepared().float64 is None
    with pytest.raises(CompareError, match="needs the exported program"):
        prepared(every_node=True)


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
