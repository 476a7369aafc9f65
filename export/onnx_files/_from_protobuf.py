"""Reads the protobuf of an ONNX model as a `Graph`, without the onnx-ir model that changing or running it needs."""

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

_OWN_TYPES = 10  # the version of ONNX's format from which functions say the types of their values themselves


@no_collection()
def graph_from_proto(model: ModelProto, folder: Path) -> Graph:
    """The graph that `graph_from_onnx` makes of the model that onnx-ir makes of this one, in a third of the time.

    Args:
        model: it has passed `check_graphs`.
        folder: where its external data is.
    """
    graph, read = model.graph, _Values()
    held = {tensor.name: serde.deserialize_tensor(tensor, folder) for tensor in graph.initializer if tensor.name}
    infos = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    functions = {}
    for made in model.functions:
        key = f"{made.domain}::{made.name}"
        functions[key] = _function(made, {} if model.ir_version >= _OWN_TYPES else infos, f"{key}/", read)
    nodes = _nodes(graph.node)
    given = [info.name for info in graph.input]
    return Graph(
        name=graph.name,
        inputs=tuple(name for name in given if name not in held),
        outputs=tuple(info.name for info in graph.output),
        constants=tuple(held),
        nodes=nodes,
        values={name: read(name, infos.get(name), held.get(name)) for name in _names([*given, *held], nodes)},
        functions=functions,
    )


def _function(made: FunctionProto, elsewhere: Mapping[str, ValueInfoProto], prefix: str, read: "_Values") -> Graph:
    """The graph of a function; `elsewhere` says the types of its values, each under its name behind `prefix`."""
    nodes = _nodes(made.node)
    own = {info.name: info for info in made.value_info}
    return Graph(
        name=made.name,
        inputs=tuple(made.input),
        outputs=tuple(made.output),
        constants=(),
        nodes=nodes,
        values={name: read(name, elsewhere.get(prefix + name, own.get(name))) for name in _names(made.input, nodes)},
    )


def _names(given: Iterable[str], nodes: Iterable[Node]) -> Iterable[str]:
    return filter(None, (*given, *(name for node in nodes for name in node.outputs)))


class _Values:
    """Reads values; those of one type share what they say of it."""

    def __init__(self) -> None:
        self._typed = cache(_typed)

    def __call__(self, name: str, info: ValueInfoProto | None, held: ir.TensorProtocol | None = None) -> Value:
        if held is not None:
            return value_of(name, *_type(TypeProto() if info is None else info.type), held)
        if info is None:
            return Value(name)
        typed = self._typed(info.type.SerializeToString())
        return Value(name, typed.dtype, typed.shape)


def _typed(written: bytes) -> Value:
    return value_of("", *_type(TypeProto.FromString(written)))


def _type(said: TypeProto) -> tuple[ir.DataType | None, ir.Shape | None]:
    kind = serde.deserialize_type_proto_for_type(said)
    return None if kind is None else kind.dtype, serde.deserialize_type_proto_for_shape(said)


def _nodes(nodes: Sequence[NodeProto]) -> tuple[Node, ...]:
    return tuple(map(_node, nodes, node_names(nodes)))


def _node(node: NodeProto, name: str) -> Node:
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
    if attribute.type == AttributeProto.GRAPH:
        return graph_text(len(attribute.g.node))
    if attribute.type == AttributeProto.GRAPHS:
        return GRAPHS_TEXT
    return attribute_of(serde.deserialize_attribute(attribute))


def _captured(node: NodeProto) -> set[str]:
    """Names of outer values that are read inside a node's subgraphs."""
    found: set[str] = set()
    for attribute in node.attribute:
        for graph in _subgraphs(attribute):
            own = {held.name for held in (*graph.input, *graph.initializer)}
            own |= {name for inner in graph.node for name in inner.output}
            read = {name for inner in graph.node for name in inner.input} | {info.name for info in graph.output}
            read |= {name for inner in graph.node for name in _captured(inner)}
            found |= {name for name in read - own if name}
    return found


def _subgraphs(attribute: AttributeProto) -> Sequence[GraphProto]:
    if attribute.type == AttributeProto.GRAPH:
        return (attribute.g,)
    return attribute.graphs if attribute.type == AttributeProto.GRAPHS else ()
