"""Refuse programs whose values would have too many dimensions; a few nodes can require billions of them.

A `Gather` of a value with itself as indices has nearly twice its dimensions, and a `Concat` of a shape with itself
describes twice as many. The shape inference of ONNX and of runtimes would store all of them.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from ..operators._bounds import KnownInputs, most_dimensions, most_elements
from ..operators._registry import operator_of
from ._graphs import subgraphs
from ._known_shapes import KnownShapes, vector

_MOST = 1_000  # dimensions of a value
_MOST_RANKS = 5_000_000  # of all values together
_MOST_NUMBERS = 1_000_000  # elements of all concatenated shapes together
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})


def check_ranks(graph: GraphProto, opsets: Mapping[str, int] = MappingProxyType({})) -> bool:
    """Refuse a graph with a value of more than 1,000 dimensions, or too many dimensions in total.

    Args:
        graph: the graph, sorted topologically and without function calls.
        opsets: the version of each set of operators, by domain; the newest of ONNX by default.

    Returns:
        whether the length of each shape that a node reads is known; otherwise, some lengths are computed.

    Raises:
        ValueError: the graph is refused.
    """
    known = KnownShapes(opsets)
    for value in graph.input:
        known.add_input(value)
    ranks = _Ranks(known)
    ranks.add(graph, 0)
    return ranks.are_known


class _Ranks:
    """Upper bounds for the number of dimensions and, if known, of elements of each value.

    Args:
        known: the shapes that are known; those of more values are added.

    Attributes:
        are_known: whether the length of each shape that a node reads is known.
    """

    def __init__(self, known: KnownShapes) -> None:
        self._known = known
        self.are_known = True
        self._ranks: dict[str, int] = {}  # upper bounds for the number of dimensions
        self._numbers: dict[str, int] = {}  # upper bounds for the number of elements
        self._shapes: dict[str, list[int]] = {}  # upper bounds for what `Shape` returns
        self._joined: set[str] = set()  # concatenated shapes
        self._sum = self._sum_joined = 0

    def add(self, graph: GraphProto, given: int) -> int:
        """Add a graph and its subgraphs; return the largest number of dimensions of its outputs.

        Args:
            graph: the graph.
            given: the largest number of dimensions of inputs without a declared shape.
        """
        for tensor in graph.initializer:
            self._add_tensor(tensor.name, tensor)
        for value in graph.input:
            declared = value.type.tensor_type
            self._ranks.setdefault(value.name, len(declared.shape.dim) if declared.HasField("shape") else given)
            sizes = [dim.dim_value for dim in declared.shape.dim if dim.HasField("dim_value")]
            if declared.HasField("shape") and len(sizes) == len(declared.shape.dim) and declared.elem_type in _INTEGERS:
                self._numbers.setdefault(value.name, math.prod(sizes))
        for node in graph.node:
            self._add(node)
        return max((self._ranks.get(value.name, 0) for value in graph.output), default=0)

    def _add_tensor(self, name: str, tensor: TensorProto) -> None:
        """Add a constant."""
        self._known.add_constant(name, tensor)
        self._ranks[name] = len(tensor.dims)
        if tensor.data_type in _INTEGERS:
            self._numbers[name] = math.prod(tensor.dims)

    def _add(self, node: NodeProto) -> None:
        """Add the values of a node; refuse a file whose values would have too many dimensions."""
        if node.op_type == "Constant":
            self._add_constant(node)
            return
        most = max(map(self._rank, node.input), default=0)
        known = self._known_inputs(node, max([most, *(self.add(graph, most) for graph in subgraphs(node))]))
        rank = most_dimensions(node.op_type, known)
        if rank > _MOST:
            raise ValueError(f"{next(iter(node.output), node.op_type)!r:.80} would have more than {_MOST:,} dimensions")
        numbers = most_elements(node.op_type, known, rank) if node.input else None
        is_joined = operator_of(node.op_type).kind == "cat" or not self._joined.isdisjoint(node.input)
        self._known.add_outputs(node)
        for name in filter(None, node.output):
            self._add_output(name, rank, numbers, is_joined=is_joined)
        for name in node.output if node.op_type == "Shape" else ():
            vectors = [read for read in node.input if self._rank(read) == 1]
            self._shapes[name] = [self._numbers[read] for read in vectors if read in self._numbers]
        if self._sum > _MOST_RANKS or self._sum_joined > _MOST_NUMBERS:
            raise ValueError("its values would have millions of dimensions")

    def _add_output(self, name: str, rank: int, numbers: int | None, *, is_joined: bool) -> None:
        """Add a value by these bounds, or by its shape if that is known."""
        shape = self._known.shape(name)
        rank, numbers = (rank, numbers) if shape is None else (len(shape), math.prod(shape))
        self._ranks[name] = rank
        self._sum += rank
        if numbers is not None:
            self._numbers[name] = numbers
        if is_joined and numbers:
            self._joined.add(name)
            self._sum_joined += 0 if shape is not None and rank > 1 else numbers  # only a vector may be a shape

    def _content(self, name: str) -> list[int]:
        """Return upper bounds for the elements of a constant or a shape; empty if they are not known."""
        content = self._known.content(name)
        return self._shapes.get(name, []) if content is None else content

    def _add_constant(self, node: NodeProto) -> None:
        """Add the value of a `Constant`."""
        tensors = [tensor for attribute in node.attribute if (tensor := _constant(attribute)) is not None]
        self._known.add_outputs(node)
        for name in node.output:
            self._ranks[name] = 1  # of a list, or less
            if tensors:
                self._add_tensor(name, tensors[0])

    def _rank(self, name: str) -> int:
        """Return the largest number of dimensions that a value can have; 0 if it is not known."""
        return self._ranks.get(name, 0)

    def _known_inputs(self, node: NodeProto, most: int) -> KnownInputs:
        """Return what is known of the inputs of a node; `most` is the largest number of dimensions of them."""
        attributes, read = {attribute.name: attribute for attribute in node.attribute}, [*node.input, "", ""]
        return KnownInputs(
            ranks=[*map(self._rank, read)],
            counts=[*map(self._numbers.get, read)],
            content=lambda index: self._content(read[index]),
            last=[shape[-1] if (shape := self._known.shape(name)) else None for name in read],
            length=lambda index: self._length(read[index]),
            most=most,
            axes=[*attributes["axes"].ints] if "axes" in attributes else None,
            keeps="keepdims" not in attributes or bool(attributes["keepdims"].i),
        )

    def _length(self, name: str) -> int:
        """Return the number of elements of a shape; 0 if it is not known, so that `are_known` becomes False."""
        if name not in self._numbers:
            self.are_known = False
        return self._numbers.get(name, 0)


def _constant(attribute: AttributeProto) -> TensorProto | None:
    """Return the tensor that an attribute of a `Constant` gives; None for one of another form, as `value_float`."""
    if attribute.name == "value_int":
        return helper.make_tensor("", TensorProto.INT64, [], [attribute.i])
    return {"value": attribute.t, "value_ints": vector(attribute.ints)}.get(attribute.name)
