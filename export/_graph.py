"""`Graph`, the one view on any graph: what printers, views and mappings read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Dim = int | str | None  # a number, the name of a symbolic dimension, or not known


@dataclass(frozen=True)
class Value:
    """What a node makes, or what the graph is given.

    Attributes:
        name: unique in its graph.
        dtype: as numpy and torch write it (`"float32"`); None if not known.
        shape: its dimensions; None if not known.
    """

    name: str
    dtype: str | None = None
    shape: tuple[Dim, ...] | None = None

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.dtype or '?'}[{dims}]"


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        name: unique in its graph.
        op: the operator (`"MatMul"`), with its domain in front where it is not ONNX's own
            (`"com.microsoft::FusedConv"`).
        inputs: names of the values it reads; `""` for an optional one that is left out.
        outputs: names of the values it makes; `""` likewise.
        attributes: by name, as plain Python values; tensors and subgraphs as short text.
        captured: names of outer values that its subgraphs read.
        module: path of the module whose call it belongs to, with `@1` after a second call; None if not known.
        source: `file:line` of the model's code; None if not known.
        target: the original operation that it is (part of) the translation of; None if not known.
        code: `file:line` of the code that a compiler generated for it; None where there is none.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    captured: tuple[str, ...] = ()
    module: str | None = None
    source: str | None = None
    target: str | None = None
    code: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """All values that it depends on."""
        return tuple(name for name in (*self.inputs, *self.captured) if name)


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
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    functions: Mapping[str, "Graph"] = field(default_factory=dict)

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
    def fixed(self) -> frozenset[str]:
        """The values that do not depend on the graph's inputs."""
        found = set(self.constants)
        for node in self.nodes:
            if all(name in found for name in node.reads) and not node.op.startswith("Random"):
                found.update(node.outputs)
        return frozenset(found)

    def cone(self, outputs: Iterable[str], stop: frozenset[str]) -> tuple[Node, ...]:
        """The nodes that make `outputs` from the values in `stop` (and from nothing), in order.

        Args:
            outputs: names of values.
            stop: names of values that are not looked behind, even where they are among `outputs`' own inputs.
        """
        wanted: dict[int, Node] = {}
        pending = list(outputs)
        while pending:
            node = self.producer.get(pending.pop())
            if node is not None and self._places[node.name] not in wanted:
                wanted[self._places[node.name]] = node
                pending += [name for name in node.reads if name not in stop]
        return tuple(wanted[place] for place in sorted(wanted))

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {node.name: place for place, node in enumerate(self.nodes)}

    def text(self, *, modules: bool = False, sources: bool = False, title: str = "Graph") -> str:
        """The graph as text, a line a node: `x: float32[1, 128, 768] = MatMul(a, b)`.

        Args:
            modules: add each node's module path.
            sources: add each node's line of model code.
            title: what to call the graph; the functions that it calls follow it, each under its own name.
        """
        inputs = ", ".join(self._typed(name) for name in self.inputs)
        lines = [f"{title}({inputs}){{"]
        used = {name for node in self.nodes for name in node.reads} | set(self.outputs)
        lines += [f"  {name} = Constant({self.values[name]})" for name in self.constants if name in used]
        for node in self.nodes:
            notes = [note for note, wanted in ((node.module, modules), (node.source, sources)) if wanted and note]
            lines.append(f"  {self._line(node)}{'  # ' + ', '.join(notes) if notes else ''}")
        text = "\n".join([*lines, f"  return {', '.join(self.outputs)}", "}"])
        inner = (
            function.text(modules=modules, sources=sources, title=f"Function {name}")
            for name, function in self.functions.items()
        )
        return "\n\n".join([text, *inner])

    def __str__(self) -> str:
        return self.text()

    def _typed(self, name: str) -> str:
        return f"{name}: {self.values.get(name, Value(name))}"

    def _line(self, node: Node) -> str:
        made = ", ".join(self._typed(name) for name in node.outputs if name)
        attributes = [f"{name}={_literal(value)}" for name, value in node.attributes.items()]
        return f"{made} = {node.op}({', '.join([*(name or '_' for name in node.inputs), *attributes])})"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) and not value.startswith("<") else str(value).strip("<>")
