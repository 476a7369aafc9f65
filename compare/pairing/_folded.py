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
    return {**dict(_summands_after_norms(execution)), **products, **dict(_batch_norms(execution, products))}


def _batch_norms(execution: Execution, products: Mapping[str, FoldedWeight]) -> Iterator[tuple[str, FoldedWeight]]:
    """Yield the factor and the summand that each batch norm becomes; see `folded_weights`.

    Args:
        execution: a run.
        products: what `_products` yields: the layer before a norm may have a summand by `_summand_of`.
    """
    for node in execution.graph.nodes:
        names = [execution.roots[read] for read in node.reads]
        weights = [name for name in names[1:5] if name in execution.weights]
        epsilon = node.attributes.get("eps", node.attributes.get("epsilon"))
        if node.operator.kind != "batch_norm" or len(weights) != 4 or not isinstance(epsilon, float):
            continue
        gain, shift, mean, variance = (execution.weights[name].double() for name in weights)
        factor = gain / (variance + epsilon).sqrt()
        layer_before = execution.graph.producer.get(node.reads[0])
        bias = products.get(_summand_of(layer_before)) or _bias_of(execution, layer_before)
        offset = mean if bias is None or bias.tensor.shape != mean.shape else mean - bias.tensor
        norm = weights[0].rpartition(".")[0]
        yield f"{norm} (factor)", FoldedWeight(factor, (weights[0], weights[3]))
        sources = (*weights, *(() if bias is None else bias.sources))
        yield f"{norm} (summand)", FoldedWeight(shift - offset * factor, sources)


@dataclass(frozen=True)
class _LinearLayer:
    """A matrix product, or a convolution that is one for each position, with a weight.

    Attributes:
        weight: the name of the weight.
        matrix: a view of it in the shape [outputs, inputs].
        biases: the names of the vectors that the operation adds.
    """

    weight: str
    matrix: torch.Tensor
    biases: Sequence[str]


def _products(execution: Execution) -> Iterator[tuple[str, FoldedWeight]]:
    """Yield what each linear layer becomes if the linear layers before it are folded into it: weights and a summand.

    The layer may read a concatenation of their results: then each of them has a product with a part of its columns.
    """
    linear = {node.name: layer for node in execution.graph.nodes if (layer := _layer_of(execution, node)) is not None}
    for node in (item for item in execution.graph.nodes if item.name in linear):
        layer = linear[node.name]
        data = [read for read in node.reads if execution.roots[read] not in execution.weights]
        inputs = layer.matrix.shape[1]  # no more layers than columns can be concatenated
        before = [*islice(_layers_before(execution, data[0]), inputs + 1)] if len(data) == 1 else []
        earlier = [linear[name] for name, _ in before if name in linear]
        sizes = [len(item.matrix) for item in earlier]
        if not before or len(earlier) < len(before) or sum(sizes) != inputs:
            continue
        summands, sources = [execution.weights[bias].double() for bias in layer.biases], [*layer.biases]
        blocks = torch.split(layer.matrix.double(), sizes, 1)
        for other, (_, added), block in zip(earlier, before, blocks, strict=True):
            product = block @ other.matrix.double()
            yield f"{layer.weight} of {other.weight}", FoldedWeight(product, (layer.weight, other.weight))
            biases = [bias for bias in (*other.biases, *added) if len(execution.weights[bias]) == len(other.matrix)]
            summands += [block @ execution.weights[bias].double() for bias in biases]
            sources += [layer.weight, *biases]
        if summands:
            yield _summand_of(node), FoldedWeight(torch.stack(summands).sum(0), tuple(dict.fromkeys(sources)))


def _summand_of(node: Node | None) -> str:
    """Return what the summand is called that a linear layer gets from those before it."""
    return "" if node is None else f"{node.module or node.name} (summand)"


def _layer_of(execution: Execution, node: Node) -> _LinearLayer | None:
    """Return the weight and biases of a linear layer; None if an operation is none.

    A convolution is none if it has groups, or a kernel of several positions.
    """
    names = [name for name in execution.roots_read_by(node) if name in execution.weights]
    weights = [name for name in names if execution.weights[name].dim() > 1]
    if not node.operator.is_linear or len(weights) != 1:
        return None
    weight = execution.weights[weights[0]]
    is_kernel = node.operator.kind == "convolution"
    groups = node.attributes.get("groups", node.attributes.get("group", 1))  # of PyTorch, of ONNX
    if weight.numel() != weight.shape[0] * weight.shape[1] or (is_kernel and groups != 1):
        return None
    matrix = weight.flatten(1)
    # ONNX and `torch.matmul` store [inputs, outputs]; a weight that is read through a transpose is [outputs, inputs].
    is_stored = (
        node.operator.name == "linear" or node.attributes.get("transB") or _is_transposed(execution, node, weights[0])
    )
    matrix = matrix if is_kernel or is_stored else matrix.T
    vectors = [name for name in names if execution.weights[name].dim() == 1]
    return _LinearLayer(weights[0], matrix, [name for name in vectors if len(execution.weights[name]) == len(matrix)])


def _is_transposed(execution: Execution, node: Node, weight: str) -> bool:
    """Return whether a node reads a weight through an odd number of transposes, beside casts, copies and views."""
    name, count = next(read for read in node.reads if execution.roots[read] == weight), 0
    while name != weight and (producer := execution.graph.producer.get(name)) is not None:
        count += producer.operator.movement == "permute" and _exchanges(execution, producer)
        name = moved_value(producer) or weight
    return count % 2 == 1


def _exchanges(execution: Execution, node: Node) -> bool:
    """Return whether a permutation exchanges dimensions of several elements, beside those of one that `einsum` adds."""
    shape, given = execution.graph.values[node.reads[0]].shape, node.attributes
    if shape is None:
        return True
    order = [*range(len(shape))]
    if "dim0" in given:  # torch.transpose
        first, second = given["dim0"], given["dim1"]
        order[first], order[second] = order[second], order[first]
    elif dims := given.get("dims", given.get("perm")):  # torch.permute, and Transpose of ONNX
        order = [dim % len(shape) for dim in dims]
    else:  # Tensor.t, and Transpose without an attribute
        order.reverse()
    moved = [dim for dim in order if shape[dim] != 1]
    return moved != sorted(moved)


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
        if node.operator.kind == "cat" and not biases:  # one that is added after it has a part for each
            pending += [(read, ()) for read in reversed(node.reads)]
        elif moved is not None or node.operator.resamples:
            pending.append((moved or node.reads[0], biases))
        elif node.operator.kind == "add" and len(weights) == len(summands) == 1:
            pending.append((summands[0], (*biases, *weights)))
        else:
            yield node.name, biases


def _summands_after_norms(execution: Execution) -> Iterator[tuple[str, FoldedWeight]]:
    """Yield the biases that linear layers get if the bias of the layer norm before them is folded into them."""
    shifts = {}  # the biases of layer norms, by the results of the norms
    for node in execution.graph.nodes:
        vectors = _weights_of(execution, node, 1)
        if node.operator.kind == "layer_norm" and len(vectors) == 2:  # gain and bias
            shifts[node.outputs[0]] = vectors[1]
        norms = {execution.roots[read] for read in node.reads} & shifts.keys()
        layer = _layer_of(execution, node) if node.operator.kind == "matmul" else None
        if layer is None or len(norms) != 1:
            continue
        shift = shifts[norms.pop()]
        shape = execution.graph.values[node.outputs[0]].shape
        sizes = shape[-1] if shape else None, len(execution.weights[shift])
        # Views may also exchange dimensions; unless the weight is square, its shape tells which way it is read.
        matrix = next((item for item in (layer.matrix, layer.matrix.T) if item.shape == sizes), None)
        if matrix is not None:
            biases = [name for name in vectors if len(execution.weights[name]) == len(matrix)]
            summands = [matrix.double() @ execution.weights[shift].double()]
            summands += [execution.weights[bias].double() for bias in biases]
            label = f"{layer.weight.rpartition('.')[0] or layer.weight} (summand of the norm before it)"
            yield label, FoldedWeight(torch.stack(summands).sum(0), (shift, *biases))


def _weights_of(execution: Execution, node: Node, dims: int) -> list[str]:
    """Return the names of the weights with a number of dimensions that a node reads."""
    names = [execution.roots[read] for read in node.reads]
    return [name for name in names if name in execution.weights and execution.weights[name].dim() == dims]


def _bias_of(execution: Execution, layer: Node | None) -> FoldedWeight | None:
    """Return the only vector among the weights of a layer, its bias; None if there is no layer, or no such vector."""
    biases = [] if layer is None else _weights_of(execution, layer, 1)
    return FoldedWeight(execution.weights[biases[0]].double(), (biases[0],)) if len(biases) == 1 else None
