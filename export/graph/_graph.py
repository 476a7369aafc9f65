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
    """Nodes in topological order, and the values between them.

    Attributes:
        name: the name to display.
        inputs: names of the graph's inputs.
        outputs: names of the values that it returns.
        constants: names of its weights.
        nodes: the operations.
        values: dtype and shape of each value, by name.
        functions: the model's local functions, by the operator that calls them.
        source_graph: the graph that this one was compiled from, whose nodes `Node.origins` names; or None.
        findings: the results of a comparison, by value name; one for each call in which the value was compared.
        remarks: sentences of a comparison about the whole graph.
        onnx: the ONNX model that the graph was read from; None if it was read from something else.
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
        """The node that computes each value, by the value's name."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, by the value's name."""
        consumers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                consumers.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in consumers.items()}

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of all values."""
        return frozenset((*self.inputs, *self.constants, *self.producer))

    @cached_property
    def constant_values(self) -> frozenset[str]:
        """The values that do not depend on the graph's inputs."""
        constant = set(self.constants)
        for node in self.nodes:
            if all(name in constant for name in node.reads) and not node.op.startswith("Random"):
                constant.update(node.outputs)
        return frozenset(constant)

    def computed_from(self, names: Iterable[str]) -> frozenset[str]:
        """Return these values and all values that depend on any of them."""
        dependent = {*names}
        for node in self.nodes:
            if not dependent.isdisjoint(node.reads):
                dependent.update(filter(None, node.outputs))
        return frozenset(dependent)

    def cone(self, outputs: Iterable[str], stop: Container[str]) -> tuple[Node, ...]:
        """Return the nodes that compute `outputs` from the values in `stop`, the inputs and the weights, in order.

        Args:
            outputs: names of values.
            stop: names of values whose producers are left out, unless they are also in `outputs`.
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
        """The index of each node in `nodes`, by its name."""
        return {node.name: place for place, node in enumerate(self.nodes)}

    def text(self, *, modules: bool = False, sources: bool = False, title: str = "Graph") -> str:
        """Return the graph as text, one line per node: `x: float32[1, 128, 768] = MatMul(a, b)`.

        Args:
            modules: add each node's module path.
            sources: add each node's line of model code.
            title: the word before the graph's inputs. The graph's local functions follow, each under its own name.
        """
        return format_graph(self, modules=modules, sources=sources, title=title)

    def __str__(self) -> str:
        return self.text()
