"""Module calls: which values of a graph each call of a module took and gave."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ._graph import Graph
from ._nodes import Node

Resolution = Literal["exact", "alias", "constant", "fused", "dead"]

# Operators that give their first input's numbers, so that a value that is gone is still there under its input's name.
_PRESERVING = frozenset({"Identity", "Dropout"})


@dataclass(frozen=True)
class Port:
    """One tensor that a module call took or gave, and what became of it.

    Attributes:
        path: where it stands in the inputs (by parameter: `hidden_states`) or in the output (`""`, `[0]`).
        value: the name of the graph's value that holds its numbers, or None.
        resolution: `exact` (this value is the tensor), `alias` (this value equals it), `constant` (folded: it does not
            depend on the inputs), `fused` (it is computed inside another node), `dead` (nothing uses it).
        note: for `constant`, `fused` and `dead`, which node or why.
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
        iteration: how many times it ran before in the same run.
        inputs: the tensors it took.
        outputs: the tensors it gave.
    """

    path: str
    iteration: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def resolved(self, before: Graph | None, now: Graph) -> "ModuleCall":
        """The same call in a graph that passes have made of another one (see `follow`)."""
        return replace(
            self,
            inputs=tuple(follow(port, before, now) for port in self.inputs),
            outputs=tuple(follow(port, before, now) for port in self.outputs),
        )


Calls = Mapping[tuple[str, int], ModuleCall]
Sides = tuple[tuple[Port | None, ...], tuple[Port | None, ...]]  # what a call took and gave; None if a trace is lost


def follow(port: Port, before: Graph | None, now: Graph) -> Port:
    """What became of a port's value when `before` was transformed into `now`.

    Values are told by their names, which passes keep for what they keep. A value that is gone is looked for in the
    nodes that make the nearest values that are still there.

    Args:
        port: as it was in `before`.
        before: the graph before; None if it is not there any more.
        now: the graph after.
    """
    if port.value is None or port.value in now.known:
        return port
    if before is None:
        return replace(
            port, value=None, resolution="fused", note="it is gone from the graph, and what that was before is not kept"
        )
    if (source := _preserved(port.value, before, now)) is not None:
        return replace(port, value=source, resolution="alias")
    into = ", ".join(node.name for node in absorbed(port.value, before, now))
    if port.value in before.constant_values and into:
        return replace(port, value=None, resolution="constant", note=f"folded, for {into}")
    if into:
        return replace(port, value=None, resolution="fused", note=f"into {into}")
    return replace(port, value=None, resolution="dead", note="nothing uses it any more")


def _preserved(name: str, before: Graph, now: Graph) -> str | None:
    """A surviving value with the same numbers: up through nodes that change nothing, or down through one."""
    node = before.producer.get(name)
    while node is not None and node.op in _PRESERVING:
        if node.inputs[0] in now.known:
            return node.inputs[0]
        node = before.producer.get(node.inputs[0])
    below = [user for user in before.consumers.get(name, ()) if user.op in _PRESERVING]
    return next((out for user in below for out in user.outputs[:1] if out in now.known), None)


def absorbed(name: str, before: Graph, now: Graph) -> tuple[Node, ...]:
    """The nodes of `now` that make the nearest surviving values that depend on the value `name` of `before`."""
    found: dict[str, Node] = {}
    seen, pending = {name}, [name]
    while pending:
        for user in before.consumers.get(pending.pop(), ()):
            for output in user.outputs:
                if output in now.producer:
                    found[now.producer[output].name] = now.producer[output]
                elif output and output not in seen:
                    seen.add(output)
                    pending.append(output)
    return tuple(found.values())
