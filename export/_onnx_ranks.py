"""Refuses a program whose values have dimensions out of all proportion: a few nodes can ask for billions of them.

A `Gather` of a value by itself has nearly twice its dimensions, and a `Concat` of a shape with itself describes
twice as many. Shape inference, ONNX's and a runtime's, would write all of them down.
"""

import math
from collections.abc import Iterator, Sequence

from onnx import GraphProto, NodeProto, TensorProto

_MOST = 1_000  # dimensions of a value
_MOST_RANKS = 5_000_000  # of all values together
_MOST_NUMBERS = 1_000_000  # in all shapes that are put together
_ONE_MORE = frozenset(
    {"OneHot", "LSTM", "GRU", "RNN", "AffineGrid", "ConcatFromSequence", "STFT", "StringSplit", "Scan", "Loop"}
)
_TO_SHAPE = frozenset({"Reshape", "Expand", "ConstantOfShape"})
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})


def check_ranks(graph: GraphProto) -> None:
    """Refuse a graph with a value of more than 1,000 dimensions, or too many dimensions in all.

    Args:
        graph: in an order in which it can run, without functions.

    Raises:
        ValueError: it has.
    """
    _Ranks().add(graph, 0)


class _Ranks:
    """For each value that was added, how many dimensions it has at most, and how many numbers, if it may be a shape."""

    def __init__(self) -> None:
        self._ranks: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._joined: set[str] = set()  # shapes that were put together
        self._sum = self._sum_joined = 0

    def add(self, graph: GraphProto, given: int) -> int:
        """Add a graph, and those inside its nodes; say how many dimensions its outputs have at most.

        Args:
            graph: the graph.
            given: the dimensions that its inputs have at most, where it does not say.
        """
        for tensor in graph.initializer:
            self._ranks[tensor.name], self._numbers[tensor.name] = _of_tensor(tensor)
        for value in graph.input:
            said = value.type.tensor_type
            self._ranks.setdefault(value.name, len(said.shape.dim) if said.HasField("shape") else given)
        for node in graph.node:
            self._add(node)
        return max((self._ranks.get(value.name, 0) for value in graph.output), default=0)

    def _add(self, node: NodeProto) -> None:
        given = max(map(self._rank, node.input), default=0)
        inner = max((self.add(graph, given) for graph in _graphs(node)), default=0)
        rank, numbers = self._of(node, max(given, inner))
        if rank > _MOST:
            raise ValueError(f"{node.output[0]!r:.80} would have more than {_MOST:,} dimensions")
        is_joined = node.op_type == "Concat" or not self._joined.isdisjoint(node.input)
        for name in filter(None, node.output):
            self._ranks[name], self._numbers[name] = rank, numbers
            self._sum += rank
            if is_joined and numbers:
                self._joined.add(name)
                self._sum_joined += numbers
        if self._sum > _MOST_RANKS or self._sum_joined > _MOST_NUMBERS:
            raise ValueError("its values would have millions of dimensions")

    def _rank(self, name: str) -> int:
        return self._ranks.get(name, 0)

    def _of(self, node: NodeProto, most: int) -> tuple[int, int]:
        """The dimensions and numbers of what a node makes.

        Args:
            node: the node.
            most: the dimensions that what goes into it has at most.
        """
        op, read = node.op_type, [*node.input, "", ""]
        first, second = map(self._rank, read[:2])
        counts = [self._numbers.get(name, 0) for name in read]
        if op == "Constant":
            return _of_constant(node)
        if op in {"Shape", "Size"}:
            return 1, first
        if op in _TO_SHAPE:
            shape = counts[0 if op == "ConstantOfShape" else 1]
            return max(shape, first if op == "Expand" else 0) or most, 0
        if op == "Gather":
            return max(first + second - 1, 0), counts[1] or counts[0]
        if op == "GatherND":
            return first + second, 0
        rank = most + (op in _ONE_MORE) + self._more(node, counts)
        return max(rank, 0), sum(counts) if op == "Concat" else max(counts) if rank <= 1 else 0

    def _more(self, node: NodeProto, counts: Sequence[int]) -> int:
        """How many dimensions more than it reads what a node makes has."""
        said = {attribute.name: attribute for attribute in node.attribute}
        axes = len(said["axes"].ints) if "axes" in said else counts[1]
        if node.op_type == "Unsqueeze":
            return axes
        keeps = "keepdims" not in said or said["keepdims"].i
        if node.op_type == "Squeeze" or (node.op_type.startswith("Reduce") and not keeps):
            return -axes
        return -1 if node.op_type in {"ArgMax", "ArgMin"} and not keeps else 0


def _of_tensor(tensor: TensorProto) -> tuple[int, int]:
    """Its dimensions and numbers, if these may be those of a shape."""
    is_shape = tensor.data_type in _INTEGERS and len(tensor.dims) <= 1
    return len(tensor.dims), math.prod(tensor.dims) if is_shape else 0


def _of_constant(node: NodeProto) -> tuple[int, int]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            return _of_tensor(attribute.t)
        if attribute.name == "value_ints":
            return 1, len(attribute.ints)
    return 1, 1


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g
