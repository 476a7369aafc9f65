"""What a program of lower precision has in place of the values of the model: cast, or quantised and dequantised."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from filch.export import Graph, Node, Program

from ._inputs import StolenCall
from ._judge import Ran
from ._references import Reference
from ._report import Row

_CASTS = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear"})
_WEIGHT = "_DequantizeLinear_Output"  # what ONNX Runtime's tool calls the weight that it has quantised


def given_references(program: Program, call: StolenCall) -> dict[str, Reference]:
    """The inputs and the weights as they were, for what stands in for them."""
    found = {name: Reference(tensor, "module") for name, tensor in call.inputs.items()}
    if program.original is not None:
        kept = replace(program, model=program.original.model)
        weights = {name: kept.constant(name) for name in kept.original.graph.constants}  # type: ignore[union-attr]
        found |= {name: Reference(tensor, "module") for name, tensor in weights.items() if tensor is not None}
    return found


def stand_ins(ran: Ran, program: Program, known: Mapping[str, Reference]) -> dict[str, str]:
    """For values that `known` does not have: the one that has their numbers, but for rounding.

    Args:
        ran: what ran.
        program: what it was made of.
        known: the references by the names of the exported graph's values.
    """
    graph = ran.graph
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
    numbers = {name: end for name, end in found.items() if end in known and _are_floats(ran.values.get(name))}
    return {**numbers, **_renamed(graph, program)}


def _casts(node: Node, graph: Graph) -> bool:
    """Whether a node changes the type of numbers alone: from one floating-point type to another, or on that way."""
    if node.op != "Cast":
        return node.op in _CASTS
    types = [graph.values[name].dtype or "" for name in (*node.inputs, *node.outputs) if name in graph.values]
    return all("float" in dtype for dtype in types)


def _are_floats(tensor: torch.Tensor | None) -> bool:
    return tensor is None or tensor.is_floating_point()


def _renamed(graph: Graph, program: Program) -> dict[str, str]:
    """Values that are called like one of the exported graph and are another.

    ONNX Runtime's tool takes a Relu out that the range of the integers does as well, and gives its value's name to what
    the Relu was given; no reference has the name "".
    """
    if program.original is None:
        return {}
    before = program.original.graph.producer
    return {
        name: ""
        for name, users in graph.consumers.items()
        if any(user.op == "QuantizeLinear" for user in users)
        and name in before
        and before[name].op in ("Relu", "Clip")
        and graph.producer[name].op != before[name].op
    }


def count_clipped(rows: Iterable[Row], ran: Ran, program: Program, references: Mapping[str, Reference]) -> list[Row]:
    """The rows, those of dequantised values with the elements counted that the integers clipped.

    An element is clipped if it is the first or the last of the integers, and should be beyond it by more than the half
    step that rounding takes anywhere.
    """
    found = []
    for row in rows:
        node, reference = ran.graph.producer.get(row.value), references.get(ran.same.get(row.value, row.value))
        difference = row.difference
        if node is not None and node.op == "DequantizeLinear" and difference and not difference.problem and reference:
            values = {name: ran.values.get(name, program.constant(name)) for name in node.reads}
            clipped = _clipped(node, values, reference.tensor)
            found.append(replace(row, difference=replace(difference, clipped=difference.clipped + clipped)))
        else:
            found.append(row)
    return found


def _clipped(node: Node, values: Mapping[str, torch.Tensor | None], reference: torch.Tensor) -> int:
    integers, scale, *rest = (values.get(name) for name in node.inputs)
    zero = rest[0] if rest else None
    if integers is None or scale is None or integers.dtype not in _ENDS or "block_size" in node.attributes:
        return 0
    axis = int(node.attributes.get("axis", 1))
    first, last = _ENDS[integers.dtype]
    shift = 0.0 if zero is None else _along(zero.double(), axis, reference)
    steps = reference.double() / _along(scale.double(), axis, reference) + shift
    low, high = (integers == first) & (steps < first - _HALF), (integers == last) & (steps > last + _HALF)
    return int((low | high).sum())


def _along(numbers: torch.Tensor, axis: int, like: torch.Tensor) -> torch.Tensor:
    """Numbers for each channel, so that they broadcast along `axis`."""
    if numbers.numel() == 1:
        return numbers.reshape(())
    shape = [1] * like.dim()
    shape[axis] = -1
    return numbers.reshape(shape)


_HALF = 0.5
_ENDS = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.uint16: (0, 65535),
}
