"""The factors and summands that batch norms become when they are folded into the layer before them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from filch.export import Node

from ._execution import Execution
from ._operators import family


@dataclass(frozen=True)
class FoldedVector:
    """A vector that is computed from weights.

    Attributes:
        vector: float64 in the shape [channels].
        sources: the names of the weights.
    """

    vector: torch.Tensor
    sources: tuple[str, ...]


def folded_vectors(execution: Execution) -> Mapping[str, FoldedVector]:
    """Return the factor and the summand of each batch norm in inference, by what they are called.

    The summand is that of the layer before it with the batch norm: it has the factor times the bias of that layer.
    """
    found = {}
    for node in execution.graph.nodes:
        names = [execution.roots[read] for read in node.reads]
        weights = [name for name in names[1:5] if name in execution.weights]
        epsilon = node.attributes.get("eps", node.attributes.get("epsilon"))
        if family(node) != "batch_norm" or len(weights) != 4 or not isinstance(epsilon, float):
            continue
        gain, shift, mean, variance = (execution.weights[name].double() for name in weights)
        factor = gain / (variance + epsilon).sqrt()
        bias = _bias_before(execution, node, len(factor))
        before = execution.weights[bias].double() if bias else torch.zeros_like(factor)
        norm = weights[0].rpartition(".")[0]
        found[f"{norm} (factor)"] = FoldedVector(factor, (weights[0], weights[3]))
        sources = (*weights, *filter(None, [bias]))
        found[f"{norm} (summand)"] = FoldedVector((before - mean) * factor + shift, sources)
    return found


def _bias_before(execution: Execution, node: Node, channels: int) -> str | None:
    """Return the bias of the layer whose result a node reads; None if it has none."""
    producer = execution.graph.producer.get(node.reads[0])
    reads = () if producer is None else producer.reads
    biases = (name for name in reads if name in execution.weights and execution.weights[name].shape == (channels,))
    return next(biases, None)
