"""Draw random inputs for a program, of the dtypes and shapes that its graph declares."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from filch.export import Graph, Node, Value
from filch.steal import describe

from ..common._errors import CompareError

Shapes = Mapping[str, Sequence[int]]
_LEAST, _GREATEST = 1, 9  # of integers that are no indices
_PACKED = frozenset({"int2", "int4", "uint2", "uint4"})  # torch has their names, and no operation on them
_MOST = 2**28  # elements of an input, whose shape may be that of a file from somebody else


@dataclass(frozen=True)
class DrawnInputs:
    """Random inputs.

    Attributes:
        tensors: the inputs by name.
        note: how they were drawn, for the reader of a report.
    """

    tensors: dict[str, torch.Tensor]
    note: str


def draw_inputs(graph: Graph, *, seed: int = 0, shapes: Shapes | None = None) -> DrawnInputs:
    """Draw inputs for a graph.

    Floating-point numbers are normally distributed. Integers that index a dimension (token ids in an embedding) are
    drawn from its size, other ones from 1 to 9. Booleans, and inputs with `mask` in their names, are ones.

    Args:
        graph: an ONNX graph.
        seed: equal seeds give equal numbers.
        shapes: shapes of inputs, by name. Dynamic dimensions of the same name have the same size in all inputs; those
            without a size have 1.

    Raises:
        CompareError: a shape does not fit, or an input has no dtype, no known number of dimensions, or no numbers.
    """
    given = shapes or {}
    if unknown := [name for name in given if name not in graph.inputs]:
        raise CompareError(f"there is no input {unknown[0]!r}; the inputs are {', '.join(graph.inputs)}")
    generator = torch.Generator().manual_seed(seed)
    sizes = dict(item for name, shape in given.items() for item in _sizes(graph.values[name], shape))
    tensors, texts = {}, []
    for name in graph.inputs:
        value = graph.values[name]
        shape = given[name] if name in given else _shape(value, sizes)
        tensors[name], how = _draw(value, shape, _limit(graph, name), generator)
        texts.append(f"{name} ({describe(tensors[name])}, {how})")
    return DrawnInputs(tensors, f"the inputs were drawn with seed {seed}: {', '.join(texts) or 'there are none'}")


def _sizes(value: Value, shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield the names and sizes of the dynamic dimensions of an input of a given shape.

    Raises:
        CompareError: the input has another shape.
    """
    dims = [None] * len(shape) if value.shape is None else value.shape
    fits = len(dims) == len(shape) and all(size >= 0 for size in shape)
    if not fits or any(dim != size for dim, size in zip(dims, shape, strict=True) if isinstance(dim, int)):
        given = ", ".join(map(str, shape))
        raise CompareError(f"the program takes {value.name}: {value}, which can't have the shape [{given}]")
    for dim, size in zip(dims, shape, strict=True):
        if isinstance(dim, str):
            yield dim, size


def _shape(value: Value, sizes: Mapping[str, int]) -> list[int]:
    """Return the declared shape of an input, in which dynamic dimensions have the given sizes, or else 1."""
    if value.shape is None:
        raise CompareError(f"the program does not declare the shape of its input {value.name!r}: give it")
    return [dim if isinstance(dim, int) else _size(dim, sizes) for dim in value.shape]


def _size(dim: str | None, sizes: Mapping[str, int]) -> int:
    """Return the size of a dynamic dimension; one like `past + 1` is a sum."""
    terms = (dim or "?").split("+")
    return sum(int(term) if term.strip().isdecimal() else sizes.get(term.strip(), 1) for term in terms)


def _draw(
    value: Value, shape: Sequence[int], limit: int | None, generator: torch.Generator
) -> tuple[torch.Tensor, str]:
    """Return an input, and how it was drawn."""
    if min(shape, default=0) < 0 or math.prod(shape) > _MOST:
        dims = ", ".join(map(str, shape))
        raise CompareError(f"no input {value.name!r} of shape [{dims}] can be drawn: give its shape, or the inputs")
    dtype = getattr(torch, value.dtype or "", None)
    if not isinstance(dtype, torch.dtype) or dtype.is_complex or value.dtype in _PACKED:
        raise CompareError(f"no input {value.name!r} of type {value.dtype or 'unknown'} can be drawn: give the inputs")
    if dtype is torch.bool or "mask" in value.name.lower():
        return torch.ones([*shape], dtype=dtype), "ones"
    if dtype.is_floating_point:
        return torch.randn([*shape], generator=generator).to(dtype), "normally distributed"
    low, high = (_LEAST, _GREATEST + 1) if limit is None else (0, max(1, limit))
    numbers = torch.randint(low, high, [*shape], generator=generator).to(dtype)
    return numbers, f"from {low} to {high - 1}"


def _limit(graph: Graph, name: str) -> int | None:
    """Return the size of the smallest dimension that an input indexes; None if it is no index."""
    names = {name}  # of the input, and of what has its numbers in another order
    limits: list[int] = []
    for node in graph.nodes:
        if (node.operator.rearranges or node.operator.chooses) and node.inputs and node.inputs[0] in names:
            names.update(node.outputs[:1])
        if node.op in ("Gather", "GatherElements") and len(node.inputs) == 2 and node.inputs[1] in names:
            limits += _indexed_size(graph, node)
    return min(limits, default=None)


def _indexed_size(graph: Graph, node: Node) -> Iterator[int]:
    """Yield the size of the dimension that a node indexes, if it is known."""
    given, value = node.attributes.get("axis"), graph.values.get(node.inputs[0])
    axis = given if isinstance(given, int) else 0
    dims = () if value is None or value.shape is None else value.shape
    if -len(dims) <= axis < len(dims) and isinstance(size := dims[axis], int):
        yield size
