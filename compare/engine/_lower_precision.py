"""What a program of lower precision has in place of the values of the model: cast, or quantised and dequantised."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch

from filch.export import ExportError, Graph, Node, Program

from ..metrics._tolerance import is_coarser
from ..references._references import Reference
from ..results._rows import Row

_CASTS = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear"})
_WEIGHT = "_DequantizeLinear_Output"  # what ONNX Runtime's tool calls the weight that it has quantised
# What they make are integers of a scale of their own.
_QUANTIZES = re.compile(r"(.*::)?(QuantizeLinear|DynamicQuantizeLinear|QLinear\w+|QGemm|\w+Integer)$")
_HALF = 0.5
_ENDS = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.uint16: (0, 65535),
}


@dataclass(frozen=True)
class Lowered:
    """What one graph of a program of lower precision has in place of the model's values.

    Attributes:
        program: the program.
        same: by the name of a value of the graph, that of the one that has its numbers, but for rounding; `""` for one
            that is called like another one and is not it.
        graph: what was made of it.
    """

    program: Program
    same: Mapping[str, str]
    graph: Graph

    @cached_property
    def rounded(self) -> Mapping[str, float]:
        """Half a unit in the last place of the type that a weight was rounded to, relative, where its own is finer."""
        original = self.program.original
        found = {}
        for name in self.graph.constants:
            held, before = self.program.constant(name), None if original is None else original.constant(name)
            if held is not None and before is not None and held.dtype == before.dtype == torch.float32:
                dtype = _holding(held) if not torch.equal(held, before) else torch.float32
                found[name] = torch.finfo(dtype).eps / 2
        return found

    @classmethod
    def of(cls, graph: Graph, program: Program) -> Self:
        """For a graph that was made of `program`."""
        same = _stand_ins(graph, _names(program))
        return cls(program, {**same, **_renamed(graph, program, same)}, graph)

    def reference(self, name: str, known: Reference | None, tensor: torch.Tensor | None) -> Reference | None:
        """What a value should be, in its own type if that is a finer one; a stand-in of integers has no reference."""
        if known is None or tensor is None or name not in self.same:
            return known
        if not tensor.is_floating_point():
            return None
        finer = is_coarser(known.tensor.dtype, tensor.dtype)
        return replace(known, tensor=known.tensor.to(tensor.dtype)) if finer else known

    def unjudged(self, node: Node, tensor: torch.Tensor | None) -> str:
        """Why a value that has no reference can have none; `""` if there is no reason."""
        integers = tensor is not None and not tensor.is_floating_point() and _QUANTIZES.match(node.op)
        return "integers: they are judged where they are numbers again" if integers else ""

    def with_clipped(self, row: Row, node: Node, live: Mapping[str, torch.Tensor], reference: Reference | None) -> Row:
        """The row of a dequantised value, with the elements counted that the integers clipped.

        Args:
            row: what came of the value.
            node: what made it.
            live: the values that it was made of, but for weights, by name.
            reference: what it should be.
        """
        difference = row.difference
        if node.op != "DequantizeLinear" or reference is None or difference is None or difference.problem:
            return row
        values = {name: live.get(name, self.program.constant(name)) for name in node.reads}
        clipped = difference.clipped + _clipped(node, values, reference.tensor)
        return replace(row, difference=replace(difference, clipped=clipped))


def _holding(tensor: torch.Tensor) -> torch.dtype:
    """The coarsest type that holds all numbers of a float32 tensor."""
    types = (torch.bfloat16, torch.float16)
    return next((dtype for dtype in types if torch.equal(tensor, tensor.to(dtype).float())), torch.float32)


def _names(program: Program) -> frozenset[str]:
    """The names of the values that there may be references of."""
    ports = (port.value for call in program.module_calls.values() for port in (*call.inputs, *call.outputs))
    graph = program.graph
    names = {*graph.inputs, *graph.outputs, *(name for name in ports if name is not None)}
    try:
        return frozenset(names if program.original is None else names | program.original.graph.known)
    except ExportError:
        return frozenset(names)


def _stand_ins(graph: Graph, known: Collection[str]) -> dict[str, str]:
    """For values that `known` does not have: the one that has their numbers, but for rounding."""
    found: dict[str, str] = {}
    for node in graph.nodes:  # forwards: a value that is cast keeps its name, the result has a new one
        if _casts(node, graph) and node.outputs[0] not in known:
            source = found.get(node.inputs[0], node.inputs[0])
            weight = node.outputs[0].removesuffix(_WEIGHT)
            found[node.outputs[0]] = source if source in known else weight
    for node in reversed(graph.nodes):  # backwards: a result of the model keeps its name, what is cast has a new one
        if _casts(node, graph) and node.inputs[0] not in known:
            end = found.get(node.outputs[0], node.outputs[0])
            if end in known:
                found[node.inputs[0]] = end
    return {name: end for name, end in found.items() if end in known}


def _casts(node: Node, graph: Graph) -> bool:
    """Whether a node changes the type of numbers alone: from one floating-point type to another, or on that way."""
    if node.op != "Cast":
        return node.op in _CASTS
    types = [graph.values[name].dtype or "" for name in (*node.inputs, *node.outputs) if name in graph.values]
    return all("float" in dtype for dtype in types)


def _renamed(graph: Graph, program: Program, same: Mapping[str, str]) -> dict[str, str]:
    """Values that are called like one of the exported graph, or stand in for it by `same`, and are another.

    ONNX Runtime's tool takes a Relu out that the range of the integers does as well, and gives its value's name to what
    the Relu was given; no reference has the name "".
    """
    try:
        before = {} if program.original is None else program.original.graph.producer
    except ExportError:
        return {}
    return {
        name: ""
        for name, users in graph.consumers.items()
        if any(user.op == "QuantizeLinear" for user in users)
        and (was := before.get(same.get(name, name))) is not None
        and was.op in ("Relu", "Clip")
        and name in graph.producer
        and graph.producer[name].op != was.op
    }


def _clipped(node: Node, values: Mapping[str, torch.Tensor | None], reference: torch.Tensor) -> int:
    """How many elements are the first or the last of the integers, and should be beyond it.

    By more than the half step, that is, that rounding takes anywhere.
    """
    integers, scale, *rest = (values.get(name) for name in node.inputs)
    zero = rest[0] if rest else None
    if integers is None or scale is None or integers.dtype not in _ENDS or "block_size" in node.attributes:
        return 0
    axis = int(node.attributes.get("axis", 1))
    first, last = _ENDS[integers.dtype]
    expected = reference.to(integers.device).double()
    shift = 0.0 if zero is None else _along(zero.double(), axis, expected)
    steps = expected / _along(scale.double(), axis, expected) + shift
    low, high = (integers == first) & (steps < first - _HALF), (integers == last) & (steps > last + _HALF)
    return int((low | high).sum())


def _along(numbers: torch.Tensor, axis: int, like: torch.Tensor) -> torch.Tensor:
    """Numbers for each channel, so that they broadcast along `axis`."""
    if numbers.numel() == 1:
        return numbers.reshape(()).to(like.device)
    shape = [1] * like.dim()
    shape[axis] = -1
    return numbers.reshape(shape).to(like.device)
