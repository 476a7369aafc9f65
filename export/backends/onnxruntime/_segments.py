"""Cuts an ONNX graph into parts that run one after the other, so that all of its values never exist at once."""

import heapq
import re
from collections.abc import Collection, Mapping, Sequence

import onnx

from ...graph._cutting import AGAIN
from ...graph._graph import Graph

_MOST = 4096  # nodes in a part: what ONNX Runtime takes to start grows with the square of the number of outputs
_TYPES = {"float": "FLOAT", "double": "DOUBLE"}


def in_order_of(graph: Graph, names: Sequence[str]) -> list[int]:
    """The indices of a graph's nodes in an order in which they can run, as near to the order of `names` as can be.

    An optimiser orders nodes as it likes. Who compares values with those of another graph has to hold what is there on
    one side and not yet on the other; in the same order, that is little.

    Args:
        graph: the graph.
        names: names of values, in the order wanted; the graph may have others and lack some.
    """
    wanted = {name: rank for rank, name in enumerate(names)}
    made = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    before = [{made[name] for name in node.reads if name in made} for node in graph.nodes]
    after: list[list[int]] = [[] for _ in graph.nodes]
    ranks: list[int] = []
    for index, node in enumerate(graph.nodes):
        known = [wanted[name] for name in node.outputs if name in wanted]
        ranks.append(max(known or [ranks[earlier] for earlier in before[index]], default=0))
        for earlier in before[index]:
            after[earlier].append(index)
    # What is not known by name goes where its users need it.
    for index in reversed(range(len(ranks))):
        if after[index] and not any(name in wanted for name in graph.nodes[index].outputs):
            ranks[index] = min(ranks[later] for later in after[index])
    ready = [(ranks[index], index) for index, earlier in enumerate(before) if not earlier]
    heapq.heapify(ready)
    found = []
    while ready:
        _, index = heapq.heappop(ready)
        found.append(index)
        for later in after[index]:
            before[later].discard(index)
            if not before[later]:
                heapq.heappush(ready, (ranks[later], later))
    return found


def segments(graph: Graph, order: Sequence[int], sizes: Mapping[str, int], buffer: int) -> list[list[int]]:
    """Cut a graph's nodes, in the order given, into runs that make no more than `buffer` bytes each, if that can be.

    No run has more than some thousand nodes.
    """
    found: list[list[int]] = []
    held = buffer + 1
    for index in order:
        made = sum(sizes.get(name, 0) for name in graph.nodes[index].outputs)
        if held + made > buffer or len(found[-1]) == _MOST:
            found.append([])
            held = 0
        found[-1].append(index)
        held += made
    return found


def cut(
    model: onnx.ModelProto,
    graph: Graph,
    nodes: Sequence[int],
    weights: Mapping[str, onnx.TensorProto],
    types: Mapping[str, onnx.TypeProto],
    *,
    fed: Collection[str] = (),
) -> onnx.ModelProto:
    """The model of some nodes alone: what they read of others is an input, and all that they make is an output.

    Args:
        model: the whole.
        graph: the same as `Graph`.
        nodes: the indices of the nodes that are wanted, in an order in which they can run.
        weights: of the whole, by name; they may stand in a file beside it.
        types: of the values that they read and do not make, by name, weights aside; and of those that are fed.
        fed: the names of values that one of the nodes makes and others read: they are inputs, too, and what is made is
            an output with `AGAIN` behind its name.
    """
    made = [name for index in nodes for name in graph.nodes[index].outputs if name]
    read = {name for index in nodes for name in graph.nodes[index].reads} - ({*made} - {*fed})
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(model.graph.node[index] for index in nodes)
    again = {name: name + AGAIN for name in fed}
    for node in part.graph.node if again else ():
        node.output[:] = [again.get(name, name) for name in node.output]
    part.graph.initializer.extend(weights[name] for name in sorted(read & weights.keys()))
    part.graph.sparse_initializer.extend(held for held in model.graph.sparse_initializer if held.values.name in read)
    part.graph.input.extend(onnx.ValueInfoProto(name=name, type=types[name]) for name in sorted(read & types.keys()))
    # A value without a type is typed by the runtime's own inference.
    part.graph.output.extend(onnx.ValueInfoProto(name=again.get(name, name)) for name in made)
    return part


def type_proto(text: str) -> onnx.TypeProto:
    """ONNX Runtime's name of a type (`tensor(float)`, `seq(tensor(int64))`) as ONNX has it, of any shape."""
    made = onnx.TypeProto()
    outer, _, inner = text.partition("(")
    inner = inner.removesuffix(")")
    if outer == "seq":
        made.sequence_type.elem_type.CopyFrom(type_proto(inner))
    elif outer == "optional":
        made.optional_type.elem_type.CopyFrom(type_proto(inner))
    else:
        name = _TYPES.get(inner, re.sub(r"[^A-Z0-9]", "", inner.upper()))
        made.tensor_type.elem_type = onnx.TensorProto.DataType.Value(name)
    return made
