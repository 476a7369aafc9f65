"""The float64 values of single nodes of a torch graph."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ..float64._values import Float64Values
from ..float64._verdict import Float64Value
from ..runs._mode import float64_values


class NodeValues(Float64Values):
    """Values of a graph's nodes, each computed in float64 from known values of the nodes before it.

    Args:
        module: the graph.
        arguments: its inputs by name.
        known: returns the value of a node that is known; None has it computed.
    """

    def __init__(
        self, module: fx.GraphModule, arguments: Mapping[str, Any], known: Callable[[str], torch.Tensor | None]
    ) -> None:
        super().__init__()
        self._module, self._arguments, self._known = module, arguments, known
        self._nodes = {node.name: node for node in module.graph.nodes}

    def get(self, name: str) -> Float64Value | None:
        """Return the float64 value of a node, computed from known values; None if it is no tensor."""
        return float64_values(lambda: self._computed(name)).get(name) if name in self._nodes else None

    def _computed(self, name: str) -> dict[str, torch.Tensor]:
        """Return the value of a node by its name, if it is a tensor."""
        target = self._nodes[name]
        interpreter = fx.Interpreter(self._module)
        values, wanted, pending = interpreter.env, set(), [target]
        while pending:
            node = pending.pop()
            known = None if node is target else self._known(node.name)
            if known is None and node.op == "placeholder":
                known = self._arguments[node.name]
            if known is not None:
                values[node] = known.clone() if isinstance(known, torch.Tensor) else known
            elif node not in wanted:
                wanted.add(node)
                pending += node.all_input_nodes
        for node in self._module.graph.nodes:
            if node in wanted:
                values[node] = interpreter.run_node(node)
        result = values[target]
        return {name: result} if isinstance(result, torch.Tensor) else {}
