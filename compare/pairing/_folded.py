"""What weights become when they are folded into others: norms into the layer next to them, two layers into one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from filch.export import Node

from ..runs._execution import Execution, moved_value


@dataclass(frozen=True)
class FoldedWeight:
    """A vector or a matrix that is computed from weights.

    Attributes:
        tensor: float64 in the shape [channels] or [outputs, inputs].
        sources: the names of the weights.
    """

    tensor: torch.Tensor
    sources: tuple[str, ...]


def folded_weights(execution: Execution) -> Mapping[str, FoldedWeight]:
    """Return what weights become if they are folded into others, by a name made of theirs, such as `bn1 (factor)`.

    In inference, a batch norm is `(y - mean) * factor + shift` with `factor = gain / sqrt(variance + epsilon)`. Folded
    into the layer before it, `y = W x + bias`, it becomes a factor of `W` and the summand
    `shift - (mean - bias) * factor`. The bias of a layer norm, times the weight of the linear layer after it, becomes a
    summand of that. Linear layers without a function in between become their product, and a summand.
    """
    products = dict(_products(execution))
    folded = {**dict(_summands_after_norms(execution)), **products}
    for node in execution.graph.nodes:
        names = [execution.roots[read] for read in node.reads]
        weights = [name for name in names[1:5] if name in execution.weights]  # gain, shift, mean, variance
        epsilon = node.attributes.get("eps", node.attributes.get("epsilon"))
        if node.operator.kind != "batch_norm" or len(weights) != 4 or not isinstance(epsilon, float):
            continue
        gain, shift, mean, variance = (execution.weights[name].double() for name in weights)
        factor = gain / (variance + epsilon).sqrt()
        layer_before = execution.graph.producer.get(node.reads[0])
        bias = products.get(_summand_of(layer_before)) or _bias_before(execution, node)
        offset = mean if bias is None or bias.tensor.shape != mean.shape else mean - bias.tensor
        norm = weights[0].rpartition(".")[0]
        folded[f"{norm} (factor)"] = FoldedWeight(factor, (weights[0], weights[3]))
        sources = (*weights, *(() if bias is None else bias.sources))
        folded[f"{norm} (summand)"] = FoldedWeight(shift - offset * factor, sources)
    return folded


def _products(execution: Execution) -> Iterator[tuple[str, FoldedWeight]]:
    """Yield what each linear layer becomes if the linear layers before it are folded into it: weights and a summand.

    The layer may read a concatenation of their results: then each of them has a product with a part of its columns.
    """
    linear = {node.name: layer for node in execution.graph.nodes if (layer := _layer_of(execution, node)) is not None}
    for node in (item for item in execution.graph.nodes if item.name in linear):
        name, matrix, biases = linear[node.name]
        data = [read for read in node.reads if execution.roots[read] not in execution.weights]
        most = matrix.shape[1] + 1  # no more layers than columns can be concatenated
        before = [*islice(_layers_before(execution, data[0]), most)] if len(data) == 1 else []
        layers = [linear[producer] for producer, _ in before if producer in linear]
        sizes = [len(layer[1]) for layer in layers]
        if not before or len(layers) < len(before) or sum(sizes) != matrix.shape[1]:
            continue
        summands, sources = [execution.weights[bias].double() for bias in biases], [*biases]
        parts = torch.split(matrix.double(), sizes, 1)
        for (earlier, factor, vectors), (_, added), part in zip(layers, before, parts, strict=True):
            yield f"{name} of {earlier}", FoldedWeight(part @ factor.double(), (name, earlier))
            fitting = [bias for bias in (*vectors, *added) if len(execution.weights[bias]) == len(factor)]
            summands += [part @ execution.weights[bias].double() for bias in fitting]
            sources += [name, *fitting]
        if summands:
            yield _summand_of(node), FoldedWeight(sum(summands[1:], summands[0]), tuple(dict.fromkeys(sources)))


def _summand_of(node: Node | None) -> str:
    """Return what the summand is called that a linear layer gets from those before it."""
    return "" if node is None else f"{node.module or node.name} (summand)"


def _layer_of(execution: Execution, node: Node) -> tuple[str, torch.Tensor, list[str]] | None:
    """Return the weight of a linear layer, its name and a view of it in the shape [outputs, inputs], and the biases."""
    names = [name for name in dict.fromkeys(map(execution.roots.__getitem__, node.reads)) if name in execution.weights]
    weights = [name for name in names if execution.weights[name].dim() > 1]
    if not node.operator.is_linear or len(weights) != 1:
        return None
    weight = execution.weights[weights[0]]
    is_kernel = node.operator.kind == "convolution"
    if weight.numel() != weight.shape[0] * weight.shape[1] or (is_kernel and node.attributes.get("groups", 1) != 1):
        return None
    matrix = weight.flatten(1)
    biases = [name for name in names if execution.weights[name].dim() == 1]
    if not is_kernel and weights[0] in node.reads and node.operator.name != "linear":  # as it is stored
        matrix = matrix if node.attributes.get("transB") else matrix.T
    return weights[0], matrix, [name for name in biases if len(execution.weights[name]) == len(matrix)]


def _layers_before(execution: Execution, name: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the operations whose results make up a value, without a function in between, and the biases after each.

    For something else, such as an input, the name is that of no linear layer.
    """
    pending: list[tuple[str, tuple[str, ...]]] = [(name, ())]
    while pending:
        value, biases = pending.pop()
        node = execution.graph.producer.get(value)
        if node is None:
            yield "", biases
            continue
        moved, weights = moved_value(node), _weights_of(execution, node, 1)
        summands = [read for read in node.reads if execution.roots[read] not in weights]
        if node.operator.kind == "cat" and not biases:
            pending += [(read, ()) for read in reversed(node.reads)]
        elif moved is not None or node.operator.resamples:
            pending.append((moved or node.reads[0], biases))
        elif node.operator.kind == "add" and len(weights) == len(summands) == 1:
            pending.append((summands[0], (*biases, *weights)))
        else:
            yield node.name, biases


def _summands_after_norms(execution: Execution) -> Iterator[tuple[str, FoldedWeight]]:
    """Yield the biases that linear layers get if the bias of the layer norm before them is folded into them."""
    shifts = {}
    for node in execution.graph.nodes:
        vectors, matrices = _weights_of(execution, node, 1), _weights_of(execution, node, 2)
        if node.operator.kind == "layer_norm" and len(vectors) == 2:  # gain and bias
            shifts[node.outputs[0]] = vectors[1]
        norms = {execution.roots[read] for read in node.reads} & shifts.keys()
        if node.operator.kind != "matmul" or len(matrices) != 1 or len(norms) != 1:
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
                yield label, FoldedWeight(summand, (shift, *biases))
                break


def _weights_of(execution: Execution, node: Node, dims: int) -> list[str]:
    """Return the names of the weights with a number of dimensions that a node reads."""
    names = [execution.roots[read] for read in node.reads]
    return [name for name in names if name in execution.weights and execution.weights[name].dim() == dims]


def _last_size(execution: Execution, node: Node) -> object:
    shape = execution.graph.values[node.outputs[0]].shape
    return shape[-1] if shape else None


def _bias_before(execution: Execution, node: Node) -> FoldedWeight | None:
    """Return the bias of the layer whose result a node reads; None if it has none."""
    producer = execution.graph.producer.get(node.reads[0])
    biases = [] if producer is None else _weights_of(execution, producer, 1)
    return FoldedWeight(execution.weights[biases[0]].double(), (biases[0],)) if len(biases) == 1 else None
