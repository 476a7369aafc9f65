"""Extract parts of an exported program, as operations of torch."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from filch.export import Graph, graph_from_fx

from ._case import Case, Tensors
from ._grow import closed, ends


class TorchParts:
    """The parts of an exported program.

    Args:
        program: the decomposed program.
        known: the reference values, by name; weights need not be among them.

    Attributes:
        graph: the program as `Graph`.
    """

    def __init__(self, program: ExportedProgram, known: Tensors) -> None:
        self._program = program
        self.graph: Graph = graph_from_fx(program.graph)
        self._weights = _weights(program)
        traced = {node.name: node.meta.get("val") for node in program.graph.nodes}
        self._known = {name: held for name, held in known.items() if isinstance(traced.get(name), torch.Tensor)}

    def case(self, names: Collection[str]) -> Case | None:
        """Return the operations of these names and those they need; None if they can't run alone."""
        nodes = closed(self.graph, names, {*self._known, *self._weights})
        if nodes is None:
            return None
        outputs = tuple(name for name in ends(self.graph, nodes, names) if name in self._known)
        return self.part([node.name for node in nodes], outputs)

    def part(self, names: Collection[str], outputs: Sequence[str]) -> Case | None:
        """Return a function of these operations that returns `outputs`; None if an input or output is unknown."""
        chosen = [node for node in self._program.graph.nodes if node.op == "call_function" and node.name in {*names}]
        made = {node.name for node in chosen}
        read = list(dict.fromkeys(item for node in chosen for item in node.all_input_nodes if item.name not in made))
        known = {**self._weights, **self._known}
        if not outputs or not {*outputs} <= made or any(item.name not in known for item in read):
            return None
        graph = fx.Graph()
        there = {item.name: graph.placeholder(item.name) for item in read}
        for node in chosen:
            there[node.name] = graph.node_copy(node, lambda item: there[item.name])
            there[node.name].meta = {}  # it has shapes, which may be reduced
        graph.output(tuple(there[name] for name in outputs))
        graph = _needed(graph)
        placeholders = graph.find_nodes(op="placeholder")  # fx renames a node called `input`, but keeps its target
        taken = {str(node.target): known[str(node.target)].detach() for node in placeholders}
        return Case(
            inputs={name: tensor for name, tensor in taken.items() if name not in self._weights},
            outputs=tuple(outputs),
            function=fx.GraphModule({}, graph),
            weights={name: tensor for name, tensor in taken.items() if name in self._weights},
            recorded={name: self._known[name] for name in outputs if name in self._known},
        )


def copied(function: fx.GraphModule, returns: Callable[[Any], Any] = lambda made: made) -> fx.GraphModule:
    """Return a copy that returns `returns` of the results, without inputs and operations that it does not need."""
    graph = fx.Graph()
    graph.output(returns(graph.graph_copy(function.graph, {})))
    return fx.GraphModule({}, _needed(graph))


def _needed(graph: fx.Graph) -> fx.Graph:
    """Remove operations and inputs that the results do not need, in place, and return the graph."""
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.erase_node(node)
    return graph


def _weights(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return parameters, buffers and constants by the names of their placeholders."""
    signature = program.graph_signature
    places = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    held = {**program.constants, **program.state_dict}
    return {name: held[place] for name, place in places.items() if isinstance(held.get(place), torch.Tensor)}
