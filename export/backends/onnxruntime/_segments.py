"""Cut an ONNX graph into segments that run one after the other, so that not all its values are in memory at once."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import onnx
from onnx import helper

from ...graph._cutting import AGAIN
from ...graph._graph import Graph
from ...graph._nodes import Node

_MAX_NODES = 4096  # in a segment: the start of a session takes time quadratic in the number of outputs


@dataclass(frozen=True)
class Segment:
    """Some nodes of a graph, in topological order, which run in one session.

    Attributes:
        indices: the indices of the nodes in the graph.
        nodes: the nodes.
    """

    indices: tuple[int, ...]
    nodes: tuple[Node, ...]

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names of the values that the nodes read."""
        return frozenset(name for node in self.nodes for name in node.reads)

    @cached_property
    def computed(self) -> tuple[str, ...]:
        """The names of the values that the nodes compute."""
        return tuple(name for node in self.nodes for name in node.outputs if name)


def order_like(graph: Graph, names: Sequence[str]) -> list[int]:
    """Return the indices of a graph's nodes in a topological order that is close to the order of `names`.

    An optimizer may reorder nodes. A comparison with another graph keeps the values that only one of the graphs has
    computed so far in memory; with similar orders these are few.

    Args:
        graph: the graph.
        names: names of values in the desired order; the graph may have others and lack some.
    """
    wanted_ranks = {name: rank for rank, name in enumerate(names)}
    producers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    edges = nx.DiGraph()
    edges.add_nodes_from(range(len(graph.nodes)))
    for index, node in enumerate(graph.nodes):
        edges.add_edges_from((producers[name], index) for name in node.reads if name in producers)
    output_ranks = [[wanted_ranks[name] for name in node.outputs if name in wanted_ranks] for node in graph.nodes]
    ranks: list[int] = []  # of a node without a wanted output, for now the largest of the nodes that it reads
    for index in edges:
        ranks.append(max(output_ranks[index] or [ranks[earlier] for earlier in edges.pred[index]], default=0))
    # Nodes without a rank of their own go right before their first user.
    for index in reversed(range(len(ranks))):
        if edges.succ[index] and not output_ranks[index]:
            ranks[index] = min(ranks[later] for later in edges.succ[index])
    return [*nx.lexicographical_topological_sort(edges, key=ranks.__getitem__)]


def segments(graph: Graph, order: Sequence[int], sizes: Mapping[str, int], buffer: int) -> list[Segment]:
    """Cut a graph's nodes, in the given order, into segments whose outputs have at most `buffer` bytes.

    A single node may exceed it. No segment has more than `_MAX_NODES` nodes.

    Args:
        graph: the graph.
        order: the indices of the nodes.
        sizes: the bytes of the values by name.
        buffer: the limit.
    """
    parts: list[list[int]] = []
    size = buffer + 1  # so that the first node begins a segment
    for index in order:
        added = sum(sizes.get(name, 0) for name in graph.nodes[index].outputs)
        if size + added > buffer or len(parts[-1]) == _MAX_NODES:
            parts.append([])
            size = 0
        parts[-1].append(index)
        size += added
    return [Segment(tuple(part), tuple(graph.nodes[index] for index in part)) for part in parts]


def cut(
    model: onnx.ModelProto,
    segment: Segment,
    weights: Mapping[str, onnx.TensorProto],
    types: Mapping[str, onnx.TypeProto],
    *,
    replaced: Collection[str] = (),
) -> onnx.ModelProto:
    """Return a model of a segment: it has inputs for the values of other nodes, and all values are outputs.

    Args:
        model: the whole model.
        segment: some of its nodes.
        weights: the weights of the model by name; they may be in a separate file.
        types: the types of the inputs by name: of values of other nodes, and of replaced values.
        replaced: names of values that one of the nodes computes and others read. They become inputs, and the computed
            value is an output with `AGAIN` appended to its name.
    """
    read = segment.reads - ({*segment.computed} - {*replaced})
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(model.graph.node[index] for index in segment.indices)
    renamed = {name: name + AGAIN for name in replaced}
    for node in part.graph.node if renamed else ():
        node.output[:] = [renamed.get(name, name) for name in node.output]
    part.graph.initializer.extend(weights[name] for name in sorted(read & weights.keys()))
    part.graph.sparse_initializer.extend(item for item in model.graph.sparse_initializer if item.values.name in read)
    part.graph.input.extend(onnx.ValueInfoProto(name=name, type=types[name]) for name in sorted(read & types.keys()))
    # ONNX Runtime infers the missing types.
    part.graph.output.extend(onnx.ValueInfoProto(name=renamed.get(name, name)) for name in segment.computed)
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
