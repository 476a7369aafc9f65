"""Makes programs of lower precision, all but the nodes that are to be kept."""

import difflib
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import onnx_ir as ir
import torch

from filch.steal import Scratch

from .._errors import ExportError, reason
from ..common._quiet import quiet
from ..graph._graph import Graph
from ..graph._nodes import Node
from ..program._program import Program, follow_changes
from ._floats import write_floats

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
    """Make a program of lower precision.

    Its inputs and outputs, and the names of the values that it shares with the program, stay what they are.

    Args:
        program: float32. For `int8` and `int4`, what `optimize` returned: only weights that stand in the graph as they
            are get quantised.
        to: `float16` or `bfloat16`: every node computes in it, with casts around those that are kept. `int8`: weights
            and activations, as pairs of QuantizeLinear and DequantizeLinear; on a processor on which ONNX Runtime's
            8-bit products saturate (x86-64 without VNNI), weights have 7 bits, as its documentation asks for. `int4`:
            the weights of MatMul alone.
        keep: names of nodes that stay in float32.
        calibration: for `int8`, inputs of the program by name, from which the ranges of its values are taken.
        simulate: for the first two, compute in float32 and round what each node reads and makes; None is False. ONNX
            Runtime's CPU provider runs float16 in float32 and does not round between nodes, and has no bfloat16. The
            graph then has a float32 value `x_unrounded` for each `x`; its outputs tell what the precision costs.

    Raises:
        ExportError: a node to keep is not there, nothing can be lowered, or ONNX Runtime's tools refuse.
    """
    return Lowering(program, to, calibration=calibration, simulate=simulate).keeping(keep)


class Lowering:
    """One program and one precision, for as many lists of nodes to keep as one likes; see `lower` for the arguments.

    Attributes:
        nodes: the names of the nodes that can be of lower precision.

    Raises:
        ExportError: as `lower` does.
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
            raise ExportError(f"there is no precision {to!r}; there are {', '.join(get_args(Precision))}")
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
        self._folder = scratch.path  # for the ranges, which are measured once
        weakref.finalize(self, scratch.remove)
        self._whole = self._made(())
        self.nodes = lowered_nodes(self._graph, self._whole.graph)
        if not self.nodes:
            hint = "; its weights have to stand in the graph: optimize(program) first" if to.startswith("int") else ""
            raise ExportError(f"no node of the program can be lowered to {to}{hint}")

    def keeping(self, keep: Collection[str]) -> Program:
        """The program in lower precision, all but the nodes of these names."""
        names = [node.name for node in self._graph.nodes]
        for name in keep:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ExportError(f"the program has no node {name!r} to keep in float32{hint}")
        return self._made(keep) if keep else self._whole

    def _made(self, keep: Collection[str]) -> Program:
        model = ir.external_data.load_to_model(self._program.model.clone())
        for node, named in zip(model.graph, self._graph.nodes, strict=True):
            node.name = named.name
        return follow_changes(replace(self._program, model=self._written(model, keep), path=None))

    def _written(self, model: ir.Model, keep: Collection[str]) -> ir.Model:
        if self._to in ("float16", "bfloat16"):
            write_floats(model, ir.DataType[self._to.upper()], keep, simulate=self._simulate)
            return model
        from ._integers import write_int4, write_int8  # noqa: PLC0415  ONNX Runtime is loaded by what needs it

        try:
            with quiet():
                if self._to == "int4":
                    return write_int4(model, keep)
                return write_int8(model, keep, self._calibration, self._folder / "ranges.json")
        except Exception as error:  # the tools raise whatever they meet
            raise ExportError(f"ONNX Runtime's tools can't lower the program to {self._to}: {reason(error)}") from error


def lowered_nodes(before: Graph, after: Graph) -> tuple[str, ...]:
    """The names of the nodes of `before` that are not what they were in `after`."""
    now = {node.name: node for node in after.nodes}
    return tuple(node.name for node in before.nodes if _told(node, before) != _told(now.get(node.name), after))


def _told(node: Node | None, graph: Graph) -> object:
    """All of a node that precision may change."""
    if node is None:
        return None
    types = [graph.values[name].dtype for name in (*node.reads, *node.outputs) if name in graph.values]
    return node.op, node.reads, node.outputs, types
