"""onnx.reference, the specification's own evaluator in numpy: slow, and nobody's optimisation."""

from collections.abc import Collection
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde

from .._errors import BackendError
from .._program import Program
from ._backend import Compiled, Values


@dataclass(frozen=True)
class ReferenceBackend:
    """Runs the program as it stands; there is no compiled graph."""

    name: str = "reference"
    optimizes: bool = False

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it never does
        """See `Backend.compile`."""
        try:
            evaluator = ReferenceEvaluator(serde.serialize_model(program.model))
        except Exception as error:
            raise BackendError(f"onnx.reference refuses the program: {error}") from error
        return Compiled(program.graph, evaluator)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        feeds = {name: _to_numpy(inputs[name]) for name in compiled.graph.inputs}
        try:
            found = compiled.handle.run(None, feeds, intermediate=True)
        except Exception as error:  # noqa: BLE001  whatever an operator's implementation meets
            raise BackendError(f"onnx.reference can't run the program: {type(error).__name__}: {error}") from error
        wanted = {*compiled.graph.outputs, *watch}
        return {name: _to_torch(value) for name, value in found.items() if name in wanted and isinstance(value, np.ndarray | np.generic)}  # fmt: skip


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def _to_torch(value: np.ndarray | np.generic) -> torch.Tensor:
    array = np.asarray(value)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
