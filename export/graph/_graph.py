"""`Graph`, the one view on any graph: what printers, views and mappings read."""

import logging
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import onnx_ir as ir

from filch.steal.text import named

from ._finding import Finding

_log = logging.getLogger("filch")
Dim = int | str | None  # a number, the name of a symbolic dimension, or not known


@dataclass(frozen=True)
class Value:
    """What a node makes, or what the graph is given.

    Attributes:
        name: unique in its graph.
        dtype: as numpy and torch write it (`"float32"`); None if not known.
        shape: its dimensions; None if not known.
        content: the numbers of a constant with eight elements at most, as nested lists of Python numbers, or the number
            of one without dimensions; None for all else.
    """

    name: str
    dtype: str | None = None
    shape: tuple[Dim, ...] | None = None
    content: Any = field(default=None, compare=False)  # NaN is equal to nothing, itself included

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.dtype or '?'}[{dims}]"


@dataclass(frozen=True)
class Frame:
    """A call that an operation runs in: a module's, or a function's.

    Attributes:
        path: the module's path in the model (`"decoder.norm_1"`), `""` for the model itself; what else tells the call
            from others, where it is no module's (`"grad"`, `"train.py:12"`).
        type: the module's class (`"torch.nn.modules.linear.Linear"`); `""` if not known.
        source: `file:line` of the call; None if not known.
    """

    path: str
    type: str = ""
    source: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path, or all of it for a line of a file."""
        last = self.path.rpartition(".")[2]
        return self.path if ":" in last else last


def shared_calls(stacks: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """The calls, outermost first, that are around all of some operations, of which there is one at least."""
    levels = takewhile(lambda level: len({frame.path for frame in level}) == 1, zip(*stacks, strict=False))
    return tuple(level[0] for level in levels)


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
        stack: the calls that it runs in, outermost first; empty if not known.
        origins: the names of the nodes that it computes, in the graph that its own was made of.
        gradient_of: the name of the node whose derivative it is part of, in its own graph or in the one it was made of;
            None if it is no part of a backward pass, or adds gradients up.
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
    stack: tuple[Frame, ...] = ()
    origins: tuple[str, ...] = ()
    gradient_of: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """All values that it depends on."""
        read = (*self.inputs, *self.captured)
        return read if all(read) else tuple(filter(None, read))


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
        before: the graph that this one was made of, whose nodes its nodes' `origins` name; None if it was made of none.
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
    before: "Graph | None" = field(default=None, repr=False)
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
    def fixed(self) -> frozenset[str]:
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
        from ._text import format_graph  # noqa: PLC0415  data does not need what writes it

        return format_graph(self, modules=modules, sources=sources, title=title)

    def view(self, name: str, path: str | os.PathLike[str]) -> Path:
        """Draw it into a file.

        Args:
            name: how: one of `filch.export.views.view_names()`.
            path: of the file; its suffix may choose among what a view writes.

        Returns:
            the path of what was written: with another suffix, and a warning in the log, if what draws such files is not
            there.

        Raises:
            ViewError: there is no such view, it can't draw this graph, or the disk refuses.
        """
        from ..views import save  # noqa: PLC0415  as above

        written, note = save(self, name, path)
        if note:
            _log.warning("%s", named(note))
        return written

    def __str__(self) -> str:
        return self.text()
