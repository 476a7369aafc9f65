"""onnx.reference, the specification's own evaluator in numpy: slow, and nobody's optimisation."""

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde

from .._errors import BackendError
from ..common._arrays import array_to_torch, torch_to_array
from ..program._program import Program
from ._backend import Compiled, ReferenceLookup, Script, Stage, Values
from ._files import refuse_large_values, with_weights
from ._forms import kind_of

_ENDLESS = "RegexFullMatch"  # a pattern of few characters takes for ever
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
        if _ENDLESS in {node.op_type for node in program.model.graph.all_nodes()}:
            raise BackendError(f"onnx.reference runs {_ENDLESS} by Python's re, which no time limit stops")
        proto = serde.serialize_model(with_weights(program.model))
        refuse_large_values(proto, proto.ByteSize())
        try:
            evaluator = ReferenceEvaluator(proto)
        except Exception as error:
            raise BackendError(f"onnx.reference refuses the program: {error}") from error
        return Compiled(program.graph, evaluator)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        found = self._run(compiled.handle, compiled, inputs)
        wanted = {*compiled.graph.outputs, *watch}
        return {name: array_to_torch(array) for name, array in found.items() if name in wanted and _is_array(array)}

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        given: ReferenceLookup,
        *,
        buffer: int,  # noqa: ARG002  it holds all values anyhow
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`."""
        found: dict[str, torch.Tensor] = {}

        def hand_on(name: str, value: Any) -> Any:
            if not name or not _is_array(value):
                return value
            found[name] = array_to_torch(value)
            tensor = given(name)
            if tensor is None or kind_of(tensor) != kind_of(found[name]):
                return value
            handed = np.empty_like(value)  # in the same layout: numpy's products round as that has it
            handed[...] = torch_to_array(tensor)
            return handed

        evaluator = copy.copy(compiled.handle)
        evaluator.rt_nodes_ = [_HandingOn(node, hand_on) for node in evaluator.rt_nodes_]
        self._run(evaluator, compiled, inputs)
        return iter(found.items())

    def _run(self, evaluator: ReferenceEvaluator, compiled: Compiled, inputs: Values) -> dict[str, Any]:
        feeds = {name: torch_to_array(inputs[name]) for name in compiled.graph.inputs}
        try:
            with np.errstate(all="ignore"):  # an overflow is a result, which numpy would warn of
                found: Any = evaluator.run(None, feeds, intermediate=True)
        except Exception as error:
            raise BackendError(f"onnx.reference can't run the program: {type(error).__name__}: {error}") from error
        return dict(found)

    def script(self, *, optimize: bool) -> Script:  # noqa: ARG002  it never does
        """See `ProvidesScript.script`."""
        return Script("onnx", ("from onnx.reference import ReferenceEvaluator",), _CODE, "onnx")


class _HandingOn:
    """A node of onnx.reference's that hands something else on than it makes."""

    def __init__(self, node: Any, hand_on: Callable[[str, Any], Any]) -> None:
        self._node, self._hand_on = node, hand_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def run(self, *inputs: Any, **context: Any) -> tuple[Any, ...]:
        made = self._node.run(*inputs, **context)
        return tuple(self._hand_on(name, value) for name, value in zip(self._node.output, made, strict=False))


def _is_array(value: Any) -> bool:
    """Whether it is numbers; torch has no texts."""
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "USO"
