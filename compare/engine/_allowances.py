"""The magnitudes that rounding errors are relative to, depending on what a node computes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import torch

from filch.export import Node

from ..metrics._metrics import typical_magnitude

Values = Mapping[str, torch.Tensor]


class Allowances:
    """Compute for each value of a run the magnitude that its rounding error is relative to.

    A node that adds numbers rounds them before they cancel: the error of its result is relative to its inputs, times
    the constants by which the same node multiplies the sum. The error of a node that only multiplies, moves or selects
    numbers is relative to its result, and grows by the factor by which the allowance of its inputs exceeds theirs.

    Args:
        computes: returns the exported nodes that a node computes, in order.
        exported_name: returns the name that a value has in the exported graph.
        constant: returns a constant of the exported graph by its name; None for any other value.
    """

    def __init__(
        self,
        computes: Callable[[Node], Sequence[Node]],
        exported_name: Callable[[str], str],
        constant: Callable[[str], torch.Tensor | None],
    ) -> None:
        self._computes, self._exported_name = computes, exported_name
        self._constant_size = cache(
            lambda name: None if (tensor := constant(name)) is None else typical_magnitude(tensor)
        )
        self._growth: dict[str, float] = {}

    def magnitude(self, name: str, node: Node, values: Values, actual: torch.Tensor, expected: torch.Tensor) -> float:
        """Return the magnitude that the rounding error of a value that differs is relative to (see `compare_tensors`).

        Only elements that differ count, and the elements of inputs that broadcast to them: a mask of -3.4e38, equal in
        both, would explain any difference elsewhere. Additions round each element separately: only elements that
        cancel count, so that a mask of -1e4 does not explain a difference elsewhere.
        """
        if not (expected.is_floating_point() or expected.is_complex()):
            return 0.0  # Boolean and integer results have no rounding error
        expected, nodes = expected.to(actual.device), self._computes(node)
        differs = expected != actual.to(expected.dtype)
        result = typical_magnitude(expected[differs])
        inputs = {item: values[item] for item in node.reads if item in values and values[item].is_floating_point()}
        if all(item.operator.rounding == "addition" for item in nodes):
            differs &= _cancels(expected, inputs.values())
        sizes = {item: _magnitude_where(tensor, differs) for item, tensor in inputs.items()}
        is_exponential = any(item.operator.rounding == "exponential" for item in nodes)
        steepness = max([1.0, *sizes.values()]) if is_exponential else 1.0  # exp(x) has x times the relative error of x
        growth = max((self._growth.get(item, 1.0) for item in node.reads), default=1.0)
        factors = self._factors(self._exported_name(name), nodes)
        largest = max(factors.values(), default=0.0)
        # What none of the nodes reads under this name gets the largest factor.
        sums = (size * factors.get(self._exported_name(item), largest) for item, size in sizes.items())
        magnitude = max(result * steepness * growth, *sums, 0.0)
        self._growth[name] = max(1.0, magnitude / result) if result else 1.0
        return magnitude

    def _factors(self, end: str, nodes: Sequence[Node]) -> dict[str, float]:
        """Return the constants by which the operands of sums are multiplied on the way to a result; 0 without a sum.

        Args:
            end: the name of the result.
            nodes: the nodes that are computed together.
        """
        outputs = {name for node in nodes for name in node.outputs}
        # The product of the constants between a value and the result, if no node between them adds, and if one does.
        without_sum: dict[str, float] = {}
        with_sum: dict[str, float] = {}
        for node in reversed(nodes):
            # A value that only the compiled graph has is what the last node computes.
            is_last = end in node.outputs or (end not in outputs and node is nodes[-1])
            factor = max([without_sum.get(name, 0.0) for name in node.outputs] + [float(is_last)])
            sum_factor = max(with_sum.get(name, 0.0) for name in node.outputs)
            if node.operator.adds:
                sum_factor = max(sum_factor, factor)
            constant = self._constant_factor(node)
            for name in node.reads:
                without_sum[name] = max(without_sum.get(name, 0.0), factor * constant)
                with_sum[name] = max(with_sum.get(name, 0.0), sum_factor * constant)
        return with_sum

    def _constant_factor(self, node: Node) -> float:
        """Return the magnitude of the constant that a node multiplies by; 1 if there is none."""
        if node.operator.neutral != 1 or node.operator.rounding != "relative":  # neither a product nor a quotient
            return 1.0
        names = ("arg0", "arg1", "other") if node.operator.commutes else ("arg1", "other")  # of PyTorch: no inputs
        given = map(node.attributes.get, names)
        numbers = [abs(float(number)) for number in given if isinstance(number, int | float)]
        sizes = [*map(self._constant_size, node.inputs), *numbers]
        if not node.operator.commutes:  # a division
            divisor = sizes[-1] if len(sizes) > 1 else None
            return 1 / divisor if divisor and math.isfinite(divisor) else 1.0
        return next((size for size in sizes if size), 1.0)


def _cancels(expected: torch.Tensor, read: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return where the result of an addition is less than half as large as one of its operands."""
    size = expected.abs().double()
    cancels = torch.zeros(expected.shape, dtype=torch.bool, device=expected.device)
    for tensor in read:
        if _broadcasts(tensor, expected):
            cancels |= tensor.to(expected.device).abs().double() > 2 * size
    return cancels


def _broadcasts(tensor: torch.Tensor, to: torch.Tensor) -> bool:
    """Return whether a tensor can be expanded to the shape of another one."""
    pairs = zip(reversed(tensor.shape), reversed(to.shape), strict=False)
    return tensor.dim() <= to.dim() and all(size in (1, wanted) for size, wanted in pairs)


def _magnitude_where(tensor: torch.Tensor, differs: torch.Tensor) -> float:
    """Return the magnitude of the elements that broadcast to differing ones; of all if the shapes don't broadcast."""
    selected = tensor.to(differs.device).expand(differs.shape)[differs] if _broadcasts(tensor, differs) else tensor
    return typical_magnitude(selected)
