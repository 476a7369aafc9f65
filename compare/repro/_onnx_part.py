"""Extract parts of a program, as ONNX."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from onnx_ir.passes import common

from filch.export import ExportError, Graph, Program
from filch.export.graph._cutting import Cutter

from ._case import Case, Tensors
from ._fx_part import TorchParts
from ._grow import runnable_part


class OnnxParts:
    """The parts of a program.

    Args:
        program: the program.
        known: the reference values, by name.

    Attributes:
        graph: the program's.
    """

    def __init__(self, program: Program, known: Tensors) -> None:
        self.graph: Graph = program.graph
        self._cutter = Cutter(program.model, self.graph)
        self._known = known
        try:
            exported = program.exported_program
        except ExportError:
            exported = None
        self._torch_parts = None if exported is None else TorchParts(exported, known)

    def case(self, names: Collection[str]) -> Case | None:
        """Return the nodes of these names and those they need; None if they can't run alone.

        The case has the torch operations that they were translated from, if these compute the same outputs and read at
        least the same inputs: those that they read beside them, and their weights, are in the case, too.
        """
        part = runnable_part(self.graph, names, self._known)
        if part is None:
            return None
        nodes, outputs = part
        computed = {name for node in nodes for name in node.outputs if name}
        model = keep_outputs(self._cutter.cut(nodes, computed), outputs)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        common.ClearMetadataAndDocStringPass()(model)
        inputs = {value.name: self._known[value.name] for value in model.graph.inputs if value.name}
        case = Case(inputs, outputs, set_shapes(model, inputs), recorded={name: self._known[name] for name in outputs})
        operations = {*outputs, *(node.target for node in nodes if node.target)}
        original = None if self._torch_parts is None else self._torch_parts.part(operations, outputs)
        if original is None or not {*case.inputs} <= {*original.inputs}:
            return case
        return replace(
            case, inputs={**case.inputs, **original.inputs}, function=original.function, weights=original.weights
        )


def keep_outputs(model: ir.Model, outputs: Collection[str]) -> ir.Model:
    """Keep only these outputs of a model and what they need, in place, and return it."""
    graph = model.graph
    graph.outputs[:] = [value for value in graph.outputs if value.name in outputs]
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    common.RemoveUnusedOpsetsPass()(model)
    graph.inputs[:] = [value for value in graph.inputs if value.uses()]
    return model


def set_shapes(model: ir.Model, tensors: Mapping[str, torch.Tensor]) -> ir.Model:
    """Set dtypes and shapes from `tensors`, and remove other shapes, in place, and return the model."""
    graph = model.graph
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        tensor = tensors.get(value.name or "")
        value.shape = None if tensor is None else ir.Shape(tensor.shape)
        if tensor is not None:
            value.dtype = tensor_adapters.from_torch_dtype(tensor.dtype)
    return model
