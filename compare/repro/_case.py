"""A part of a program, with inputs to run it alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir
import torch
from torch import fx

from filch.export import ExportError, Program

from ..common._dtypes import declared_dtype
from ..runs._evaluation import Float64Evaluator, ProgramRun, RunOptions
from ..runs._onnx_original import OnnxOriginal
from ._result import Size

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """A part of a program with its inputs.

    Attributes:
        inputs: by name; the ONNX model may take fewer of them than the function.
        outputs: the names of the outputs.
        model: the part as ONNX, with the input names of `inputs`; None if the backend compiles the function.
        function: the part as operations of torch, if known; takes inputs and weights by name and returns the outputs in
            order.
        weights: the other arguments of the function, by name.
        recorded: the values of the captured model, by output name; empty once the inputs were changed.
    """

    inputs: Tensors
    outputs: tuple[str, ...]
    model: ir.Model | None = None
    function: fx.GraphModule | None = None
    weights: Tensors = field(default_factory=dict)
    recorded: Tensors = field(default_factory=dict)

    @cached_property
    def initializers(self) -> Tensors:
        """The initializers of the ONNX model, by name."""
        if self.model is None:
            return {}
        program = Program(self.model)
        tensors = {name: program.constant(name) for name in self.model.graph.initializers}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def in_float64(self) -> Tensors | None:
        """Return the outputs that the ONNX model has in float64, rounded to their dtypes; None if it is not defined."""
        if self.model is None:
            return None
        program = Program(self.model)
        evaluator = Float64Evaluator(replace(program, original=OnnxOriginal(self.model)))
        run = ProgramRun(evaluator, self.model_inputs, RunOptions(self.outputs, noisy=False))
        try:
            found = {name: (run.computed(name) or (None,))[0] for name in self.outputs}
        except ExportError:  # a node takes longer than the time limit
            return None
        tensors = {
            name: item.to(declared_dtype(program.graph, name) or item.dtype)
            for name, item in found.items()
            if isinstance(item, torch.Tensor)
        }
        return tensors if len(tensors) == len(found) else None

    @property
    def model_inputs(self) -> Tensors:
        """The inputs that the ONNX model takes."""
        values = () if self.model is None else self.model.graph.inputs
        return {value.name: self.inputs[value.name] for value in values if value.name}

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators, in order."""
        if self.model is not None:
            return tuple(node.op_type for node in self.model.graph)
        nodes = () if self.function is None else self.function.graph.nodes
        return tuple(str(node.target) for node in nodes if node.op == "call_function")

    @property
    def size(self) -> Size:
        """The number of nodes and elements."""
        weights = self.weights if self.model is None else self.initializers
        return Size(len(self.operators), sum(tensor.numel() for tensor in (*self.inputs.values(), *weights.values())))
