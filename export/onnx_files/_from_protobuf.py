"""Convert the protobuf of an ONNX model to a `Graph`, without the onnx-ir model that is needed to change or run it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto
from onnx_ir import serde

from ..common._garbage_collection import no_collection
from ..graph._from_onnx import GRAPHS_TEXT, attribute_of, graph_text, node_names, node_of, value_of
from ..graph._graph import Graph
from ..graph._nodes import Node, Value

_OWN_TYPES = 10  # the IR version since which functions declare the types of their own values


@no_collection()
def graph_from_proto(model: ModelProto, folder: Path) -> Graph:
    """Convert a model to the same graph as `graph_from_onnx`, in a third of the time.

    Args:
        model: a model that has passed `check_graphs`.
        folder: the folder of its external data.
    """
    graph, read = model.graph, _ValueConverter()
    weights = {tensor.name: serde.deserialize_tensor(tensor, folder) for tensor in graph.initializer if tensor.name}
    infos = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    functions = {}
    for function in model.functions:
        key = f"{function.domain}::{function.name}"
        functions[key] = _function(function, {} if model.ir_version >= _OWN_TYPES else infos, f"{key}/", read)
    nodes = _nodes(graph.node)
    inputs = [info.name for info in graph.input]
    return Graph(
        name=graph.name,
        inputs=tuple(name for name in inputs if name not in weights),  # a file may list weights as inputs, too
        outputs=tuple(info.name for info in graph.output),
        constants=tuple(weights),
        nodes=nodes,
        values={name: read(name, infos.get(name), weights.get(name)) for name in _names([*inputs, *weights], nodes)},
        functions=functions,
    )


def _function(
    function: FunctionProto, infos: Mapping[str, ValueInfoProto], prefix: str, read: "_ValueConverter"
) -> Graph:
    """Convert a function; `infos` are the value infos of the main graph, where its own have a `prefix`."""
    nodes = _nodes(function.node)
    local = {info.name: info for info in function.value_info}
    return Graph(
        name=function.name,
        inputs=tuple(function.input),
        outputs=tuple(function.output),
        constants=(),
        nodes=nodes,
        values={name: read(name, infos.get(prefix + name, local.get(name))) for name in _names(function.input, nodes)},
    )


def _names(inputs: Iterable[str], nodes: Iterable[Node]) -> Iterable[str]:
    """Return the names of inputs and of what nodes compute, without those that are left out."""
    return filter(None, (*inputs, *(name for node in nodes for name in node.outputs)))


class _ValueConverter:
    """Converts values; the conversion of each type is cached."""

    def __init__(self) -> None:
        self._typed = cache(_typed)

    def __call__(self, name: str, info: ValueInfoProto | None, weight: ir.TensorProtocol | None = None) -> Value:
        if weight is not None:
            return value_of(name, *_type(TypeProto() if info is None else info.type), weight)
        if info is None:
            return Value(name)
        typed = self._typed(info.type.SerializeToString())
        return Value(name, typed.dtype, typed.shape)


def _typed(serialized: bytes) -> Value:
    """Return a value without a name, of a serialized type."""
    return value_of("", *_type(TypeProto.FromString(serialized)))


def _type(proto: TypeProto) -> tuple[ir.DataType | None, ir.Shape | None]:
    """Return the dtype and the shape of a type; None for one that it does not declare."""
    kind = serde.deserialize_type_proto_for_type(proto)
    return None if kind is None else kind.dtype, serde.deserialize_type_proto_for_shape(proto)


def _nodes(nodes: Sequence[NodeProto]) -> tuple[Node, ...]:
    """Convert the nodes of a graph."""
    return tuple(map(_node, nodes, node_names(nodes)))


def _node(node: NodeProto, name: str) -> Node:
    """Convert a node, which has this name in its graph."""
    attributes = node.attribute
    return node_of(
        node,
        name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={attribute.name: _attribute(attribute) for attribute in attributes},
        captured=_captured(node) if len(attributes) else (),
        metadata={entry.key: entry.value for entry in node.metadata_props},
    )


def _attribute(attribute: AttributeProto) -> Any:
    """Return the value of an attribute as `Node.attributes` has it; graphs as short text."""
    if attribute.type == AttributeProto.GRAPH:
        return graph_text(len(attribute.g.node))
    if attribute.type == AttributeProto.GRAPHS:
        return GRAPHS_TEXT
    return attribute_of(serde.deserialize_attribute(attribute))


def _captured(node: NodeProto) -> set[str]:
    """Return the names of outer values that a node's subgraphs read."""
    captured: set[str] = set()
    for attribute in node.attribute:
        for graph in _subgraphs(attribute):
            defined = {item.name for item in (*graph.input, *graph.initializer)}
            defined |= {name for inner in graph.node for name in inner.output}
            read = {name for inner in graph.node for name in inner.input} | {info.name for info in graph.output}
            read |= {name for inner in graph.node for name in _captured(inner)}
            captured |= {name for name in read - defined if name}
    return captured


def _subgraphs(attribute: AttributeProto) -> Sequence[GraphProto]:
    """Return the graphs of an attribute that is declared as one or several graphs, as onnx-ir does."""
    if attribute.type == AttributeProto.GRAPH:
        return (attribute.g,)
    return attribute.graphs if attribute.type == AttributeProto.GRAPHS else ()
