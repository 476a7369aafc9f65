"""Extract parts of an exported program, as operations of torch."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from filch.export import Graph, graph_from_fx

from ._case import Case, Tensors
from ._grow import runnable_part


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
        self._known = {name: tensor for name, tensor in known.items() if isinstance(traced.get(name), torch.Tensor)}

    def case(self, names: Collection[str]) -> Case | None:
        """Return the operations of these names and those they need; None if they can't run alone."""
        part = runnable_part(self.graph, names, self._known, self._weights)
        return None if part is None else self.part([node.name for node in part[0]], part[1])

    def part(self, names: Collection[str], outputs: Sequence[str]) -> Case | None:
        """Return a function of these operations that returns `outputs`; None if an input or output is unknown."""
        operations = [node for node in self._program.graph.nodes if node.op == "call_function" and node.name in names]
        computed = {node.name for node in operations}
        read = dict.fromkeys(node for user in operations for node in user.all_input_nodes)
        inputs = [node for node in read if node.name not in computed]
        known = {**self._weights, **self._known}
        if not {*outputs} <= computed or any(node.name not in known for node in inputs):
            return None
        graph = fx.Graph()
        copies = {node.name: graph.placeholder(node.name) for node in inputs}
        for node in operations:
            copies[node.name] = graph.node_copy(node, lambda item: copies[item.name])
            copies[node.name].meta = {}  # it has shapes, which may be reduced
        graph.output(tuple(copies[name] for name in outputs))
        _remove_unused(graph)
        placeholders = graph.find_nodes(op="placeholder")  # fx renames a node called `input`, but keeps its target
        arguments = {str(node.target): known[str(node.target)].detach() for node in placeholders}
        return Case(
            inputs={name: tensor for name, tensor in arguments.items() if name not in self._weights},
            outputs=tuple(outputs),
            function=fx.GraphModule({}, graph),
            weights={name: tensor for name, tensor in arguments.items() if name in self._weights},
            recorded={name: self._known[name] for name in outputs if name in self._known},
        )


def copy_function(function: fx.GraphModule, select: Callable[[Any], Any] = lambda results: results) -> fx.GraphModule:
    """Return a copy that returns `select(results)`, without inputs and operations that this does not need."""
    graph = fx.Graph()
    graph.output(select(graph.graph_copy(function.graph, {})))
    _remove_unused(graph)
    return fx.GraphModule({}, graph)


def _remove_unused(graph: fx.Graph) -> None:
    """Remove operations and inputs that the results do not need, in place."""
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.erase_node(node)


def _weights(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return parameters, buffers and constants by the names of their placeholders."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    names |= signature.inputs_to_lifted_tensor_constants
    state = {**program.constants, **program.state_dict}
    tensors = {placeholder: state.get(name) for placeholder, name in names.items()}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
