"""ONNX Runtime's levels of optimisation, as passes: the graph that it would run on the CPU."""

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ..backends import get_backend
from ..program._program import Program


@dataclass(frozen=True)
class OrtPass:
    """What ONNX Runtime makes of a graph.

    Attributes:
        level: one of its own names for how far it goes.
    """

    level: str

    def __call__(self, program: Program) -> ir.Model:
        """The graph that it saves.

        Raises:
            BackendError: it refuses the graph.
        """
        compiled = get_backend("onnxruntime-cpu", level=self.level).compile(program, optimize=True)
        made: Any = compiled.graph.onnx
        _note_places(made, program.model)
        return ir.external_data.load_to_model(made)  # its files go with `compiled`


BASIC = OrtPass("basic")
EXTENDED = OrtPass("extended")
LAYOUT = OrtPass("layout")
ALL = OrtPass("all")


def _note_places(made: ir.Model, before: ir.Model) -> None:
    """Note modules and lines of code where ONNX Runtime has dropped them, by the values that nodes make."""
    known = {value.name: node for node in before.graph for value in node.outputs}
    for node in made.graph:
        for value in node.outputs:
            if value.name in known and not node.metadata_props:
                node.metadata_props.update(known[value.name].metadata_props)
