"""Refuses a program whose values have dimensions out of all proportion: a few nodes can ask for billions of them.

A `Gather` of a value by itself has nearly twice its dimensions, and a `Concat` of a shape with itself describes
twice as many. Shape inference, ONNX's and a runtime's, would write all of them down.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

_MOST = 1_000  # dimensions of a value
_MOST_RANKS = 5_000_000  # of all values together
_MOST_NUMBERS = 1_000_000  # in all shapes that are put together
_WRITTEN = 64  # numbers of a constant are looked at
_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})
_ONE_MORE = frozenset(
    {"OneHot", "LSTM", "GRU", "RNN", "AffineGrid", "ConcatFromSequence", "STFT", "StringSplit", "Scan", "Loop"}
)
_AS_MANY = frozenset(  # numbers as their first input, or fewer
    {
        *("Abs", "Cast", "CastLike", "Ceil", "Floor", "Flatten", "Identity", "Neg", "Not", "Reshape", "Round", "Slice"),
        *(
            "Squeeze",
            "Transpose",
            "Unsqueeze",
            "Split",
            "TopK",
            "Compress",
            "CumSum",
            "Clip",
            "ReduceProd",
            "ReduceMax",
        ),
        *("ReduceMin", "ReduceSum", "ArgMax", "ArgMin", "ScatterElements", "ScatterND"),
    }
)
_BY_ELEMENT = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "Less", "Max", "Min", "Mod", "Mul", "Or", "Sub", "Where"}
)


def check_ranks(graph: GraphProto) -> bool:
    """Refuse a graph with a value of more than 1,000 dimensions, or too many dimensions in all.

    Args:
        graph: in an order in which it can run, without functions.

    Returns:
        whether all shapes that its nodes read are known to be short; else some are of a computed length.

    Raises:
        ValueError: it has.
    """
    ranks = _Ranks()
    ranks.add(graph, 0)
    return ranks.are_known


class _Ranks:
    """For each value that was added, how many dimensions it has at most, and how many numbers, if that is known.

    Attributes:
        are_known: whether each shape that a node reads has a number of dimensions that is known.
    """

    def __init__(self) -> None:
        self.are_known = True
        self._ranks: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._written: dict[str, list[int]] = {}  # the numbers of small constants
        self._joined: set[str] = set()  # shapes that were put together
        self._sum = self._sum_joined = 0

    def add(self, graph: GraphProto, given: int) -> int:
        """Add a graph, and those inside its nodes; say how many dimensions its outputs have at most.

        Args:
            graph: the graph.
            given: the dimensions that its inputs have at most, where it does not say.
        """
        for tensor in graph.initializer:
            self._hold(tensor.name, tensor)
        for value in graph.input:
            said = value.type.tensor_type
            self._ranks.setdefault(value.name, len(said.shape.dim) if said.HasField("shape") else given)
            sizes = [dim.dim_value for dim in said.shape.dim if dim.HasField("dim_value")]
            if said.HasField("shape") and len(sizes) == len(said.shape.dim) and said.elem_type in _INTEGERS:
                self._numbers.setdefault(value.name, math.prod(sizes))
        for node in graph.node:
            self._add(node)
        return max((self._ranks.get(value.name, 0) for value in graph.output), default=0)

    def _hold(self, name: str, tensor: TensorProto) -> None:
        self._ranks[name] = len(tensor.dims)
        if tensor.data_type not in _INTEGERS:
            return
        self._numbers[name] = math.prod(tensor.dims)
        if self._numbers[name] <= _WRITTEN and tensor.data_location != TensorProto.EXTERNAL:
            self._written[name] = numpy_helper.to_array(tensor).reshape(-1).tolist()

    def _add(self, node: NodeProto) -> None:
        said = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant":
            self._add_constant(node, said)
            return
        most = max(map(self._rank, node.input), default=0)
        most = max([most, *(self.add(graph, most) for graph in _graphs(node))])
        rank = self._rank_of(node, most, said)
        if rank > _MOST:
            raise ValueError(f"{next(iter(node.output), node.op_type)!r:.80} would have more than {_MOST:,} dimensions")
        numbers = self._numbers_of(node, rank)
        is_joined = node.op_type == "Concat" or not self._joined.isdisjoint(node.input)
        for name in filter(None, node.output):
            self._ranks[name] = rank
            self._sum += rank
            if numbers is not None:
                self._numbers[name] = numbers
            if is_joined and numbers:
                self._joined.add(name)
                self._sum_joined += numbers
        for name in node.output if node.op_type == "Shape" else ():
            self._written[name] = [self._numbers[read] for read in node.input if self._is_row(read)]
        if self._sum > _MOST_RANKS or self._sum_joined > _MOST_NUMBERS:
            raise ValueError("its values would have millions of dimensions")

    def _add_constant(self, node: NodeProto, said: Mapping[str, AttributeProto]) -> None:
        for name in node.output:
            if "value" in said:
                self._hold(name, said["value"].t)
                continue
            numbers = [*said["value_ints"].ints] if "value_ints" in said else []
            numbers += [said["value_int"].i] if "value_int" in said else []
            self._ranks[name], self._numbers[name], self._written[name] = 1, len(numbers), numbers

    def _rank(self, name: str) -> int:
        return self._ranks.get(name, 0)

    def _rank_of(self, node: NodeProto, most: int, said: Mapping[str, AttributeProto]) -> int:
        """The dimensions of what a node makes at the most.

        Args:
            node: the node.
            most: the dimensions that what goes into it has at the most.
            said: its attributes by name.
        """
        op, read = node.op_type, [*node.input, "", ""]
        first, second = map(self._rank, read[:2])
        if op in {"Shape", "Size"}:
            return 1
        if op in {"Reshape", "Expand", "ConstantOfShape"}:
            length = self._length(read[0 if op == "ConstantOfShape" else 1])
            return max(length, first if op == "Expand" else 0)
        if op == "Gather":
            return max(first + second - 1, 0)
        if op == "GatherND":
            return first + second
        axes = [*said["axes"].ints] if "axes" in said else self._written.get(read[1], [])
        if op == "Unsqueeze":
            return first + (len(axes) if "axes" in said else self._length(read[1]))
        keeps = "keepdims" not in said or said["keepdims"].i
        if op == "Squeeze" or (op.startswith("Reduce") and not keeps):
            return max(most - _distinct(axes), 0)
        if op in {"ArgMax", "ArgMin"} and not keeps:
            return max(most - 1, 0)
        return most + (op in _ONE_MORE)

    def _is_row(self, name: str) -> bool:
        return self._rank(name) == 1 and name in self._numbers

    def _length(self, name: str) -> int:
        """How many numbers a shape has; 0 if that is not known."""
        if name not in self._numbers:
            self.are_known = False
        return self._numbers.get(name, 0)

    def _numbers_of(self, node: NodeProto, rank: int) -> int | None:
        """How many numbers a node makes at the most; None if that is not known."""
        op, read = node.op_type, [*node.input]
        if not read:
            return None
        counts = [self._numbers.get(name) for name in read]
        known = [count for count in counts if count is not None]
        if op == "Shape":
            return self._rank(read[0])
        if op == "Size":
            return 1
        if op in _AS_MANY:
            return counts[0]
        if len(known) < len(counts):
            return self._numbers_made(op, read, counts)
        if op == "Concat":
            return sum(known)
        if op == "Gather" and len(known) > 1:
            return known[1] if self._rank(read[0]) <= 1 else known[0] * known[1]
        if op in _BY_ELEMENT and rank <= 1:
            return max(known)
        return self._numbers_made(op, read, counts)

    def _numbers_made(self, op: str, read: Sequence[str], counts: Sequence[int | None]) -> int | None:
        """How many numbers a node makes whose constants say so."""
        written = [self._written.get(name) for name in read]
        first = counts[0] if counts else None
        if len(read) < 2:
            return math.prod(written[0]) if op == "ConstantOfShape" and written[0] else None
        if op == "Expand" and first is not None and written[1]:
            return first * max(1, math.prod(written[1]))
        if op == "Tile" and first is not None and written[1]:
            return first * math.prod(written[1])
        if op == "Pad" and first is not None and self._rank(read[0]) <= 1 and written[1]:
            return first + sum(written[1])
        if op == "Range" and len(written) == 3 and all(written):
            start, stop, step = (numbers[0] for numbers in written if numbers)
            return max(0, (stop - start) // (step or 1) + 1)
        return None


def _distinct(axes: Sequence[int]) -> int:
    """How many axes these are at the least: -1 may be one of the others."""
    return max(len({axis for axis in axes if axis >= 0}), len({axis for axis in axes if axis < 0}))


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g
