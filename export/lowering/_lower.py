"""Lower the precision of a program, except for the nodes in `keep`."""

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import onnx_ir as ir
import torch

from filch.steal.files._scratch import Scratch

from .._errors import ExportError, reason
from ..common._onnxruntime import require_onnxruntime
from ..common._quiet import quiet
from ..common._suggestions import dtype_hint, suggestion
from ..graph._graph import Graph
from ..graph._nodes import Node
from ..program._program import Program, follow_changes
from ._floats import convert_floats

Precision = Literal["float16", "bfloat16", "int8", "int4"]
Inputs = Mapping[str, torch.Tensor]


def lower(
    program: Program,
    to: Precision,
    *,
    keep: Collection[str] = (),
    calibration: Sequence[Inputs] | None = None,
    simulate: bool | None = None,
) -> Program:
    """Return a copy of a program in lower precision.

    Its inputs, outputs and value names are those of the program.

    Args:
        program: a float32 program. For `int8` and `int4`, pass the result of `optimize`: only weights that nodes read
            directly are quantized.
        to: `float16` or `bfloat16`: every node computes in this dtype, with casts around the nodes in `keep`. `int8`:
            weights and activations are quantized with pairs of QuantizeLinear and DequantizeLinear; weights have 7 bits
            on processors where ONNX Runtime's 8-bit products saturate (x86-64 without VNNI), as its documentation
            recommends. `int4`: only the weights of MatMul are quantized.
        keep: names of nodes that stay in float32.
        calibration: for `int8`, inputs of the program by name, for measuring the ranges of its values.
        simulate: for `float16` and `bfloat16`, compute in float32 and round the inputs and outputs of each node; None
            means False. ONNX Runtime's CPU provider computes float16 in float32 without rounding between nodes, and has
            no bfloat16; a simulation shows the effect of the precision there. The graph then has a float32 value
            `x_unrounded` for each value `x`.

    Raises:
        ExportError: a node in `keep` does not exist, no node can be lowered, or ONNX Runtime's tools, which int8 and
            int4 need, are not installed or fail.
    """
    return Lowering(program, to, calibration=calibration, simulate=simulate).keeping(keep)


class Lowering:
    """Lowers one program to one precision, with different nodes kept each time; see `lower` for the arguments.

    Attributes:
        nodes: the names of the nodes that can be lowered.

    Raises:
        ExportError: see `lower`.
    """

    def __init__(
        self,
        program: Program,
        to: Precision,
        *,
        calibration: Sequence[Inputs] | None = None,
        simulate: bool | None = None,
    ) -> None:
        if to not in get_args(Precision):
            choices = ", ".join(get_args(Precision))
            raise ExportError(f"there is no precision {to!r}; there are {choices}{dtype_hint(to)}")
        if simulate and to.startswith("int"):
            raise ExportError(f"only float16 and bfloat16 are simulated: ONNX Runtime computes {to} as it is")
        if to == "int8" and not calibration:
            raise ExportError("int8 needs the ranges of the program's values: give calibration=[inputs by name, …]")
        self._program = program
        self._graph = program.graph
        self._to = to
        self._calibration = calibration or ()
        self._simulate = bool(simulate)
        scratch = Scratch()
        self._folder = scratch.path  # caches the ranges
        weakref.finalize(self, scratch.remove)
        self._all_lowered = self._lowered(())
        self.nodes = lowered_nodes(self._graph, self._all_lowered.graph)
        if not self.nodes:
            hint = "; its weights have to stand in the graph: optimize(program) first" if to.startswith("int") else ""
            raise ExportError(f"no node of the program can be lowered to {to}{hint}")

    def keeping(self, keep: Collection[str]) -> Program:
        """Return the program in lower precision, with these nodes in float32."""
        names = [node.name for node in self._graph.nodes]
        for name in keep:
            if name not in names:
                raise ExportError(f"the program has no node {name!r} to keep in float32{suggestion(name, names)}")
        return self._lowered(keep) if keep else self._all_lowered

    def _lowered(self, keep: Collection[str]) -> Program:
        """Return the program with all nodes but these in lower precision."""
        model = ir.external_data.load_to_model(self._program.model.clone())
        for node, named in zip(model.graph, self._graph.nodes, strict=True):
            node.name = named.name  # nodes without a name have one in the graph
        return follow_changes(replace(self._program, model=self._lower_model(model, keep), path=None))

    def _lower_model(self, model: ir.Model, keep: Collection[str]) -> ir.Model:
        """Lower a copy of the model, except for the nodes in `keep`."""
        if self._to in ("float16", "bfloat16"):
            convert_floats(model, ir.DataType[self._to.upper()], keep, simulate=self._simulate)
            return model
        require_onnxruntime(f"lowering to {self._to}", ExportError)
        from ._integers import quantize_int4, quantize_int8  # noqa: PLC0415  imports ONNX Runtime

        try:
            with quiet():
                if self._to == "int4":
                    return quantize_int4(model, keep)
                return quantize_int8(model, keep, self._calibration, self._folder / "ranges.json")
        except Exception as error:  # the tools raise exceptions of any type
            raise ExportError(f"ONNX Runtime's tools can't lower the program to {self._to}: {reason(error)}") from error


def lowered_nodes(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the names of the nodes of `before` that differ in `after`, or are not in it."""
    lowered = {node.name: _signature(node, after) for node in after.nodes}
    return tuple(node.name for node in before.nodes if _signature(node, before) != lowered.get(node.name))


def _signature(node: Node, graph: Graph) -> object:
    """Return the properties of a node that lowering may change."""
    types = [graph.values[name].dtype for name in (*node.reads, *node.outputs) if name in graph.values]
    return node.op, node.reads, node.outputs, types
