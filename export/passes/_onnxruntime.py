"""ONNX Runtime's optimization levels as passes: the optimized graph for the CPU."""

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ..backends import get_backend
from ..program._program import Program


@dataclass(frozen=True)
class OrtPass:
    """Optimizes a graph with ONNX Runtime.

    Attributes:
        level: ONNX Runtime's name of the optimization level.
    """

    level: str

    def __call__(self, program: Program) -> ir.Model:
        """Return the optimized graph.

        Raises:
            BackendError: ONNX Runtime refuses the graph.
        """
        compiled = get_backend("onnxruntime-cpu", level=self.level).compile(program, optimize=True)
        model: Any = compiled.graph.onnx
        _restore_metadata(model, program.model)
        return ir.external_data.load_to_model(model)  # the weights are in files that are removed with `compiled`


BASIC = OrtPass("basic")
EXTENDED = OrtPass("extended")
LAYOUT = OrtPass("layout")
ALL = OrtPass("all")


def _restore_metadata(model: ir.Model, original: ir.Model) -> None:
    """Restore modules and source lines that ONNX Runtime has dropped, by the outputs of the nodes."""
    known = {value.name: node for node in original.graph for value in node.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value.name in known and not node.metadata_props:
                node.metadata_props.update(known[value.name].metadata_props)
