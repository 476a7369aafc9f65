"""Map the values of a lower-precision program to the model's values: cast, or quantized and dequantized."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import onnx_ir as ir
import torch

from filch.export import ExportError, Graph, Node, Program

from ..metrics._tolerance import is_coarser

_WEIGHT = "_DequantizeLinear_Output"  # the suffix of weights that ONNX Runtime's quantizer dequantizes
_QUANTIZED = frozenset({torch.int8, torch.uint8, torch.int16, torch.uint16})


@dataclass(frozen=True)
class Lowered:
    """The values of one graph of a lower-precision program that correspond to the model's values.

    Attributes:
        program: the program.
        model_names: maps the name of a value to that of the model's value that it equals up to rounding; `""` for a
            value that has the name of another one.
        graph: the program's graph, exported or compiled.
    """

    program: Program
    model_names: Mapping[str, str]
    graph: Graph

    @cached_property
    def units(self) -> Mapping[str, float]:
        """The relative rounding unit of each float32 weight or constant.

        A weight that is not the exported one, and has only numbers of bfloat16 or float16, was rounded to that dtype.
        """
        original = self.program.original
        if original is None:
            return {}
        constants, exported_constants = _constants(self.program.model), _constants(original.model)
        units = {}
        for name in (*self.graph.constants, *constants):
            weight = constants.get(name, self.program.constant(name))
            exported = exported_constants.get(name, original.constant(name))
            if weight is not None and exported is not None and weight.dtype == exported.dtype == torch.float32:
                dtypes = () if torch.equal(weight, exported) else (torch.bfloat16, torch.float16)
                exact_in = (dtype for dtype in dtypes if torch.equal(weight, weight.to(dtype).float()))
                units[name] = torch.finfo(next(exact_in, torch.float32)).eps / 2  # the coarsest of them
        return units

    @classmethod
    def of(cls, graph: Graph, program: Program) -> Self:
        """Return the mapping for a graph of `program`, exported or compiled."""
        model_names = _values_before_casts(graph, _reference_names(program))
        return cls(program, {**model_names, **_values_with_other_names(graph, program, model_names)}, graph)

    def reference(self, name: str, known: torch.Tensor, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Return the reference of a value, cast to its dtype if that is finer; None for quantized integers.

        A value that has its own name in the model, or no tensor, keeps `known`.
        """
        if tensor is None or name not in self.model_names:
            return known
        if not tensor.is_floating_point():
            return None
        return known.to(tensor.dtype) if is_coarser(known.dtype, tensor.dtype) else known

    def unjudged_reason(self, node: Node, tensor: torch.Tensor | None) -> str:
        """Return why the integers of a quantizing node are not judged; `""` for any other value."""
        has_scale = node.operator.quantization in ("quantize", "integers")
        integers = tensor is not None and not tensor.is_floating_point() and has_scale
        return "integers: judged after dequantization" if integers else ""

    def clipped(self, node: Node, inputs: Mapping[str, torch.Tensor], reference: torch.Tensor) -> int:
        """Return how many elements of a dequantized value quantization has clipped.

        Args:
            node: the node that computes the value.
            inputs: the inputs of the node by name; weights may be missing.
            reference: the reference of the value.
        """
        if node.operator.quantization != "dequantize":
            return 0
        return _clipped(node, {name: inputs.get(name, self.program.constant(name)) for name in node.reads}, reference)


def _constants(model: ir.Model) -> dict[str, torch.Tensor]:
    """Return the float32 tensors of `Constant` nodes by the names of their values."""
    values = (value for node in model.graph if node.op_type == "Constant" for value in node.outputs)
    tensors = ((value.name, ir.convenience.get_const_tensor(value)) for value in values)
    return {
        name: torch.tensor(tensor.numpy())
        for name, tensor in tensors
        if name and tensor is not None and tensor.dtype == ir.DataType.FLOAT
    }


def _reference_names(program: Program) -> frozenset[str]:
    """Return the names of the values that may have references: those of module calls and of the exported graph."""
    ports = (port.value for call in program.module_calls.values() for port in (*call.inputs, *call.outputs))
    graph, exported = program.graph, _exported_graph(program)
    names = {*graph.inputs, *graph.outputs, *(name for name in ports if name is not None)}
    return frozenset(names if exported is None else names | exported.known)


def _exported_graph(program: Program) -> Graph | None:
    """Return the graph that the model was exported to; None if there is none, or it can't be read."""
    try:
        return None if program.original is None else program.original.graph
    except ExportError:
        return None


def _values_before_casts(graph: Graph, known: Collection[str]) -> dict[str, str]:
    """Map values that are not in `known` to the known values that they equal up to rounding."""
    aliases: dict[str, str] = {}
    for node in graph.nodes:  # forwards: the input of a cast keeps its name, the output has a new one
        if _is_cast(node, graph) and node.outputs[0] not in known:
            source = aliases.get(node.inputs[0], node.inputs[0])
            weight = node.outputs[0].removesuffix(_WEIGHT)
            aliases[node.outputs[0]] = source if source in known else weight
    for node in reversed(graph.nodes):  # backwards: model outputs keep their names, the inputs of casts have new ones
        if _is_cast(node, graph) and node.inputs[0] not in known:
            end = aliases.get(node.outputs[0], node.outputs[0])
            if end in known:
                aliases[node.inputs[0]] = end
    return {name: end for name, end in aliases.items() if end in known}


def _is_cast(node: Node, graph: Graph) -> bool:
    """Whether a node only changes the dtype of floating-point values: a cast, or a step of quantization."""
    if node.operator.movement != "cast":
        return node.operator.quantization in ("quantize", "dequantize")
    types = [graph.values[name].dtype or "" for name in (*node.inputs, *node.outputs) if name in graph.values]
    return all("float" in dtype for dtype in types)


def _values_with_other_names(graph: Graph, program: Program, model_names: Mapping[str, str]) -> dict[str, str]:
    """Map values that have the name of another value to `""`, which no reference has.

    ONNX Runtime's quantizer removes a Relu or Clip that the range of the integers makes redundant, and gives the name
    of its output to its input.
    """
    if (exported := _exported_graph(program)) is None:
        return {}
    return {
        name: ""
        for name, users in graph.consumers.items()
        if any(user.operator.quantization == "quantize" for user in users)
        and (node := exported.producer.get(model_names.get(name, name))) is not None
        and node.op in ("Relu", "Clip")
        and name in graph.producer
        and graph.producer[name].op != node.op
    }


def _clipped(node: Node, values: Mapping[str, torch.Tensor | None], reference: torch.Tensor) -> int:
    """Return how many elements are at the limits of the integer range while their reference is outside of it.

    The reference has to exceed the range by more than half a step, the rounding error of any quantized value. The
    number is 0 if integers or scale are not known, and for formats of fewer bits or with a scale for each block.
    """
    integers, scale, zero_point = ([values.get(name) for name in node.inputs] + [None])[:3]  # the last may be left out
    if integers is None or scale is None or integers.dtype not in _QUANTIZED or "block_size" in node.attributes:
        return 0
    axis = int(node.attributes.get("axis", 1))
    least, greatest = torch.iinfo(integers.dtype).min, torch.iinfo(integers.dtype).max
    expected = reference.to(integers.device).double()
    shift = 0.0 if zero_point is None else _broadcast_along(zero_point.double(), axis, expected)
    steps = expected / _broadcast_along(scale.double(), axis, expected) + shift
    low, high = (integers == least) & (steps < least - 0.5), (integers == greatest) & (steps > greatest + 0.5)
    return int((low | high).sum())


def _broadcast_along(parameter: torch.Tensor, axis: int, like: torch.Tensor) -> torch.Tensor:
    """Reshape a scale or zero point, one for the tensor or one per channel, to broadcast along an axis of `like`."""
    if parameter.numel() == 1:
        return parameter.reshape(()).to(like.device)
    shape = [1] * like.dim()
    shape[axis] = -1
    return parameter.reshape(shape).to(like.device)
