"""A hash of an ONNX model's nodes, names and weights."""

import hashlib
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def fingerprint(model: ir.Model) -> str:
    """Hash the nodes, names and weights of a model. The hash is the same in every process.

    Recorded types, shapes and source locations do not count. Weights count by their contents, because a pass may change
    a weight in place.
    """
    contents = tuple(_graph(model.graph)), *(tuple(_function(item)) for item in model.functions.values())
    return hashlib.sha256(repr(contents).encode()).hexdigest()[:16]


def _function(function: ir.Function) -> Iterator[object]:
    yield function.identifier()
    yield from (value.name for value in (*function.inputs, *function.outputs))
    yield from map(_node, function)


def _graph(graph: ir.Graph) -> Iterator[object]:
    yield from (value.name for value in (*graph.inputs, *graph.outputs))
    for name, value in sorted(graph.initializers.items()):  # runtimes save them in any order
        yield name, None if value.const_value is None else _tensor(value.const_value)
    yield from map(_node, graph)


def _node(node: ir.Node) -> tuple[object, ...]:
    names = tuple(None if value is None else value.name for value in (*node.inputs, *node.outputs))
    attributes = tuple((attr.name, str(attr.type), _attribute(attr)) for _, attr in sorted(node.attributes.items()))
    # The number of inputs divides `names` into inputs and outputs.
    return node.op_identifier(), node.name, len(node.inputs), names, attributes


def _attribute(attr: ir.Attr) -> object:
    value: Any = attr.value
    if attr.is_ref():
        return attr.ref_attr_name
    if attr.type in _GRAPHS:
        graphs = [value] if attr.type == ir.AttributeType.GRAPH else value
        return tuple(tuple(_graph(graph)) for graph in graphs)
    if attr.type in _TENSORS:
        return tuple(map(_tensor, [value] if attr.type == ir.AttributeType.TENSOR else value))
    return repr(value)


def _tensor(tensor: ir.TensorProtocol) -> tuple[object, ...]:
    is_string = tensor.dtype == ir.DataType.STRING
    contents = repr(tuple(tensor.numpy().flat)).encode() if is_string else tensor.tobytes()
    return str(tensor.dtype), str(tensor.shape), hashlib.sha256(contents).hexdigest()
