"""Extract parts of a program, as ONNX."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from onnx_ir.passes import common

from filch.export import Cutter, ExportError, Graph, Program

from ._case import Case, Tensors
from ._fx_part import TorchParts
from ._grow import closed, ends


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
        self._torch = _original(program, known)

    def case(self, names: Collection[str]) -> Case | None:
        """Return the nodes of these names and those they need; None if they can't run alone."""
        nodes = closed(self.graph, names, self._known)
        if nodes is None:
            return None
        outputs = tuple(name for name in ends(self.graph, nodes, names) if name in self._known)
        if not outputs:
            return None
        model = self._cutter.cut(nodes, {name for node in nodes for name in node.outputs if name})
        model = _bare(giving(model, outputs))
        inputs = {value.name: self._known[value.name] for value in model.graph.inputs if value.name}
        case = Case(inputs, outputs, shaped(model, inputs), recorded={name: self._known[name] for name in outputs})
        return self._with_function(case, {*outputs, *(node.target for node in nodes if node.target)})

    def _with_function(self, case: Case, operations: Collection[str]) -> Case:
        """Add the torch operations that the case was translated from, if they have the same inputs and outputs."""
        made = None if self._torch is None else self._torch.part(operations, case.outputs)
        if made is None or not {*case.inputs} <= {*made.inputs}:
            return case
        return replace(case, inputs={**case.inputs, **made.inputs}, function=made.function, weights=made.weights)


def giving(model: ir.Model, outputs: Collection[str]) -> ir.Model:
    """Keep only these outputs of a model and what they need, in place, and return it."""
    graph = model.graph
    kept = [value for value in graph.outputs if value.name in outputs]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    common.RemoveUnusedOpsetsPass()(model)
    read = [value for value in graph.inputs if value.uses()]
    graph.inputs.clear()
    graph.inputs.extend(read)
    return model


def shaped(model: ir.Model, tensors: Mapping[str, torch.Tensor]) -> ir.Model:
    """Set dtypes and shapes from `tensors`, and remove other shapes, in place, and return the model."""
    graph = model.graph
    for value in (*graph.inputs, *(made for node in graph for made in node.outputs)):
        tensor = tensors.get(value.name or "")
        value.shape = None if tensor is None else ir.Shape(tensor.shape)
        if tensor is not None:
            value.dtype = tensor_adapters.from_torch_dtype(tensor.dtype)
    return model


def _bare(model: ir.Model) -> ir.Model:
    """Remove metadata and lift constants to initializers, in place, and return the model."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.ClearMetadataAndDocStringPass()(model)
    return model


def _original(program: Program, known: Tensors) -> TorchParts | None:
    try:
        exported = program.exported_program
    except ExportError:
        return None
    return None if exported is None else TorchParts(exported, known)
