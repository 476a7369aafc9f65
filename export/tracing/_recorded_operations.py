"""Add the operations of a graph that Inductor compiled to a recording."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from ..backends.inductor._buffer_map import views_of
from ..backends.inductor._compiled_fx import GeneratedCode
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
from ._call_sites import innermost_frames, is_machinery
from ._dispatched import mark_derivative
from ._recording import GraphRecording


@dataclass(frozen=True)
class RecordedOperations:
    """The operations of generated code in a recording.

    Attributes:
        nodes: the operations, in order.
        by_name: maps the name of a node of AOTAutograd's graph to its operation; an item of a result to the operation
            that returns it.
        values: maps the same names to the names of recorded values: that of the node, and that of a later value which
            was written to the same memory, if any.
        views: maps the name of a view to the name of its base.
    """

    nodes: list[Node] = field(default_factory=list)
    by_name: dict[str, Node] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JointGraph:
    """The forward and backward graphs of one compilation.

    Attributes:
        frames: module calls with known call sites; see `module_stack`.
        forward: maps the sequence number of an operation to its first node and the lines of Python that lead to it.
    """

    frames: Mapping[str, Frame]
    forward: dict[int, tuple[Node, str]] = field(default_factory=dict)

    def assign(self, node: fx.Node, operation: Node) -> None:
        """Assign the sequence number of a node to an operation, unless an earlier one has it."""
        self.forward.setdefault(_number(node), (operation, _trace(node)))

    def forward_operation(self, node: fx.Node) -> Node | None:
        """Return the forward operation with the sequence number of a node; None if none has it."""
        return self.forward.get(_number(node), (None, ""))[0]

    def differentiated(self, node: fx.Node) -> Node | None:
        """Return the operation whose derivative a node is part of.

        AOTAutograd merges equal operations, and autograd numbers some in-place operations twice. A missing operation is
        replaced by the nearest one with the same lines.
        """
        if adds_gradients(node):  # of several operations
            return None
        if (operation := self.forward_operation(node)) is not None:
            return operation
        near = [number for number, (_, lines) in self.forward.items() if lines and lines == _trace(node)]
        return self.forward[min(near, key=lambda number: abs(number - _number(node)))][0] if near else None


class OperationRecorder:
    """Adds the operations that generated code computes to a recording.

    Args:
        code: the code that ran.
        inputs: its inputs.
        recording: has the inputs; the operations and what they compute are added.
        joint: the graphs of the compilation.
        running: the calls in which the code ran.
    """

    def __init__(
        self,
        code: GeneratedCode,
        inputs: Sequence[Any],
        recording: GraphRecording,
        joint: JointGraph,
        running: tuple[Frame, ...],
    ) -> None:
        self._graph = code.lowered.aot_graph
        self._is_backward = code.lowered.backward
        self._recording = recording
        self._joint = joint
        self._running = running
        self._inputs = dict(zip(self._graph.find_nodes(op="placeholder"), inputs, strict=True))
        self._operations = RecordedOperations()

    def record(self, results: Sequence[Any]) -> RecordedOperations:
        """Record the operations of the graph, and the tensors that the code returned."""
        values = self._operations.values
        for node in self._graph.nodes:
            if node.op == "call_function":
                self._add(node)
            elif isinstance(self._inputs.get(node), torch.Tensor):
                values[node.name] = self._recording.names_of(self._inputs[node])
            elif node.op == "get_attr":
                values[node.name] = (self._recording.add_constant_value(fx_value(node)),)
        outputs: Any = self._graph.output_node().args[0]
        for node, tensor in zip(outputs, results, strict=True):
            is_tensor = isinstance(tensor, torch.Tensor) and isinstance(node, fx.Node)
            # A result may be an input, or a copy of it in another layout.
            if is_tensor and (node.op == "call_function" or not self._recording.is_recorded(tensor)):
                self._recording.add_result(tensor, values[node.name][0])
        return self._operations

    def _add(self, node: fx.Node) -> None:
        """Add the operation of a node. A node that reads an item of a result belongs to the node that returns it."""
        operations = self._operations
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, fx.Node) and source.name in operations.by_name:
            operations.by_name[node.name] = operations.by_name[source.name]
            return
        operation = self._operation(node)
        operations.nodes.append(operation)
        operations.by_name[node.name] = operation
        base = views_of(node)
        if base is not None:
            operations.views.update(dict.fromkeys(operation.outputs, operations.values[base.name][0]))

    def _operation(self, node: fx.Node) -> Node:
        """Convert a node of the torch graph, and add what it computes.

        The operation has its own stack. One that computes a derivative has that of the differentiated operation, and
        one that the backward graph recomputes has that of the forward operation.
        """
        name = self._recording.unique(node.name)
        frames = python_lines(node)
        lines = list(dict.fromkeys(f"{file}:{line}" for file, line, _ in frames if not is_machinery(file)))
        calls = module_stack(node, self._joint.frames) or innermost_frames(reversed(lines))
        inputs = (value for item in node.all_input_nodes for value in self._operations.values.get(item.name, ()))
        operation = Node(
            name,
            operator_name(node.target),
            tuple(dict.fromkeys(inputs)),
            tuple(self._outputs(node, name)),
            settings_of(node.target, node.args, node.kwargs),
            module=module_path(node),
            source=lines[-1] if lines else None,
            target=node.name,
            stack=self._running + calls,
        )
        if is_gradient(node):
            return mark_derivative(operation, self._joint.differentiated(node))
        original = self._joint.forward_operation(node) if self._is_backward else None  # which is recomputed here
        if original is None and not operation.stack and len(node.all_input_nodes) > 1:  # a `copy_` without source lines
            original = self._operations.by_name.get(node.all_input_nodes[-1].name)
        if original is not None:
            return replace(operation, stack=original.stack, module=original.module)
        self._joint.assign(node, operation)
        return operation

    def _outputs(self, node: fx.Node, name: str) -> Iterator[str]:
        """Add the values that an operation computes, and yield their names; a `copy_` to an input is a write to it."""
        written = self._inputs.get(node.args[0]) if node.target is torch.ops.aten.copy_.default else None
        for item, value in _values(node, name):
            recorded = self._recording.add_write(written, value) if isinstance(written, torch.Tensor) else value
            self._operations.values[item.name] = (self._recording.add_value(replace(fx_value(item), name=recorded)),)
            yield recorded


def _number(node: fx.Node) -> int:
    """Return autograd's sequence number of a node; -1 if it has none."""
    number: int = node.meta.get("seq_nr", -1)
    return number


def _trace(node: fx.Node) -> str:
    """Return the recorded lines of Python that lead to a node, as one text."""
    return node.meta.get("stack_trace") or ""


def _values(node: fx.Node, name: str) -> Iterator[tuple[fx.Node, str]]:
    """Yield the nodes of the tensors that an operation returns, with their names."""
    items: dict[Any, fx.Node] = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if not items or isinstance(node.meta.get("val"), torch.Tensor):
        yield node, name
    else:
        yield from ((items[index], f"{name}:{index}") for index in sorted(items))
