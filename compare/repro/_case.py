"""A part of a program that runs alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir
import torch
from torch import fx

from filch.export import Program

from ._result import Size

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """A part of a program with what it is fed.

    Attributes:
        inputs: what it is fed, by name; the ONNX model may do with less of it than the function.
        outputs: the names of what it gives.
        model: it as ONNX, its inputs called as in `inputs`; None if that is not what runs.
        function: it as operations of torch, where these are known and asked for: of the inputs and weights by name, it
            returns the outputs in order.
        weights: what the function takes besides the inputs, by name.
        recorded: what the model itself had, by the names of the outputs; empty once the inputs are others.
    """

    inputs: Tensors
    outputs: tuple[str, ...]
    model: ir.Model | None = None
    function: fx.GraphModule | None = None
    weights: Tensors = field(default_factory=dict)
    recorded: Tensors = field(default_factory=dict)

    @cached_property
    def held(self) -> dict[str, torch.Tensor]:
        """The numbers that the ONNX model holds, by name."""
        if self.model is None:
            return {}
        program = Program(self.model)
        found = {name: program.constant(name) for name in self.model.graph.initializers}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def fed(self) -> Tensors:
        """The inputs that the ONNX model takes."""
        return (
            {}
            if self.model is None
            else {item.name: self.inputs[item.name] for item in self.model.graph.inputs if item.name}
        )

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators, in order."""
        if self.model is not None:
            return tuple(node.op_type for node in self.model.graph)
        return tuple(str(node.target) for node in _calls(self.function))

    @property
    def size(self) -> Size:
        """How large it is."""
        tensors = (*self.inputs.values(), *(self.held if self.model is not None else self.weights).values())
        return Size(len(self.operators), sum(tensor.numel() for tensor in tensors))


def _calls(function: fx.GraphModule | None) -> list[fx.Node]:
    return [] if function is None else [node for node in function.graph.nodes if node.op == "call_function"]
