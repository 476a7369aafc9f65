"""onnx.reference, the specification's own evaluator in numpy: slow, and nobody's optimisation."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde

from .._arrays import array_to_torch, torch_to_array
from .._errors import BackendError
from .._program import Program
from ._backend import Compiled, Script, Stage, Values

_CODE = """\
def run(path, names, inputs):
    return ReferenceEvaluator(str(path)).run(names, inputs)"""


@dataclass(frozen=True)
class ReferenceBackend:
    """Runs the program as it stands; there is no compiled graph."""

    name: str = "reference"
    stages: tuple[Stage, ...] = ("exported",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it never does
        """See `Backend.compile`."""
        try:
            evaluator = ReferenceEvaluator(serde.serialize_model(program.model))
        except Exception as error:
            raise BackendError(f"onnx.reference refuses the program: {error}") from error
        return Compiled(program.graph, evaluator)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        feeds = {name: torch_to_array(inputs[name]) for name in compiled.graph.inputs}
        try:
            with np.errstate(all="ignore"):  # an overflow is a result, which numpy would warn of
                found = compiled.handle.run(None, feeds, intermediate=True)
        except Exception as error:
            raise BackendError(f"onnx.reference can't run the program: {type(error).__name__}: {error}") from error
        wanted = {*compiled.graph.outputs, *watch}
        arrays = {name: value for name, value in found.items() if isinstance(value, np.ndarray | np.generic)}
        return {name: array_to_torch(array) for name, array in arrays.items() if name in wanted}

    def script(self, *, optimize: bool) -> Script:  # noqa: ARG002  it never does
        """See `Scripted.script`."""
        return Script("onnx", ("from onnx.reference import ReferenceEvaluator",), _CODE, "onnx")
