"""Module calls: the values of a graph that are the inputs and outputs of each call of a module."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ._graph import Graph
from ._nodes import Node

Resolution = Literal["exact", "alias", "constant", "fused", "dead"]

# Operators whose output equals their first input, so that a removed output can be replaced by the input.
_IDENTITIES = frozenset({"Identity", "Dropout"})


@dataclass(frozen=True)
class Port:
    """One input or output tensor of a module call, and the value of the graph that corresponds to it.

    Attributes:
        path: the tensor's path in the inputs (by parameter: `hidden_states`) or in the output (`""`, `[0]`).
        value: the name of the graph's value that equals it, or None.
        resolution: `exact` (this value is the tensor), `alias` (this value equals it), `constant` (folded: it does not
            depend on the inputs), `fused` (it is computed inside another node), `dead` (nothing uses it).
        note: for `constant` and `fused`, the node; for `dead`, the reason.
    """

    path: str
    value: str | None
    resolution: Resolution
    note: str = ""


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module.

    Attributes:
        path: the module's path in the exported model.
        iteration: the number of earlier calls of the module in the same run.
        inputs: its input tensors.
        outputs: its output tensors.
    """

    path: str
    iteration: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def resolved(self, before: Graph | None, now: Graph) -> "ModuleCall":
        """Return the same call in the graph `now`, which passes made from `before` (see `follow`)."""
        return replace(
            self,
            inputs=tuple(follow(port, before, now) for port in self.inputs),
            outputs=tuple(follow(port, before, now) for port in self.outputs),
        )


Calls = Mapping[tuple[str, int], ModuleCall]
Sides = tuple[tuple[Port | None, ...], tuple[Port | None, ...]]  # inputs and outputs of a call; None if not found


def follow(port: Port, before: Graph | None, now: Graph) -> Port:
    """Resolve a port of `before` in `now`, the graph after some passes.

    Values are identified by name: passes keep the names of the values that they keep. A removed value is attributed to
    the nodes that compute the nearest remaining values that depend on it.

    Args:
        port: the port in `before`.
        before: the graph before the passes; None if it is not available.
        now: the graph after the passes.
    """
    if port.value is None or port.value in now.known:  # it had no value before, or still has it
        return port
    if before is None:
        return replace(
            port, value=None, resolution="fused", note="removed from the graph; the original graph is not available"
        )
    if (source := _equal_value(port.value, before, now)) is not None:
        return replace(port, value=source, resolution="alias")
    into = ", ".join(node.name for node in _absorbing_nodes(port.value, before, now))
    if port.value in before.constant_values and into:
        return replace(port, value=None, resolution="constant", note=f"folded, for {into}")
    if into:
        return replace(port, value=None, resolution="fused", note=f"into {into}")
    return replace(port, value=None, resolution="dead", note="nothing uses it any more")


def _equal_value(name: str, before: Graph, now: Graph) -> str | None:
    """Return a remaining value that equals `name`: an input of no-op nodes before it, or an output of one after it."""
    node = before.producer.get(name)
    while node is not None and node.op in _IDENTITIES:
        if node.inputs[0] in now.known:
            return node.inputs[0]
        node = before.producer.get(node.inputs[0])
    below = [user for user in before.consumers.get(name, ()) if user.op in _IDENTITIES]
    return next((out for user in below for out in user.outputs[:1] if out in now.known), None)


def _absorbing_nodes(name: str, before: Graph, now: Graph) -> tuple[Node, ...]:
    """Return the nodes of `now` that compute the nearest remaining values that depend on `name` in `before`."""
    nodes: dict[str, Node] = {}
    seen, pending = {name}, [name]
    while pending:
        for user in before.consumers.get(pending.pop(), ()):
            for output in user.outputs:
                if output in now.producer:
                    nodes[now.producer[output].name] = now.producer[output]
                elif output and output not in seen:
                    seen.add(output)
                    pending.append(output)
    return tuple(nodes.values())
