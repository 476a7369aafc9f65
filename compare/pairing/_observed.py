"""A program and the values of one run of it."""

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from filch.export import Graph, Node

from ..metrics._metrics import bytes_of
from ._quantized import quantized_weight


@dataclass(frozen=True, eq=False)
class Observed:
    """A program and the values of one run of it.

    Attributes:
        graph: the graph.
        values: its inputs and the values that its nodes have computed, by name.
        weight: returns a weight by its name.
    """

    graph: Graph
    values: Mapping[str, torch.Tensor]
    weight: Callable[[str], torch.Tensor | None]

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return a value or weight by its name; None if it is not known."""
        return self.values[name] if name in self.values else self.weight(name)

    @cached_property
    def constants(self) -> Mapping[str, Hashable]:
        """What identifies each value that does not depend on the inputs, by its name: dtype, shape and numbers."""
        return {name: self._content(name) for name in self.graph.known & self.graph.constant_values}

    def _content(self, name: str) -> Hashable:
        """Return what identifies a constant: its name if its numbers are not known."""
        tensor = self.tensor(name)
        return name if tensor is None else _identity(tensor)

    @cached_property
    def weights(self) -> Mapping[str, Hashable]:
        """What identifies the weight of each node, a floating-point constant of several numbers, by its node's name."""
        found = {node.name: self._weight_identity(node) for node in self.graph.nodes}
        return {name: identity for name, identity in found.items() if identity is not None}

    def _weight_identity(self, node: Node) -> Hashable | None:
        """Return what identifies the weight that a node reads; None if it reads none."""
        if (quantized := quantized_weight(node, self.tensor)) is not None:
            return _identity(quantized.numbers)
        name = self._weight_name(node)
        return None if name is None else self.constants[name]

    def weight_of(self, node: Node) -> torch.Tensor | None:
        """Return the weight that a node reads, None if it reads none; a quantized one as what it stands for."""
        if (quantized := quantized_weight(node, self.tensor)) is not None:
            return quantized.numbers
        name = self._weight_name(node)
        return None if name is None else self.tensor(name)

    def _weight_name(self, node: Node) -> str | None:
        """Return the first floating-point constant with several numbers that a node reads; None if it reads none."""
        for name in node.reads:
            tensor = self.tensor(name) if name in self.constants else None
            if tensor is not None and tensor.is_floating_point() and tensor.numel() > 1:
                return name
        return None

    def source(self, name: str) -> str:
        """Return the value whose numbers a value has, without casts of floating-point numbers and `Identity`."""
        while (node := self.graph.producer.get(name)) is not None and self._only_casts(node):
            name = node.inputs[0]
        return name

    def _only_casts(self, node: Node) -> bool:
        """Whether a node returns the numbers that it reads, as floating-point numbers of any dtype."""
        tensors = [self.tensor(name) for name in (*node.inputs, *node.outputs)]
        floats = all(tensor is not None and tensor.is_floating_point() for tensor in tensors)
        return node.op == "Identity" or (node.operator.movement == "cast" and floats)

    def attributes(self, node: Node) -> Mapping[str, object]:
        """Return the attributes of a node that tell it from others of its operator: not `to`, the dtype of a cast."""
        return {name: value for name, value in node.attributes.items() if name != "to"}


def _identity(tensor: torch.Tensor) -> Hashable:
    """Return what identifies a tensor: dtype, shape and a hash of its numbers."""
    return tensor.dtype, tensor.shape, hashlib.sha256(bytes_of(tensor.cpu()).numpy().data).digest()
