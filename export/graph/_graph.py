"""`Graph`: one representation for FX, ONNX and compiled graphs, read by printers, views and mappings."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from ._finding import Finding
from ._nodes import Node, Value
from ._text import format_graph


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run, and the values between them.

    Attributes:
        name: for people.
        inputs: names of the values that the graph is given.
        outputs: names of the values that it returns.
        constants: names of the values that it holds (weights).
        nodes: the operations.
        values: what is known of each value, by name.
        functions: the model's local functions, by the operator that calls them.
        source_graph: the graph that this one was made from, whose nodes its nodes' `origins` name; or None.
        findings: what a comparison found, by the value's name: one for each time that it was judged.
        remarks: what a comparison says of all of it, a sentence each.
        onnx: the ONNX model that it was read from, as it was then; None if it was read from something else.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    functions: Mapping[str, "Graph"] = field(default_factory=dict)
    source_graph: "Graph | None" = field(default=None, repr=False)
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict, repr=False)
    remarks: tuple[str, ...] = ()
    onnx: ir.Model | None = field(default=None, repr=False, compare=False)

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that makes a value, by the value's name."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read a value, by the value's name."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of all values."""
        return frozenset((*self.inputs, *self.constants, *self.producer))

    @cached_property
    def constant_values(self) -> frozenset[str]:
        """The values that do not depend on the graph's inputs."""
        found = set(self.constants)
        for node in self.nodes:
            if all(name in found for name in node.reads) and not node.op.startswith("Random"):
                found.update(node.outputs)
        return frozenset(found)

    def computed_from(self, names: Iterable[str]) -> frozenset[str]:
        """The values that depend on some of these names, and these."""
        found = {*names}
        for node in self.nodes:
            if not found.isdisjoint(node.reads):
                found.update(filter(None, node.outputs))
        return frozenset(found)

    def cone(self, outputs: Iterable[str], stop: Container[str]) -> tuple[Node, ...]:
        """The nodes that make `outputs` from the values in `stop` (and from nothing), in order.

        Args:
            outputs: names of values.
            stop: names of values that are not looked behind, even where they are among `outputs`' own inputs.
        """
        wanted: dict[int, Node] = {}
        pending = list(outputs)
        while pending:
            node = self.producer.get(pending.pop())
            if node is not None and self.places[node.name] not in wanted:
                wanted[self.places[node.name]] = node
                pending += [name for name in node.reads if name not in stop]
        return tuple(wanted[place] for place in sorted(wanted))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each node stands among `nodes`, by its name."""
        return {node.name: place for place, node in enumerate(self.nodes)}

    def text(self, *, modules: bool = False, sources: bool = False, title: str = "Graph") -> str:
        """The graph as text, a line a node: `x: float32[1, 128, 768] = MatMul(a, b)`.

        Args:
            modules: add each node's module path.
            sources: add each node's line of model code.
            title: what to call the graph; the functions that it calls follow it, each under its own name.
        """
        return format_graph(self, modules=modules, sources=sources, title=title)

    def __str__(self) -> str:
        return self.text()
