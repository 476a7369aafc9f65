"""Add the operations of a graph that Inductor compiled to a recording."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ..backends.inductor._buffer_map import views_of
from ..backends.inductor._compiled_fx import Part
from ..graph._arguments import settings_of
from ..graph._from_fx import (
    adds_gradients,
    fx_value,
    is_gradient,
    module_path,
    module_stack,
    operator_name,
    python_lines,
)
from ..graph._nodes import Frame, Node
from ._call_sites import is_machinery, line_frame
from ._dispatched import LINES, derivative
from ._recording import GraphRecording


@dataclass(frozen=True)
class Operations:
    """The operations of one part.

    Attributes:
        nodes: the operations, in order.
        by_name: maps the name of a node of the torch graph to its operation; an item to the operation that returns it.
        values: maps the same names to the names of values: one, and a later one that was written over it.
        views: maps the name of a view to the name of its base.
    """

    nodes: list[Node] = field(default_factory=list)
    by_name: dict[str, Node] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Joint:
    """The forward and backward graphs of one compilation.

    Attributes:
        seen: module calls with known call sites; see `module_stack`.
        forward: maps the sequence number of an operation to its first node and the lines of Python that lead to it.
    """

    seen: Mapping[str, Frame]
    forward: dict[int, tuple[Node, str]] = field(default_factory=dict)

    def claim(self, node: fx.Node, operation: Node) -> None:
        """Assign a sequence number to an operation, unless an earlier one has it."""
        self.forward.setdefault(_number(node), (operation, _trace(node)))

    def repeated(self, node: fx.Node) -> Node | None:
        """Return the operation with the sequence number of a node."""
        return self.forward.get(_number(node), (None, ""))[0]

    def owner(self, node: fx.Node) -> Node | None:
        """Return the operation whose derivative a node is part of.

        AOTAutograd merges equal operations, and autograd numbers some in-place operations twice. A missing operation is
        replaced by the nearest one with the same lines.
        """
        known = self.repeated(node)
        if known is not None or adds_gradients(node):
            return None if adds_gradients(node) else known
        near = [number for number, (_, lines) in self.forward.items() if lines and lines == _trace(node)]
        return self.forward[min(near, key=lambda number: abs(number - _number(node)))][0] if near else None


class PartReader:
    """Adds the operations of a part to a recording.

    Args:
        part: the part that ran.
        given: its inputs.
        recording: has the inputs; the results are added.
        joint: the graphs of the compilation.
        running: the calls in which the part ran.
    """

    def __init__(
        self, part: Part, given: Sequence[Any], recording: GraphRecording, joint: Joint, running: tuple[Frame, ...]
    ) -> None:
        self._graph = part.lowered.aot_graph
        self._again = part.lowered.backward
        self._recording = recording
        self._joint = joint
        self._running = running
        self._given = dict(zip(self._graph.find_nodes(op="placeholder"), given, strict=True))
        self._made = Operations()

    def read(self, returned: Sequence[Any]) -> Operations:
        """Record the operations of the part's graph, and the tensors that it returned."""
        for node in self._graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif isinstance(self._given.get(node), torch.Tensor):
                self._made.values[node.name] = self._recording.read(self._given[node])
            elif node.op == "get_attr":
                self._made.values[node.name] = (self._recording.hold_unseen(fx_value(node)),)
        outputs: Any = self._graph.output_node().args[0]
        pairs = zip(outputs, returned, strict=True)
        tensors = [(node, item) for node, item in pairs if isinstance(item, torch.Tensor) and isinstance(node, fx.Node)]
        for node, tensor in tensors:
            # A result may be an input, or a copy of it in another layout.
            if node.op == "call_function" or not self._recording.knows(tensor):
                self._recording.make(tensor, self._made.values[node.name][0])
        return self._made

    def _call(self, node: fx.Node) -> None:
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, fx.Node) and source.name in self._made.by_name:  # an item of a result
            self._made.by_name[node.name] = self._made.by_name[source.name]
            return
        operation = self._operation(node)
        self._made.nodes.append(operation)
        self._made.by_name[node.name] = operation
        base = views_of(node)
        if base is not None:
            self._made.views.update(dict.fromkeys(operation.outputs, self._made.values[base.name][0]))

    def _operation(self, node: fx.Node) -> Node:
        name = self._recording.unique(node.name)
        lines = _lines(node)
        reads = (read for item in node.all_input_nodes for read in self._made.values.get(item.name, ()))
        return self._placed(
            node,
            Node(
                name,
                operator_name(node.target),
                tuple(dict.fromkeys(reads)),
                tuple(self._outputs(node, name)),
                settings_of(node.target, node.args, node.kwargs),
                module=module_path(node),
                source=lines[-1] if lines else None,
                target=node.name,
                stack=self._running
                + (module_stack(node, self._joint.seen) or tuple(line_frame(line) for line in lines[-LINES:])),
            ),
        )

    def _outputs(self, node: fx.Node, name: str) -> Iterator[str]:
        """Yield the names of the values that an operation computes."""
        written = self._given.get(node.args[0]) if node.target is torch.ops.aten.copy_.default else None
        for item, value in _values(node, name):
            known = self._recording.write(written, value) if isinstance(written, torch.Tensor) else value
            self._made.values[item.name] = (self._recording.state(replace(fx_value(item), name=known)),)
            yield known

    def _placed(self, node: fx.Node, operation: Node) -> Node:
        """Add to an operation what it is a derivative of, or the stack of the operation that it recomputes."""
        if is_gradient(node):
            return derivative(operation, self._joint.owner(node))
        known = self._joint.repeated(node) if self._again else None  # recomputed in the backward graph
        if known is None and not operation.stack and len(node.all_input_nodes) > 1:  # a `copy_` without source lines
            known = self._made.by_name.get(node.all_input_nodes[-1].name)
        if known is not None:
            return replace(operation, stack=known.stack, module=known.module)
        self._joint.claim(node, operation)
        return operation


def _number(node: fx.Node) -> int:
    number: int = node.meta.get("seq_nr", -1)
    return number


def _trace(node: fx.Node) -> str:
    return node.meta.get("stack_trace") or ""


def _lines(node: fx.Node) -> list[str]:
    """Return the lines of user code that lead to a node, outermost first."""
    return list(dict.fromkeys(f"{file}:{line}" for file, line, _ in python_lines(node) if not is_machinery(file)))


def _values(node: fx.Node, name: str) -> Iterator[tuple[fx.Node, str]]:
    """Yield the nodes of the tensors that an operation returns, with their names."""
    items: dict[Any, fx.Node] = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if not items or isinstance(node.meta.get("val"), torch.Tensor):
        yield node, name
    else:
        yield from ((items[index], f"{name}:{index}") for index in sorted(items))
