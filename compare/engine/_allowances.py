"""How large the numbers are whose rounding explains a difference, by what a node computes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import torch

from filch.export import Node

from ..metrics._metrics import typical_magnitude

Values = Mapping[str, torch.Tensor]


class Allowances:
    """Says of each value of a run how large the numbers are that its rounding is relative to.

    A node that adds numbers rounds them before they cancel: its result may be off by the rounding of what it reads,
    times the constants that the sum is multiplied by in the same node. A node that only multiplies, moves or chooses
    numbers is off by the rounding of its result alone, or by as much more as what it reads was allowed to be.

    Args:
        computes: gives the exported nodes that a node computes, in order.
        known_as: gives the exported graph's name of a value.
        constant: gives the numbers of a constant of the exported graph by its name; None of anything else.
    """

    def __init__(
        self,
        computes: Callable[[Node], Sequence[Node]],
        exported_name: Callable[[str], str],
        constant: Callable[[str], torch.Tensor | None],
    ) -> None:
        self._computes, self._known_as = computes, exported_name
        self._size = cache(lambda name: None if (held := constant(name)) is None else typical_magnitude(held))
        self._growth: dict[str, float] = {}

    def magnitude(self, name: str, node: Node, live: Values, expected: torch.Tensor, actual: torch.Tensor) -> float:
        """The magnitude that the rounding of a value is relative to; to be asked where the value is off by more.

        Only where expected and actual differ, as far as an input's elements can be told to go there: a mask of -3.4e38
        is the same in both, and would explain any difference beside it. An addition rounds each element by itself:
        there, only those count that cancel, so that a mask of -1e4 does not explain a difference beside it.

        Args:
            name: of the value.
            node: what made it.
            live: the values that the node reads, by name; weights may be missing.
            expected: what the value should be.
            actual: what it is, of the same shape.
        """
        if not (expected.is_floating_point() or expected.is_complex()):
            return 0.0  # it is exact: a comparison or an integer hands no rounding on
        expected, nodes = expected.to(actual.device), self._computes(node)
        differs = expected != actual.to(expected.dtype)
        result = typical_magnitude(expected[differs])
        given = {item: live[item] for item in node.reads if _is_float(live.get(item))}
        if all(_plain(item.op) in _ADDITIONS for item in nodes):
            differs &= _cancels(expected, given.values())
        read = {item: _there(tensor, differs) for item, tensor in given.items()}
        steepness = max([1.0, *read.values()]) if any(_plain(item.op) in _EXPONENTIAL for item in nodes) else 1.0
        growth = max((self._growth.get(item, 1.0) for item in node.reads), default=1.0)
        factors = self._factors(self._known_as(name), nodes)
        most = max(factors.values(), default=0.0)
        sums = (size * factors.get(self._known_as(item), most) for item, size in read.items())
        found = max(result * steepness * growth, *sums, 0.0)
        self._growth[name] = max(1.0, found / result) if result else 1.0
        return found

    def _factors(self, end: str, nodes: Sequence[Node]) -> dict[str, float]:
        """By what constants the values that go into a sum are multiplied on their way to a result; 0 without a sum.

        Args:
            end: the name of the result.
            nodes: what is computed together.
        """
        made = {name for node in nodes for name in node.outputs}
        plain: dict[str, float] = {}
        summed: dict[str, float] = {}
        for node in reversed(nodes):
            leaves = end in node.outputs or (end not in made and node is nodes[-1])
            through = max([plain.get(name, 0.0) for name in node.outputs] + [float(leaves)])
            added = max(summed.get(name, 0.0) for name in node.outputs)
            added = added if _plain(node.op) in _RELATIVE else max(added, through)
            times = self._times(node)
            for name in node.reads:
                plain[name] = max(plain.get(name, 0.0), through * times)
                summed[name] = max(summed.get(name, 0.0), added * times)
        return summed

    def _times(self, node: Node) -> float:
        """The size of the constant that a node multiplies by; 1 if there is none."""
        if node.op == "Div":
            return 1 / (self._size(node.inputs[1]) or 1.0)
        sizes = map(self._size, node.inputs) if node.op == "Mul" else ()
        return next((size for size in sizes if size), 1.0)


def adds(operators: Iterable[str]) -> bool:
    """Whether some of these operators add numbers, as far as their names tell."""
    return any(_plain(op) not in _RELATIVE for op in operators)


def _plain(op: str) -> str:
    """The operator without its domain, and without its overload: `aten.mul.Tensor` is `mul`."""
    return op.split(".")[1] if op.startswith("aten.") else op.rpartition("::")[2]


def _is_float(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point()


def _cancels(expected: torch.Tensor, read: Iterable[torch.Tensor]) -> torch.Tensor:
    """Where the result of an addition is less than half as large as what goes into it."""
    size = expected.abs().double()
    found = torch.zeros(expected.shape, dtype=torch.bool, device=expected.device)
    for tensor in read:
        if _broadcasts(tensor, expected):
            found |= tensor.to(expected.device).abs().double() > 2 * size
    return found


def _broadcasts(tensor: torch.Tensor, to: torch.Tensor) -> bool:
    pairs = zip(reversed(tensor.shape), reversed(to.shape), strict=False)
    return tensor.dim() <= to.dim() and all(size in (1, wanted) for size, wanted in pairs)


def _there(tensor: torch.Tensor, differs: torch.Tensor) -> float:
    """The magnitude of what goes to the elements that differ; of the whole tensor, where that can't be told."""
    there = tensor.to(differs.device).expand(differs.shape)[differs] if _broadcasts(tensor, differs) else tensor
    return typical_magnitude(there)


# The rounding of what these read is off by as many times more in what they make as that is large.
_EXPONENTIAL = frozenset({"Exp", "Pow", "Sigmoid", "Softmax", "Swish", "exp", "pow", "sigmoid", "silu", "softmax"})
_ADDITIONS = frozenset({"Add", "Sub", "Sum", "add", "add_", "sub", "sub_", "rsub"})
_PRODUCTS = frozenset(
    {
        *("Abs", "Div", "Mul", "Neg", "Reciprocal", "Sqrt"),
        *("abs", "div", "mul", "neg", "reciprocal", "rsqrt", "sqrt", "square", "truediv"),
    }
)
_ACTIVATIONS = frozenset(
    {
        *("Erf", "LeakyRelu", "PRelu", "Relu", "Tanh", "ThresholdedRelu"),
        *("erf", "leaky_relu", "prelu", "relu", "tanh"),
    }
)
_CHOICES = frozenset(
    {
        *("Clip", "Dropout", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "TopK", "Where"),
        *("amax", "amin", "clamp", "clamp_max", "clamp_min", "dropout", "masked_fill", "max_pool2d", "maximum"),
        *("minimum", "topk", "where"),
    }
)
_MOVES = frozenset(
    {
        *(
            "Cast",
            "CastLike",
            "Concat",
            "DepthToSpace",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "Pad",
        ),
        *("Reshape", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"),
        *("ReorderInput", "ReorderOutput", "Trilu", "Unsqueeze"),
        *(
            "_to_copy",
            "alias",
            "cat",
            "chunk",
            "clone",
            "constant_pad_nd",
            "contiguous",
            "embedding",
            "expand",
            "flatten",
        ),
        *("gather", "getitem", "index", "index_put", "index_select", "masked_scatter", "pad", "permute", "repeat"),
        *("reshape", "scatter", "select", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes"),
        *("squeeze", "stack", "t", "transpose", "tril", "triu", "unbind", "unsqueeze", "view"),
    }
)
_RELATIVE = _EXPONENTIAL | _PRODUCTS | _ACTIVATIONS | _CHOICES | _MOVES
