"""Cut an ONNX graph into parts that run one after the other, so that its values need not all be in memory at once."""

import re
from collections.abc import Collection, Mapping, Sequence

import networkx as nx
import onnx
from onnx import helper

from ...graph._cutting import AGAIN
from ...graph._graph import Graph

_MAX_NODES = 4096  # in a part: the start of a session takes time quadratic in the number of outputs


def order_like(graph: Graph, names: Sequence[str]) -> list[int]:
    """Return the indices of a graph's nodes in a topological order that is close to the order of `names`.

    An optimizer may reorder nodes. A comparison with another graph keeps the values that only one of the graphs has
    computed so far in memory; with similar orders these are few.

    Args:
        graph: the graph.
        names: names of values in the desired order; the graph may have others and lack some.
    """
    ranks_by_name = {name: rank for rank, name in enumerate(names)}
    producers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    edges = nx.DiGraph()
    edges.add_nodes_from(range(len(graph.nodes)))
    for index, node in enumerate(graph.nodes):
        edges.add_edges_from((producers[name], index) for name in node.reads if name in producers)
    known = [[ranks_by_name[name] for name in node.outputs if name in ranks_by_name] for node in graph.nodes]
    ranks: list[int] = []
    for index in edges:
        ranks.append(max(known[index] or [ranks[earlier] for earlier in edges.pred[index]], default=0))
    # Nodes without a known output go right before their first user.
    for index in reversed(range(len(ranks))):
        if edges.succ[index] and not known[index]:
            ranks[index] = min(ranks[later] for later in edges.succ[index])
    return [*nx.lexicographical_topological_sort(edges, key=ranks.__getitem__)]


def segments(graph: Graph, order: Sequence[int], sizes: Mapping[str, int], buffer: int) -> list[list[int]]:
    """Cut a graph's nodes, in the given order, into parts whose outputs have at most `buffer` bytes.

    A single node may exceed it. No part has more than `_MAX_NODES` nodes.
    """
    parts: list[list[int]] = []
    size = buffer + 1
    for index in order:
        added = sum(sizes.get(name, 0) for name in graph.nodes[index].outputs)
        if size + added > buffer or len(parts[-1]) == _MAX_NODES:
            parts.append([])
            size = 0
        parts[-1].append(index)
        size += added
    return parts


def cut(
    model: onnx.ModelProto,
    graph: Graph,
    nodes: Sequence[int],
    weights: Mapping[str, onnx.TensorProto],
    types: Mapping[str, onnx.TypeProto],
    *,
    replaced: Collection[str] = (),
) -> onnx.ModelProto:
    """Return a model of some nodes: it has inputs for the values of other nodes, and all values are outputs.

    Args:
        model: the whole model.
        graph: the graph of the model.
        nodes: the indices of the nodes, in topological order.
        weights: the weights of the model by name; they may be in a separate file.
        types: the types of the inputs by name: of values of other nodes, and of replaced values.
        replaced: names of values that one of the nodes computes and others read. They become inputs, and the computed
            value is an output with `AGAIN` appended to its name.
    """
    computed = [name for index in nodes for name in graph.nodes[index].outputs if name]
    read = {name for index in nodes for name in graph.nodes[index].reads} - ({*computed} - {*replaced})
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(model.graph.node[index] for index in nodes)
    renamed = {name: name + AGAIN for name in replaced}
    for node in part.graph.node if renamed else ():
        node.output[:] = [renamed.get(name, name) for name in node.output]
    part.graph.initializer.extend(weights[name] for name in sorted(read & weights.keys()))
    part.graph.sparse_initializer.extend(item for item in model.graph.sparse_initializer if item.values.name in read)
    part.graph.input.extend(onnx.ValueInfoProto(name=name, type=types[name]) for name in sorted(read & types.keys()))
    # ONNX Runtime infers the missing types.
    part.graph.output.extend(onnx.ValueInfoProto(name=renamed.get(name, name)) for name in computed)
    return part


def type_proto(text: str) -> onnx.TypeProto:
    """Convert ONNX Runtime's name of a type (`tensor(float)`, `seq(tensor(int64))`) to an ONNX type of any shape."""
    outer, _, inner = text.removesuffix(")").partition("(")
    if outer == "seq":
        return helper.make_sequence_type_proto(type_proto(inner))
    if outer == "optional":
        return helper.make_optional_type_proto(type_proto(inner))
    name = {"float": "FLOAT", "double": "DOUBLE"}.get(inner, re.sub(r"[^A-Z0-9]", "", inner.upper()))
    return helper.make_tensor_type_proto(onnx.TensorProto.DataType.Value(name), None)
