"""onnx.reference, the NumPy evaluator of the ONNX project: slow, without optimizations."""

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde

from .._errors import BackendError
from ..common._arrays import array_to_torch, comparable, torch_to_array
from ..program._program import Program
from ._backend import Compiled, ReferenceLookup, Script, Stage, Values
from ._files import refuse_large_values, with_weights
from ._forms import fitting_reference

_ENDLESS = "RegexFullMatch"  # a short pattern can take exponential time
_CODE = """\
def run(path, names, inputs):
    return ReferenceEvaluator(str(path)).run(names, inputs)"""


@dataclass(frozen=True)
class ReferenceBackend:
    """Runs the program as it stands with onnx.reference; there is no compiled graph."""

    name: str = "reference"
    stages: tuple[Stage, ...] = ("exported",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it never does
        """See `Backend.compile`."""
        if _ENDLESS in {node.op_type for node in program.model.graph.all_nodes()}:
            raise BackendError(f"onnx.reference runs {_ENDLESS} by Python's re, which no time limit stops")
        proto = serde.serialize_model(with_weights(program.model))
        refuse_large_values(proto, proto.ByteSize())  # the weights are nearly all of it
        try:
            evaluator = ReferenceEvaluator(proto)
        except Exception as error:
            raise BackendError(f"onnx.reference refuses the program: {error}") from error
        return Compiled(program.graph, evaluator)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        values = self._run(compiled.handle, compiled, inputs)
        outputs = {*compiled.graph.outputs}
        wanted = (name for name in values if name in outputs or (name in watch and _is_array(values[name])))
        return {name: tensor for name in wanted if (tensor := comparable(values[name])) is not None}

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,  # noqa: ARG002  it runs all
        buffer: int,  # noqa: ARG002  all values are in memory anyway
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`."""
        values: dict[str, torch.Tensor] = {}

        def replace(name: str, value: Any) -> Any:
            if not name or not _is_array(value):  # an output that is left out, or a sequence or text
                return value
            values[name] = array_to_torch(value)
            reference = fitting_reference(references, name, values[name])
            if reference is None:
                return value
            array = np.empty_like(value)  # the rounding of numpy's matrix products depends on the layout
            array[...] = torch_to_array(reference)
            return array

        evaluator = copy.copy(compiled.handle)
        evaluator.rt_nodes_ = [_ReplacingNode(node, replace) for node in evaluator.rt_nodes_]
        self._run(evaluator, compiled, inputs)
        return iter(values.items())

    def _run(self, evaluator: ReferenceEvaluator, compiled: Compiled, inputs: Values) -> dict[str, Any]:
        """Run the evaluator and return all values by name."""
        feeds = {name: torch_to_array(inputs[name]) for name in compiled.graph.inputs}
        try:
            with np.errstate(all="ignore"):  # numpy would warn of overflows
                values: Any = evaluator.run(None, feeds, intermediate=True)
        except Exception as error:
            raise BackendError(f"onnx.reference can't run the program: {type(error).__name__}: {error}") from error
        return dict(values)

    def script(self, *, optimize: bool) -> Script:  # noqa: ARG002  it never does
        """See `ProvidesScript.script`."""
        return Script("onnx", ("from onnx.reference import ReferenceEvaluator",), _CODE, "onnx")


class _ReplacingNode:
    """A node of onnx.reference whose outputs are passed through `replace`."""

    def __init__(self, node: Any, replace: Callable[[str, Any], Any]) -> None:
        self._node, self._replace = node, replace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def run(self, *inputs: Any, **context: Any) -> tuple[Any, ...]:
        outputs = self._node.run(*inputs, **context)
        return tuple(self._replace(name, value) for name, value in zip(self._node.output, outputs, strict=False))


def _is_array(value: Any) -> bool:
    """Return whether a value is an array of numbers: not of strings, bytes or objects, which torch does not have."""
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "USO"
