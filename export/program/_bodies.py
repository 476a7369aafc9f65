"""Put the nodes of branches, loop bodies and functions in place of the nodes that run them."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass

from ..evaluation._unpredictable import draws_inside
from ..graph._from_onnx import node_names

_CONTROL = frozenset({"If", "Loop", "Scan"})
_BATCHED_SCAN = 8  # version of ONNX's operators in which `Scan` runs its body for each item of a batch
_AXES_ARE_INPUTS = 13  # version of ONNX's operators since which `Unsqueeze` reads its axes
_ANSWER = "//runs"  # suffix of what `Bodies.question` returns of a node
Results = Sequence[ir.Value | None]  # and what is given in their place


class Bodies:
    """A copy of a model in which nodes that run graphs can be replaced by the nodes that run, for known inputs.

    The branch that runs, each iteration of a loop, or the function that is called takes the place of the node. Its
    nodes have the name of the node before their own (`If_3/then_branch/Add`, `Loop_1/body[0]/Mul`), its values that of
    the node's first output, and the results the names of the outputs.

    Args:
        model: the model, which is not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model.clone()
        self._graph = self._model.graph
        self._version = self._model.opset_imports.get("", 1)
        for graph in _graphs(self._model):
            _name_nodes(graph)
        graphs = [self._graph, *self._graph.subgraphs()]
        self._taken = {item.name for graph in graphs for item in (*graph.inputs, *graph.initializers.values())}
        self._taken |= {item.name for node in self._graph.all_nodes() for item in node.outputs}
        self._node_names = {node.name for node in self._graph}
        self._weights: dict[int, ir.Value] = {}  # by the id of their tensor, which all copies of a body share
        self._constants: dict[str, ir.Value] = {}
        self._placed: set[ir.Value] = set()

    @property
    def open(self) -> list[ir.Node]:
        """The nodes that can be replaced. Bodies may draw no random numbers."""
        return [node for node in self._graph if self._is_open(node)]

    def _is_open(self, node: ir.Node) -> bool:
        """Whether a node can be replaced; not a function that takes graphs, or has other versions of operators."""
        if not (node.outputs and node.outputs[0].name):
            return False
        if function := self._model.functions.get(node.op_identifier()):
            imports = self._model.opset_imports
            has_graphs = any(item.type in _GRAPHS for item in node.attributes.values())
            return not has_graphs and all(imports.get(key) == value for key, value in function.opset_imports.items())
        is_batched = node.op_type == "Scan" and self._version <= _BATCHED_SCAN
        return _is_control(node) and not is_batched and not draws_inside(node)

    def question(self, nodes: Iterable[ir.Node], most: int) -> ir.Model | None:
        """Return a model that returns which branch some nodes take, or how often they run; None if all are calls.

        Loops end after `most` iterations: a file may have one that never ends, and the numbers of its iterations are
        kept in memory. What is computed from them is then something else.
        """
        model = self._model.clone()
        graph, wanted = model.graph, {node.outputs[0].name for node in nodes}
        asked = [node for node in graph if _is_control(node) and node.outputs[0].name in wanted]
        graph.outputs[:] = [_ask(graph, node, most) for node in asked]
        RemoveUnusedNodesPass()(model)
        graph.inputs[:] = [value for value in graph.inputs if value.uses()]
        return model if asked else None

    @property
    def size(self) -> int:
        """The number of all nodes of the model, those in graphs and functions included."""
        return sum(len([*graph.all_nodes()]) for graph in _graphs(self._model))

    def added(self, node: ir.Node, runs: int) -> int:
        """Return how many nodes take the place of a node."""
        if not _is_control(node):
            return len(self._model.functions[node.op_identifier()])
        return len(_branch(node, runs)) if node.op_type == "If" else runs * len(_body(node))

    def replace(self, node: ir.Node, runs: int) -> None:
        """Put what a node runs in its place; a loop has to run at least once."""
        results: Results
        self._placed.clear()
        if node.op_type == "If" and _is_control(node):
            results = self._place(node, _branch(node, runs), "then_branch/" if runs else "else_branch/", [])
        elif not _is_control(node):
            results = self._place(node, self._called(node), "", node.inputs)
        else:
            results = self._iterations(node, runs) if node.op_type == "Loop" else self._slices(node, runs)
        for output, result in zip(node.outputs, results, strict=False):
            if output.name and result is not None:
                self._deliver(node, output, result)
        self._graph.remove(node, safe=True)

    @property
    def model(self) -> ir.Model:
        """The model as it is now."""
        RemoveUnusedFunctionsPass()(self._model)  # type: ignore[no-untyped-call]
        return self._model

    def _called(self, node: ir.Node) -> ir.Graph:
        """Return the graph of a function, with the attributes of its call."""
        function = self._model.functions[node.op_identifier()].clone()
        given = {name: item for name, item in function.attributes.items() if item.value is not None}
        given |= node.attributes
        for inner in function.graph.all_nodes():
            for name, item in [*inner.attributes.items()]:
                if item.is_ref() and (source := given.get(item.ref_attr_name or "")) is not None:
                    inner.attributes[name] = ir.Attr(name, source.type, source.value)
                elif item.is_ref():
                    del inner.attributes[name]  # neither given nor with a default
        return function.graph

    def _iterations(self, node: ir.Node, count: int) -> Results:
        body, states = _body(node), node.inputs[2:]
        going = node.inputs[1] if len(node.inputs) > 1 else None
        kept: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(states) :]]
        for at in range(count):
            place, copied = f"body[{at}]/", body.clone(allow_outer_scope_values=True)
            number = self._constant(f"number {at}", np.array(at)) if _is_read(copied.inputs[0]) else None
            if going is None and _is_read(copied.inputs[1]):
                going = self._constant("true", np.array(True))  # noqa: FBT003  its content
            going, *results = self._place(node, copied, place, [number, going, *states])
            states = results[: len(states)]
            for items, item in zip(kept, results[len(states) :], strict=True):
                items.append(item)
        return [*states, *(self._stacked(node, items, 0) for items in kept)]

    def _slices(self, node: ir.Node, count: int) -> Results:
        body, scanned = _body(node), node.attributes["num_scan_inputs"].as_int()
        first = len(node.inputs) - scanned
        states: Results = node.inputs[:first]
        axes = _numbers(node, "scan_input_axes") or [0] * scanned
        backward = _numbers(node, "scan_input_directions") or [0] * scanned
        kept: list[list[ir.Value]] = [[] for _ in body.outputs[first:]]
        for at in range(count):
            place, copied = f"body[{at}]/", body.clone(allow_outer_scope_values=True)
            numbers = [count - 1 - at if flag else at for flag in backward]
            indices = [self._constant(f"number {number}", np.array(number)) for number in numbers]
            parts = [
                self._add(node, "Gather", [value, index], {"axis": axis}, f"{place}{item.name}")
                for value, index, axis, item in zip(
                    node.inputs[first:], indices, axes, copied.inputs[first:], strict=True
                )
            ]
            results = self._place(node, copied, place, [*states, *parts])
            states = results[:first]
            for items, item in zip(kept, results[first:], strict=True):
                items.append(item)
        axes = _numbers(node, "scan_output_axes") or [0] * len(kept)
        backward = _numbers(node, "scan_output_directions") or [0] * len(kept)
        ordered = [items[::-1] if flag else items for items, flag in zip(kept, backward, strict=True)]
        return [*states, *(self._stacked(node, items, axis) for items, axis in zip(ordered, axes, strict=True))]

    def _stacked(self, node: ir.Node, items: Sequence[ir.Value], axis: int) -> ir.Value:
        """Return the value that consists of these along a new axis."""
        reads = [self._constant(f"axis {axis}", np.array([axis]))] if self._version >= _AXES_ARE_INPUTS else []
        attributes = {} if reads else {"axes": [axis]}
        names = [f"{item.name}/row".removeprefix(f"{node.outputs[0].name}/") for item in items]
        rows = [
            self._add(node, "Unsqueeze", [item, *reads], attributes, name)
            for item, name in zip(items, names, strict=True)
        ]
        return rows[0] if len(rows) == 1 else self._add(node, "Concat", rows, {"axis": axis}, "rows")

    def _place(self, node: ir.Node, body: ir.Graph, place: str, inputs: Results) -> list[ir.Value]:
        """Move the nodes of a graph before a node, and return the results; `place` is the prefix of their names."""
        _name_nodes(body)
        results, nodes = [*body.outputs], [*body]
        body.outputs.clear()
        outer = dict(zip(body.inputs, [*inputs, *[None] * (len(body.inputs) - len(inputs))], strict=True))
        outer |= {item: self._weight(node, item, place) for item in body.initializers.values()}
        for item, other in outer.items():
            for user, index in [*item.uses()]:
                user.replace_input_with(index, other)
        body.remove(nodes)
        for inner in nodes:
            inner.name = _free(f"{node.name}/{place}{inner.name}", self._node_names)
            for key, text in node.metadata_props.items():
                inner.metadata_props.setdefault(key, text)
            for value in inner.outputs:
                value.name = self._name(node, f"{place}{value.name}") if value.name else value.name
            self._placed.update(inner.outputs)
        self._graph.insert_before(node, nodes)
        return [outer.get(item) or item for item in results]  # inputs and weights are outer values

    def _deliver(self, node: ir.Node, output: ir.Value, result: ir.Value) -> None:
        """Give a result the name of the output that it replaces; a value that has another name is copied."""
        if result not in self._placed:  # an outer value, or one that has the name of another output
            result = self._add(node, "Identity", [result], {}, f"{output.name}/copy")
        self._placed.discard(result)
        name, output.name = output.name, None
        result.name, result.type, result.shape = name, result.type or output.type, result.shape or output.shape
        output.replace_all_uses_with(result, replace_graph_outputs=True)

    def _weight(self, node: ir.Node, item: ir.Value, place: str) -> ir.Value:
        """Return the weight of the main graph with the tensor of a body's, for all iterations; added if missing."""
        tensor = item.const_value
        if id(tensor) not in self._weights:
            name = self._name(node, f"{place.partition('[')[0].removesuffix('/')}/{item.name}")
            named = None if tensor is None else _named(tensor, name)
            found = ir.Value(name=name, type=item.type, shape=item.shape, const_value=named)
            self._graph.register_initializer(found)
            self._weights[id(tensor)] = found
        return self._weights[id(tensor)]

    def _constant(self, text: str, content: np.ndarray) -> ir.Value:
        """Return a constant of the graph; the same one for the same text."""
        if text not in self._constants:
            tensor = ir.tensor(content, name=_free(text, self._taken))
            kind = ir.TensorType(tensor.dtype)
            found = ir.Value(name=tensor.name, type=kind, shape=ir.Shape(content.shape), const_value=tensor)
            self._graph.register_initializer(found)
            self._constants[text] = found
        return self._constants[text]

    def _add(self, node: ir.Node, op: str, inputs: Results, attributes: Mapping[str, Any], name: str) -> ir.Value:
        """Add a node before `node`, and return its value; `name` is that of both without the prefix of `node`."""
        added = ir.node(op, inputs, attributes, name=_free(f"{node.name}/{name}", self._node_names))
        added.outputs[0].name = self._name(node, name)
        self._placed.add(added.outputs[0])
        self._graph.insert_before(node, added)
        return added.outputs[0]

    def _name(self, node: ir.Node, name: str) -> str:
        return _free(f"{node.outputs[0].name}/{name}", self._taken)


_GRAPHS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def _graphs(model: ir.Model) -> list[ir.Graph]:
    return [model.graph, *(function.graph for function in model.functions.values())]


def _is_control(node: ir.Node) -> bool:
    return node.op_type in _CONTROL and node.domain in ("", "ai.onnx")


def has_bodies(model: ir.Model) -> bool:
    """Whether a node of a model runs a graph."""
    return any(_is_control(node) or node.op_identifier() in model.functions for node in model.graph)


def runs_of(node: ir.Node, values: Mapping[str, torch.Tensor]) -> int:
    """Return how often a node runs its body; of an `If`, 1 is `then_branch` and 0 is `else_branch`.

    Args:
        node: one of `Bodies.open`.
        values: the outputs of `Bodies.question`, by name.
    """
    if not _is_control(node):
        return 1
    axis = 0 if node.op_type != "Scan" else (_numbers(node, "scan_input_axes") or [0])[-1]
    return int(values[f"{node.outputs[0].name}{_ANSWER}"].reshape(-1)[axis])


def _ask(graph: ir.Graph, node: ir.Node, most: int) -> ir.Value:
    """Add a node that computes what `runs_of` reads, and return its value."""
    name = f"{node.outputs[0].name}{_ANSWER}"
    op, value = ("Identity", node.inputs[0]) if node.op_type == "If" else ("Shape", node.inputs[-1])
    if node.op_type == "Loop":
        value = _count(graph, node, name, most)
    asked = ir.node(op, [value])
    asked.outputs[0].name = name
    graph.insert_after(node, asked)
    return asked.outputs[0]


def _count(graph: ir.Graph, node: ir.Node, name: str, most: int) -> ir.Value:
    """Let a loop return the numbers of its iterations, of which there are at most `most`."""
    body, limit, given = _body(node), ir.tensor(np.array(most), name=f"{name}:most"), node.inputs[0]
    count = ir.Value(name=limit.name, const_value=limit)
    graph.register_initializer(count)
    if given is not None:
        less = ir.node("Less", [given, count])
        chosen = ir.node("Where", [less.outputs[0], given, count])
        less.outputs[0].name, chosen.outputs[0].name = f"{name}:less", f"{name}:count"
        graph.insert_before(node, [less, chosen])
        count = chosen.outputs[0]
    node.replace_input_with(0, count)
    number = ir.node("Identity", [body.inputs[0]])
    number.outputs[0].name = f"{name}:number"
    body.append(number)
    body.outputs.append(number.outputs[0])
    node.resize_outputs(len(body.outputs) - 1)
    node.outputs[-1].name = f"{name}:numbers"
    return node.outputs[-1]


def _branch(node: ir.Node, runs: int) -> ir.Graph:
    return node.attributes["then_branch" if runs else "else_branch"].as_graph()


def _body(node: ir.Node) -> ir.Graph:
    return node.attributes["body"].as_graph()


def _numbers(node: ir.Node, name: str) -> list[int]:
    return [*node.attributes[name].as_ints()] if name in node.attributes else []


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _named(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return a tensor of another name that shares the memory of a tensor, whose name is that of the other model."""
    is_own = not isinstance(tensor, ir.TensorProtoTensor)
    named = copy.copy(tensor) if is_own else ir.Tensor(tensor.numpy(), dtype=tensor.dtype)
    named.name = name
    return named


def _name_nodes(graph: ir.Graph) -> None:
    for node, name in zip(graph, [*node_names(graph)], strict=True):
        node.name = name


def _free(name: str, taken: set[str | None]) -> str:
    """Return a name that is not taken, and take it."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name
