"""The products that may round an operand by definition, and what they read then."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from filch.export import Graph, Node

from ..metrics._tolerance import operand_unit

_DTYPES = {2: torch.float16, 3: torch.bfloat16}  # by `accuracy_level`
_INT8 = 4
_LARGEST = 127


class RoundedOperands:
    """Finds the products of a run that may round an operand, and what is computed from their results.

    Args:
        computes: returns the nodes of the exported graph that a node of the run computes.
        original: the graph as the model was exported, by the names of the exported graph; None if it is not known.
        lower_precision: whether nodes may round an operand that the model does not.
    """

    def __init__(
        self, computes: Callable[[Node], Sequence[Node]], original: Graph | None, *, lower_precision: bool
    ) -> None:
        self._computes, self._lower_precision = computes, lower_precision
        self._producers = {} if original is None else original.producer
        self._affected: set[str] = set()

    def own_unit(self, node: Node) -> float:
        """Return the relative unit to which a node may round an operand: not more coarsely than the model's does."""
        if self._lower_precision:
            return max(map(operand_unit, self._computes(node)), default=0.0)
        return max((min(operand_unit(item), self._model_unit(item)) for item in self._computes(node)), default=0.0)

    def model_unit(self, node: Node) -> float:
        """Return the unit to which the model itself may round an operand of what a node computes."""
        return max(map(self._model_unit, self._computes(node)), default=0.0)

    def _model_unit(self, node: Node) -> float:
        own = (self._producers.get(name) for name in node.outputs)
        return max((operand_unit(item) for item in own if item is not None), default=0.0)

    def record_output(self, node: Node, name: str) -> None:
        """Record that a node computes a value, in the order of execution."""
        if self.own_unit(node) or not self._affected.isdisjoint(node.reads):
            self._affected.add(name)

    def affect(self, name: str) -> bool:
        """Return whether a value is the result of such a product, or computed from one."""
        return name in self._affected

    def read_by(self, node: Node) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
        """Yield the name of each operand that a node may round, in the exported graph, and the function that does."""
        for item in self._computes(node) if self.own_unit(node) else ():
            if operand_unit(item):
                yield item.inputs[0], partial(rounded_operand, item)


def rounded_operand(node: Node, operand: torch.Tensor) -> torch.Tensor:
    """Return an operand as a product reads it whose `accuracy_level` lets it round.

    Eight bits are those of ONNX Runtime: steps of a 127th of the largest number in each block of a row.

    Args:
        node: the product, a `MatMulNBits`.
        operand: floating-point, of any shape.
    """
    level = int(node.attributes["accuracy_level"])
    if level != _INT8:
        return operand.to(_DTYPES[level]).to(operand.dtype)
    count, block = operand.shape[-1], int(node.attributes["block_size"])
    blocks = torch.nn.functional.pad(operand.float(), (0, -count % block)).reshape(*operand.shape[:-1], -1, block)
    step = blocks.abs().amax(-1, keepdim=True) / _LARGEST
    whole = (blocks * torch.where(step > 0, 1 / step, 0.0)).round()
    rounded: torch.Tensor = (whole.double() * step).flatten(-2)[..., :count]
    return rounded
