"""The factors and summands that norms become when they are folded into the layer before or after them."""

from collections.abc import Iterator, Mapping
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

    The summand is that of the layer before it with the batch norm: it has the factor times the bias of that layer. A
    linear layer after a layer norm has a summand, too: the weight times the bias of the norm, plus its own bias.
    """
    found = dict(_summands_after_norms(execution))
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


def _summands_after_norms(execution: Execution) -> Iterator[tuple[str, FoldedVector]]:
    """Yield the biases that linear layers get if the bias of the layer norm before them is folded into them."""
    shifts = {}
    for node in execution.graph.nodes:
        vectors, matrices = _weights_of(execution, node, 1), _weights_of(execution, node, 2)
        if family(node) == "layer_norm" and len(vectors) == 2:  # gain and bias
            shifts[node.outputs[0]] = vectors[1]
        norms = {execution.roots[read] for read in node.reads} & shifts.keys()
        if family(node) != "matmul" or len(matrices) != 1 or len(norms) != 1:
            continue
        shift, weight = shifts[norms.pop()], execution.weights[matrices[0]].double()
        size = _last_size(execution, node)
        for matrix in (weight, weight.T):
            if matrix.shape == (size, len(execution.weights[shift])):
                summand = matrix @ execution.weights[shift].double()
                biases = [name for name in vectors if len(execution.weights[name]) == size]
                for name in biases:
                    summand += execution.weights[name].double()
                label = f"{matrices[0].rpartition('.')[0] or matrices[0]} (summand of the norm before it)"
                yield label, FoldedVector(summand, (shift, *biases))
                break


def _weights_of(execution: Execution, node: Node, dims: int) -> list[str]:
    """Return the names of the weights with a number of dimensions that a node reads."""
    names = [execution.roots[read] for read in node.reads]
    return [name for name in names if name in execution.weights and execution.weights[name].dim() == dims]


def _last_size(execution: Execution, node: Node) -> object:
    shape = execution.graph.values[node.outputs[0]].shape
    return shape[-1] if shape else None


def _bias_before(execution: Execution, node: Node, channels: int) -> str | None:
    """Return the bias of the layer whose result a node reads; None if it has none."""
    producer = execution.graph.producer.get(node.reads[0])
    reads = () if producer is None else producer.reads
    biases = (name for name in reads if name in execution.weights and execution.weights[name].shape == (channels,))
    return next(biases, None)
