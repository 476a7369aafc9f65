"""Faults of caches, masks, positions and gathers in programs with a cache, and in what runs them step by step.

A plant changes a program, or the inputs of its calls, and returns the value that becomes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
import torch

from filch.export import Program
from filch.export.backends import Backend, Compiled, ReferenceLookup, get_backend

FIRST = 3  # tokens in the first call
WINDOW = 5  # of models with a sliding window
SLOTS = 16  # of static caches

Inputs = dict[str, torch.Tensor]
Operand = ir.Value | int | float | Sequence[int] | Sequence[float] | torch.Tensor


class Edit:
    """A program that is changed.

    Attributes:
        program: the program; its graph is a copy.
        graph: its graph.
        start: how many tokens have to be in the cache for the fault to show; None means that it always does.
    """

    def __init__(self, program: Program, start: int | None = None) -> None:
        self.program = replace(program, model=program.model.clone())
        self.graph = self.program.model.graph
        self.start = start

    def add(self, op: str, inputs: Sequence[Operand], *, before: ir.Node, **attributes: object) -> ir.Value:
        """Insert a node, which belongs to the module of `before`, and return its output."""
        operands = [item if isinstance(item, ir.Value) else self._constant(item, before) for item in inputs]
        return self._insert(ir.node(op, operands, attributes), before)

    def put(self, value: ir.Value, make: Callable[[ir.Node], ir.Value]) -> set[str]:
        """Let all readers of a value read another one, of the same name; return the name.

        Args:
            value: the value.
            make: adds the nodes that compute the other value before a node, and returns it.
        """
        users = tuple(value.uses())
        order = {node: index for index, node in enumerate(self.graph)}
        outputs = [index for index, output in enumerate(self.graph.outputs) if output is value]
        producer = value.producer()
        if outputs:  # both what this call reads and what the next one gets
            assert producer is not None
            anchor = list(self.graph)[order[producer] + 1]
        else:
            anchor = min((node for node, _ in users), key=order.__getitem__)
        known = set(self.graph)
        new = self.late(make(anchor), value, anchor)
        new.name, value.name, new.dtype, new.shape = value.name, f"{value.name}_before", value.dtype, value.shape
        for node in set(self.graph) - known:
            if producer is not None:
                node.metadata_props.update(producer.metadata_props)
        for node, index in users:
            node.replace_input_with(index, new)
        for index in outputs:
            self.graph.outputs[index] = new
        return {str(new.name)}

    def redirect(self, node: ir.Node, index: int, make: Callable[[ir.Node], ir.Value]) -> set[str]:
        """Let one node read another value; return the names of its outputs and of the value if it is a new one."""
        known = set(self.graph)
        value = node.inputs[index]
        assert value is not None
        new = self.late(make(node), value, node)
        node.replace_input_with(index, new)
        added = {str(new.name)} if new.producer() not in known else set()
        return added | {str(output.name) for output in node.outputs}

    def late(self, new: ir.Value, old: ir.Value, anchor: ir.Node) -> ir.Value:
        """Return `new` in calls with at least `start` tokens in the cache, else `old`."""
        if self.start is None:
            return new
        is_late = self.add("GreaterOrEqual", [self.past(anchor), self.start], before=anchor)
        if old.dtype != ir.DataType.BOOL:
            return self.add("Where", [is_late, new, old], before=anchor)
        early = self.add("Not", [is_late], before=anchor)  # ONNX Runtime has no Where of booleans
        parts = [self.add("And", pair, before=anchor) for pair in ([is_late, new], [early, old])]
        return self.add("Or", parts, before=anchor)

    def past(self, anchor: ir.Node) -> ir.Value:
        """Return the number of tokens in the cache."""
        inputs = {value.name: value for value in self.graph.inputs}
        if "past_key_values.0.length" in inputs:
            return self.add("ReduceMax", [inputs["past_key_values.0.length"]], before=anchor, keepdims=0)
        keys = next(value for name, value in inputs.items() if is_key(str(name)))
        shape = self.add("Shape", [keys], before=anchor, start=2, end=3)
        return self.add("Squeeze", [shape], before=anchor)

    def _constant(self, content: object, anchor: ir.Node) -> ir.Value:
        tensor = content if isinstance(content, torch.Tensor) else torch.tensor(content)
        return self._insert(ir.node("Constant", [], {"value": ir.tensor(tensor.numpy())}), anchor)

    def _insert(self, node: ir.Node, anchor: ir.Node) -> ir.Value:
        (output,) = node.outputs
        output.name = f"planted_{len(self.graph)}"
        node.name = f"node_{output.name}"
        node.metadata_props.update(anchor.metadata_props)
        self.graph.insert_before(anchor, node)
        return output


# Where things are in a graph.


def is_key(name: str) -> bool:
    """Return whether an input of a program has a key of each token in the cache."""
    return name.endswith(".key") and ".encoder." not in name


def producer(value: ir.Value | None) -> ir.Node:
    """Return the node that computes a value."""
    node = value.producer() if value is not None else None
    assert node is not None
    return node


def above(value: ir.Value | None, op: str) -> ir.Node:
    """Return the nearest node of an operator among a value's producer and the nodes before it."""
    level = [value]
    while level:
        nodes = [node for item in level if item is not None and (node := item.producer()) is not None]
        for node in nodes:
            if node.op_type == op:
                return node
        level = [item for node in nodes for item in node.inputs]
    raise AssertionError(f"no {op}")


def named(edit: Edit, name: str) -> ir.Value:
    """Return an output of the graph, by name."""
    return next(value for value in edit.graph.outputs if value.name == name)


def softmax(edit: Edit, layer: int) -> ir.Node:
    """Return the node that normalizes the attention of a layer."""
    nodes = [node for node in edit.graph if node.op_type == "Softmax" and len(node.outputs[0].shape or ()) == 4]
    return nodes[layer]


def masked(edit: Edit, layer: int) -> ir.Node:
    """Return the node that adds the mask to the scores of a layer."""
    return above(softmax(edit, layer).inputs[0], "Add")


def mask(edit: Edit, layer: int) -> ir.Node:
    """Return the node that turns the mask of a layer into numbers that are added."""
    return above(masked(edit, layer).inputs[1], "Where")


def causal(edit: Edit, layer: int) -> ir.Node:
    """Return the comparison of the positions of keys with those of queries."""
    return above(mask(edit, layer).inputs[0], "LessOrEqual")


def window(edit: Edit, layer: int) -> ir.Node:
    """Return the comparison of the positions of keys with the first one in the window."""
    return above(mask(edit, layer).inputs[0], "Greater")


def query(edit: Edit, layer: int) -> ir.Node:
    """Return the addition that ends the rotation of the query."""
    return above(above(masked(edit, layer).inputs[0], "MatMul").inputs[0], "Add")


def key(edit: Edit, layer: int) -> ir.Node:
    """Return the addition that ends the rotation of the key."""
    node = producer(named(edit, f"present.{layer}.key"))
    return above(node.inputs[1] if node.op_type == "Concat" else above(node.inputs[0], "ScatterND").inputs[2], "Add")


def angle(edit: Edit) -> ir.Node:
    """Return the product of positions and frequencies."""
    return above(next(node for node in edit.graph if node.op_type == "Cos").inputs[0], "Mul")


def places(edit: Edit) -> ir.Value:
    """Return the positions that are rotated by, int64 in the shape [sequences, tokens, 1]."""
    value = above(angle(edit).inputs[0], "Cast").inputs[0]
    assert value is not None
    return value


def out(node: ir.Node) -> ir.Value:
    """Return the first output of a node."""
    return node.outputs[0]


# What happens to a value: each takes the edit, the value and the node to insert before, and returns another value.

Change = Callable[[Edit, ir.Value, ir.Node], ir.Value]


def part(edit: Edit, value: ir.Value, anchor: ir.Node, start: int, end: int, *, axis: int = 2) -> ir.Value:
    """Return a slice."""
    return edit.add("Slice", [value, [start], [end], [axis]], before=anchor)


def without_slot(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Empty the first slot."""
    first = part(edit, value, anchor, 0, 1)
    first = edit.add("Sub", [first, first], before=anchor)
    return edit.add("Concat", [first, part(edit, value, anchor, 1, 999)], before=anchor, axis=2)


def repeated_slot(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Keep in the last slot what was in the one before, as if the new token were not written."""
    parts = [part(edit, value, anchor, 0, -1), part(edit, value, anchor, -2, -1)]
    return edit.add("Concat", parts, before=anchor, axis=2)


def late_slot(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Move all slots by one, the last one to the front."""
    parts = [part(edit, value, anchor, -1, 999), part(edit, value, anchor, 0, -1)]
    return edit.add("Concat", parts, before=anchor, axis=2)


def exchanged_slots(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Exchange the first two slots."""
    parts = [part(edit, value, anchor, 1, 2), part(edit, value, anchor, 0, 1), part(edit, value, anchor, 2, 999)]
    return edit.add("Concat", parts, before=anchor, axis=2)


def taken(indices: Sequence[int], axis: int) -> Change:
    """Gather along an axis."""
    return lambda edit, value, anchor: edit.add("Gather", [value, indices], before=anchor, axis=axis)


def rounded(dtype: ir.DataType) -> Change:
    """Store in another dtype."""

    def change(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
        low = edit.add("Cast", [value], before=anchor, to=dtype.value)
        return edit.add("Cast", [low], before=anchor, to=ir.DataType.FLOAT.value)

    return change


def quantized(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Round to steps of 1/16."""
    steps = edit.add("Round", [edit.add("Mul", [value, 16.0], before=anchor)], before=anchor)
    return edit.add("Mul", [steps, 1 / 16], before=anchor)


def applied(op: str, *operands: Operand) -> Change:
    """Apply an operator to a value and constants."""
    return lambda edit, value, anchor: edit.add(op, [value, *operands], before=anchor)


# Plants: they return the names of the values that become wrong.

Plant = Callable[[Edit, int], set[str]]


def cache(kind: str, change: Change) -> Plant:
    """Change the keys or values of a layer, for this call and the next ones."""

    def plant(edit: Edit, layer: int) -> set[str]:
        value = named(edit, f"present.{layer}.{kind}")
        return edit.put(value, lambda anchor: change(edit, value, anchor))

    return plant


def kept(kind: str, change: Change) -> Plant:
    """Change the keys or values that the next call gets, but not what this one reads."""

    def plant(edit: Edit, layer: int) -> set[str]:
        value = named(edit, f"present.{layer}.{kind}")
        index = next(index for index, output in enumerate(edit.graph.outputs) if output is value)
        last = list(edit.graph)[-1]
        new = edit.late(change(edit, value, last), value, last)
        new.name, value.name, new.dtype, new.shape = value.name, f"{value.name}_read", value.dtype, value.shape
        for name, content in producer(value).metadata_props.items():
            producer(new).metadata_props[name] = content
        edit.graph.outputs[index] = new
        return {str(new.name)}

    return plant


def new_first(kind: str) -> Plant:
    """Append the past to the new tokens."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = producer(named(edit, f"present.{layer}.{kind}"))
        past, new = node.inputs
        if edit.start is None:
            node.replace_input_with(0, new)
            node.replace_input_with(1, past)
            return {str(out(node).name)}
        return edit.put(out(node), lambda anchor: edit.add("Concat", [new, past], before=anchor, axis=-2))  # type: ignore[list-item]

    return plant


def other_layer(kind: str) -> Plant:
    """Store what the first layer computes, in a later layer."""

    def plant(edit: Edit, layer: int) -> set[str]:
        first = producer(named(edit, f"present.0.{kind}")).inputs[1]
        assert first is not None
        return edit.redirect(producer(named(edit, f"present.{layer}.{kind}")), 1, lambda _: first)

    return plant


def on(find: Callable[[Edit, int], ir.Node], change: Change) -> Plant:
    """Change the result of a node."""

    def plant(edit: Edit, layer: int) -> set[str]:
        value = out(find(edit, layer))
        return edit.put(value, lambda anchor: change(edit, value, anchor))

    return plant


def unrotated(find: Callable[[Edit, int], ir.Node]) -> Plant:
    """Leave out a rotation."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = find(edit, layer)
        value = producer(node.inputs[0]).inputs[0]
        assert value is not None
        return edit.put(out(node), lambda _: value)

    return plant


def rotated_back(find: Callable[[Edit, int], ir.Node]) -> Plant:
    """Rotate in the other direction."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = find(edit, layer)
        return edit.put(out(node), lambda anchor: edit.add("Sub", list(node.inputs), before=anchor))  # type: ignore[arg-type]

    return plant


def rotated_twice(find: Callable[[Edit, int], ir.Node]) -> Plant:
    """Rotate a second time."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = find(edit, layer)
        cos, sin = (producer(item).inputs[1] for item in node.inputs)
        assert cos is not None
        assert sin is not None
        value = out(node)
        half = int(value.shape[-1]) // 2  # type: ignore[index]

        def make(anchor: ir.Node) -> ir.Value:
            low, high = part(edit, value, anchor, 0, half, axis=-1), part(edit, value, anchor, half, 99, axis=-1)
            turned = edit.add("Concat", [edit.add("Neg", [high], before=anchor), low], before=anchor, axis=-1)
            products = [edit.add("Mul", pair, before=anchor) for pair in ([value, cos], [turned, sin])]
            return edit.add("Add", products, before=anchor)

        return edit.put(value, make)

    return plant


def positions(change: Change) -> Plant:
    """Change the positions that are rotated by."""

    def plant(edit: Edit, _layer: int) -> set[str]:
        value = places(edit)
        return edit.put(value, lambda anchor: change(edit, value, anchor))

    return plant


def restarted(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Count positions from the first token of the call."""
    return edit.add("Sub", [value, edit.past(anchor)], before=anchor)


def learned_positions(change: Change) -> Plant:
    """Change the positions of learned embeddings."""

    def plant(edit: Edit, _layer: int) -> set[str]:
        node = next(node for node in edit.graph if node.op_type == "Gather" and "wpe" in str(node.inputs[0].name))  # type: ignore[union-attr]
        value = node.inputs[1]
        assert value is not None
        return edit.redirect(node, 1, lambda anchor: change(edit, value, anchor))

    return plant


def compared(op: str, *, query: int = 0) -> Plant:
    """Compare positions of keys and queries in another way: with another operator, or with later or earlier queries."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = causal(edit, layer)
        keys, queries = node.inputs
        assert keys is not None
        assert queries is not None

        def make(anchor: ir.Node) -> ir.Value:
            moved = edit.add("Add", [queries, query], before=anchor) if query else queries
            return edit.add(op, [keys, moved], before=anchor)

        return edit.put(out(node), make)

    return plant


def hidden(op: str, *operand: int) -> Plant:
    """Hide the keys that an operator finds for a number, or for the position before the query's."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = causal(edit, layer)
        keys, queries = node.inputs
        assert keys is not None
        assert queries is not None

        def make(anchor: ir.Node) -> ir.Value:
            other = operand[0] if operand else edit.add("Sub", [queries, 1], before=anchor)
            found = edit.add(op, [keys, other], before=anchor)
            return edit.add("And", [out(node), edit.add("Not", [found], before=anchor)], before=anchor)

        return edit.put(out(node), make)

    return plant


def hidden_in_sequence(sequence: int, slot: int) -> Plant:
    """Hide a slot in one sequence."""

    def plant(edit: Edit, layer: int) -> set[str]:
        value = mask(edit, layer).inputs[0]
        keys = causal(edit, layer).inputs[0]
        assert value is not None
        assert keys is not None
        rows = torch.tensor([row == sequence for row in range(2)])[:, None, None, None]

        def make(anchor: ir.Node) -> ir.Value:
            found = edit.add("And", [edit.add("Equal", [keys, slot], before=anchor), rows], before=anchor)
            return edit.add("And", [value, edit.add("Not", [found], before=anchor)], before=anchor)

        return edit.put(value, make)

    return plant


def windowed(size: int) -> Plant:
    """Hide the keys before a window in a model without one."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = causal(edit, layer)
        keys, queries = node.inputs
        assert keys is not None
        assert queries is not None

        def make(anchor: ir.Node) -> ir.Value:
            first = edit.add("Sub", [queries, size], before=anchor)
            inside = edit.add("Greater", [keys, first], before=anchor)
            return edit.add("And", [out(node), inside], before=anchor)

        return edit.put(out(node), make)

    return plant


def window_of(size: int) -> Plant:
    """Let a window have another size."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = producer(window(edit, layer).inputs[1])
        queries = node.inputs[0]
        assert queries is not None
        return edit.put(out(node), lambda anchor: edit.add("Sub", [queries, size], before=anchor))

    return plant


def no_window(edit: Edit, layer: int) -> set[str]:
    """Let a window be as large as the cache."""
    value = out(window(edit, layer))
    return edit.put(
        value, lambda anchor: edit.add("Or", [value, edit.add("Not", [value], before=anchor)], before=anchor)
    )


def queries_from_zero(edit: Edit, layer: int) -> set[str]:
    """Count the positions of queries, in the mask, from the first token of the call."""
    node = above(causal(edit, layer).inputs[1], "Add")
    start = node.inputs[0]
    assert start is not None
    return edit.put(out(node), lambda _: start)


def weak_mask(amount: float) -> Plant:
    """Add a number to hidden scores that is not low enough."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = mask(edit, layer)
        return edit.redirect(node, 2, lambda anchor: edit.add("Identity", [amount], before=anchor)) - {
            str(node.inputs[2].name)  # type: ignore[union-attr]  # a constant is no wrong value
        }

    return plant


def no_mask(edit: Edit, layer: int) -> set[str]:
    """Add nothing to the scores of one layer."""
    node = masked(edit, layer)
    value = node.inputs[1]
    assert value is not None
    return edit.redirect(node, 1, lambda anchor: edit.add("Sub", [value, value], before=anchor))


def other_mask(other: int) -> Plant:
    """Let a layer use the mask of another one."""

    def plant(edit: Edit, layer: int) -> set[str]:
        value = masked(edit, other).inputs[1]
        assert value is not None
        return edit.redirect(masked(edit, layer), 1, lambda _: value)

    return plant


def attended(edit: Edit, layer: int) -> ir.Node:
    """Return the node that makes the values, repeated for all heads, that attention reads."""
    node = next(
        node
        for node in edit.graph
        if node.op_type == "MatMul" and above_or_none(node.inputs[0], "Softmax") is softmax(edit, layer)
    )
    return producer(node.inputs[1])


def above_or_none(value: ir.Value | None, op: str) -> ir.Node | None:
    """Return the node of an operator that computes a value, by way of nodes that keep its shape; None if not."""
    for _ in range(4):
        node = value.producer() if value is not None else None
        if node is None:
            return None
        if node.op_type == op:
            return node
        value = node.inputs[-1] if node.op_type == "Where" else node.inputs[0]
    return None


def embedding(edit: Edit, _layer: int) -> ir.Node:
    """Return the lookup of the tokens."""
    return next(node for node in edit.graph if node.op_type == "Gather" and node.inputs[1] is edit.graph.inputs[0])


def last_hidden(edit: Edit, _layer: int) -> ir.Node:
    """Return the node of the hidden states that the logits are computed from."""
    return producer(above(named(edit, "logits"), "MatMul").inputs[0])


def earlier_row(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Take the row of the token before, but for the first one."""
    parts = [part(edit, value, anchor, 0, 1, axis=1), part(edit, value, anchor, 0, -1, axis=1)]
    return edit.add("Concat", parts, before=anchor, axis=1)


def router(edit: Edit, layer: int) -> ir.Node:
    """Return the node of the scores that experts are chosen by."""
    nodes = [node for node in edit.graph if node.op_type == "TopK"]
    return producer(nodes[layer].inputs[0])


def slot(kind: str, change: Change) -> Plant:
    """Write to other slots of a static cache."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = above(named(edit, f"present.{layer}.{kind}"), "ScatterND")
        value = node.inputs[1]
        assert value is not None
        return edit.put(value, lambda anchor: change(edit, value, anchor))

    return plant


def same_length(edit: Edit, layer: int) -> set[str]:
    """Do not count the new tokens of a static cache."""
    return kept("length", lambda edit, value, anchor: edit.add("Identity", [producer(value).inputs[0]], before=anchor))(  # type: ignore[list-item]
        edit, layer
    )


def reached(program: Program, names: Collection[str]) -> set[str]:
    """Return the values by which a wrong value can be named: itself, and the first numbers that are computed from it.

    A value without floating-point numbers, such as a position, is wrong only because of what is computed from it.
    """
    values = {item.name: item for node in program.model.graph for item in (*node.inputs, *node.outputs) if item}
    found, queue = set[str](), [values[name] for name in names]
    while queue:
        value = queue.pop()
        if value.name in found:
            continue
        found.add(str(value.name))
        if value.dtype in (ir.DataType.INT64, ir.DataType.BOOL):
            queue += [item for node, _ in value.uses() if node.op_type != "Shape" for item in node.outputs]
    return found


def same_operation(program: Program, names: Collection[str]) -> set[str]:
    """Return the values of the operations of the model that some values belong to; one may be several nodes."""
    nodes = list(program.model.graph)
    operations = {_operation(node) for node in nodes for item in node.outputs if item.name in names} - {""}
    return {str(item.name) for node in nodes if _operation(node) in operations for item in node.outputs}


def _operation(node: ir.Node | None) -> str:
    return "" if node is None else node.metadata_props.get("pkg.torch.onnx.fx_node", "")


# Faults of what runs a program: they change the inputs of its calls, and return the inputs that become wrong.

Run = Callable[[Inputs, Inputs | None], dict[str, torch.Tensor]]


class Runner:
    """ONNX Runtime with a mistake in what it gives to the program, in calls with at least some tokens in the cache.

    Attributes:
        name: its name.
        stages: see `Backend`.
    """

    name = "faulty-runner"
    stages = get_backend("onnxruntime-cpu").stages

    def __init__(self, change: Run, start: int) -> None:
        self.inner: Backend = get_backend("onnxruntime-cpu")
        self.change, self.start = change, start
        self._previous: dict[int, Inputs] = {}

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """Compile."""
        return self.inner.compile(program, optimize=optimize)

    def run(self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], watch: Collection[str] = ()) -> Inputs:
        """Run with wrong inputs."""
        return dict(self.inner.run(compiled, self.changed(inputs), watch))

    def observe(
        self, compiled: Compiled, inputs: Mapping[str, torch.Tensor], *, buffer: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run with wrong inputs, and yield all values."""
        return self.inner.observe(compiled, self.changed(inputs), buffer=buffer)  # type: ignore[attr-defined]

    def isolate(
        self,
        compiled: Compiled,
        inputs: Mapping[str, torch.Tensor],
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,
        buffer: int,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run each node on references, and on wrong inputs."""
        return self.inner.isolate(compiled, self.changed(inputs), references, nodes=nodes, buffer=buffer)  # type: ignore[attr-defined]

    def changed(self, inputs: Mapping[str, torch.Tensor]) -> Inputs:
        """Return the inputs that the program gets."""
        past = past_length(inputs)
        self._previous[past] = dict(inputs)
        if past < self.start or inputs["input_ids"].shape[1] != 1:
            return dict(inputs)
        return {**inputs, **self.change(dict(inputs), self._previous.get(past - 1))}


def past_length(inputs: Mapping[str, torch.Tensor]) -> int:
    """Return the number of tokens in the cache."""
    length = inputs.get("past_key_values.0.length")
    return next(x for name, x in inputs.items() if is_key(name)).shape[2] if length is None else int(length.max())


def fed(change: Callable[[torch.Tensor], torch.Tensor], *names: str) -> Run:
    """Change inputs whose names end in one of some names."""
    return lambda inputs, _: {name: change(value) for name, value in inputs.items() if name.endswith(names)}


def exchanged_inputs(one: str, other: str) -> Run:
    """Give two inputs in the place of each other."""
    return lambda inputs, _: {one: inputs[other], other: inputs[one]}


def unwritten(*names: str) -> Run:
    """Give the cache of the call before, with an empty slot for the token that it added."""

    def change(inputs: Inputs, previous: Inputs | None) -> Inputs:
        if previous is None:
            return {}
        return {
            name: torch.nn.functional.pad(previous[name], (0, 0, 0, inputs[name].shape[2] - previous[name].shape[2]))
            for name in inputs
            if name.endswith(names)
        }

    return change


def token_again(inputs: Inputs, previous: Inputs | None) -> Inputs:
    """Give the token of the call before."""
    return {} if previous is None else {"input_ids": previous["input_ids"][:, -1:]}


@dataclass(frozen=True)
class Planted:
    """A fault and where it is.

    Attributes:
        model: the name of the model.
        kind: what is wrong.
        position: the first position with a wrong value.
        plant: changes the program; None if `run` is given.
        run: changes what the program is given.
        layer: the layer that is changed.
        start: how many tokens are in the cache when the fault begins; None means that it does not depend on it.
        sequence: the first wrong sequence.
        shows: the first position with wrong logits, if it is another one.
        cache: `dynamic` or `static`.
        inputs: for `run`, the names of the wrong inputs.
    """

    model: str
    kind: str
    position: int
    plant: Plant | None = None
    run: Run | None = None
    layer: int = 0
    start: int | None = None
    sequence: int = 0
    shows: int | None = None
    cache: str = "dynamic"
    inputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"layer {self.layer}" + ("" if self.start is None else f", from {self.start}")
        return f"{self.model}, {self.cache}: {self.kind} ({where})"


_KEY, _VALUE = "past_key_values.0.key", "past_key_values.0.value"

PLANTED = (
    # The cache.
    Planted("LlamaForCausalLM", "keys before the past", FIRST, new_first("key")),
    Planted("Qwen2ForCausalLM", "values before the past", 6, new_first("value"), layer=1, start=6),
    Planted("GPT2LMHeadModel", "empty slot", 5, cache("key", without_slot), start=5),
    Planted("MixtralForCausalLM", "empty slot", 7, cache("value", without_slot), layer=1, start=7),
    Planted("Qwen3ForCausalLM", "slot not written", 4, cache("key", repeated_slot), start=4),
    Planted("GPTNeoXForCausalLM", "slot not written", 8, cache("value", repeated_slot), layer=1, start=8),
    Planted("MistralForCausalLM", "slots moved by one", 4, cache("key", late_slot), start=4),
    Planted("GPT2LMHeadModel", "slots moved by one", 9, cache("value", late_slot), layer=1, start=9),
    Planted("Gemma2ForCausalLM", "slots exchanged", 3, cache("value", exchanged_slots), start=3),
    Planted("LlamaForCausalLM", "sequences exchanged", 6, cache("key", taken([1, 0], 0)), layer=1, start=6),
    Planted("GPTNeoXForCausalLM", "first sequence for all", 5, cache("value", taken([0, 0], 0)), start=5, sequence=1),
    Planted("Qwen2ForCausalLM", "heads exchanged", 4, cache("key", taken([1, 0], 1)), start=4),
    Planted("LlamaForCausalLM", "values in float16", 5, cache("value", rounded(ir.DataType.FLOAT16)), start=5),
    Planted("Qwen3ForCausalLM", "quantized keys", 3, cache("key", quantized), layer=1, start=3),
    Planted("Gemma2ForCausalLM", "keys of another layer", 0, other_layer("key"), layer=1, shows=1),
    Planted("MixtralForCausalLM", "values of another layer", 5, other_layer("value"), layer=1, start=5),
    Planted(
        "LlamaForCausalLM", "empty slot for the next call", 5, kept("key", without_slot), layer=1, start=5, shows=6
    ),
    Planted(
        "Qwen2ForCausalLM",
        "sequences exchanged for the next call",
        4,
        kept("value", taken([1, 0], 0)),
        start=4,
        shows=5,
    ),
    # Rotation.
    Planted("LlamaForCausalLM", "key not rotated", 1, unrotated(key)),
    Planted("GPTNeoXForCausalLM", "key not rotated", 4, unrotated(key), layer=1, start=4),
    Planted("Gemma2ForCausalLM", "key not rotated", 7, unrotated(key), start=7),
    Planted("Qwen3ForCausalLM", "query not rotated", 6, unrotated(query), layer=1, start=6),
    Planted("MistralForCausalLM", "key rotated back", 1, rotated_back(key), layer=1),
    Planted("Qwen2ForCausalLM", "key rotated twice", 5, rotated_twice(key), start=5),
    Planted("MixtralForCausalLM", "other frequencies", 7, on(lambda e, _: angle(e), applied("Mul", 0.5)), start=7),
    # Positions.
    Planted("LlamaForCausalLM", "position too early", 4, positions(applied("Sub", 1)), start=4),
    Planted("Qwen3ForCausalLM", "positions restart", FIRST, positions(restarted)),
    Planted("GPTNeoXForCausalLM", "positions end at 7", 8, positions(applied("Min", 7))),
    Planted("Gemma2ForCausalLM", "positions repeat after 8", 8, positions(applied("Mod", 8))),
    Planted(
        "MistralForCausalLM",
        "position too late in a sequence",
        6,
        positions(applied("Add", torch.tensor([[[0]], [[1]]]))),
        start=6,
        sequence=1,
    ),
    Planted("GPT2LMHeadModel", "position too late", 0, learned_positions(applied("Add", 1))),
    Planted("GPT2LMHeadModel", "position too early", 7, learned_positions(applied("Sub", 1)), start=7),
    Planted("GPT2LMHeadModel", "positions restart", FIRST, learned_positions(restarted)),
    # Masks.
    Planted("MistralForCausalLM", "window of 4", 4, window_of(4)),
    Planted("MistralForCausalLM", "window of 6", 5, window_of(6)),
    Planted("MistralForCausalLM", "no window", 7, no_window, start=7),
    Planted("Gemma2ForCausalLM", "window of 3", 3, window_of(3)),
    Planted("Gemma2ForCausalLM", "mask of another layer", 5, other_mask(1), layer=0),
    Planted("Gemma2ForCausalLM", "mask of another layer", 6, other_mask(0), layer=1, start=6),
    Planted("LlamaForCausalLM", "window in a model without one", 5, windowed(5)),
    Planted("Qwen2ForCausalLM", "token does not see itself", 6, compared("Less"), start=6),
    Planted("MixtralForCausalLM", "token sees the next one", 0, compared("LessOrEqual", query=1)),
    Planted("GPTNeoXForCausalLM", "queries count from 0", FIRST, queries_from_zero),
    Planted("Qwen3ForCausalLM", "first token is hidden", 5, hidden("Equal", 0), start=5),
    Planted("GPT2LMHeadModel", "token before is hidden", 4, hidden("Equal"), start=4),
    Planted("LlamaForCausalLM", "token is hidden in a sequence", 8, hidden_in_sequence(1, 2), start=8, sequence=1),
    Planted("Qwen2ForCausalLM", "mask leaks", 0, weak_mask(-2.0)),
    Planted("GPT2LMHeadModel", "no mask", 0, no_mask, layer=1),
    # Gathers.
    Planted("Qwen3ForCausalLM", "heads in another order", 0, on(attended, taken([0, 2, 1, 3], 1))),
    Planted("MistralForCausalLM", "heads in another order", 5, on(attended, taken([2, 3, 0, 1], 1)), layer=1, start=5),
    Planted("MixtralForCausalLM", "token of another sequence", 6, on(embedding, taken([1, 0], 0)), start=6),
    Planted("GPTNeoXForCausalLM", "row of another sequence", 9, on(last_hidden, taken([1, 0], 0)), start=9),
    Planted("Qwen2ForCausalLM", "logits of the token before", 1, on(last_hidden, earlier_row)),
    Planted("MixtralForCausalLM", "experts in another order", 5, on(router, taken([1, 0, 2, 3], 1)), start=5),
    # Static caches.
    Planted("LlamaForCausalLM", "next slot", 5, slot("key", applied("Add", 1)), start=5, cache="static"),
    Planted("LlamaForCausalLM", "slots repeat after 8", 8, slot("value", applied("Mod", 8)), layer=1, cache="static"),
    Planted("LlamaForCausalLM", "first slot", 4, slot("key", applied("Mul", 0)), start=4, cache="static"),
    Planted("LlamaForCausalLM", "length not counted", 6, same_length, start=6, shows=7, cache="static"),
    Planted("LlamaForCausalLM", "empty slots are seen", 7, no_mask, layer=1, start=7, cache="static"),
    Planted("LlamaForCausalLM", "sequences exchanged", 5, cache("value", taken([1, 0], 0)), start=5, cache="static"),
    Planted("MistralForCausalLM", "window of 4", 4, window_of(4), cache="static"),
    Planted("MistralForCausalLM", "key not rotated", 6, unrotated(key), layer=1, start=6, cache="static"),
    # What runs a program.
    Planted(
        "LlamaForCausalLM",
        "sequences of the cache exchanged",
        5,
        run=fed(lambda x: x.flip(0), ".key", ".value"),
        start=5,
        inputs=(_KEY, _VALUE),
    ),
    Planted(
        "Qwen2ForCausalLM", "values reordered", 7, run=fed(lambda x: x.flip(0), "0.value"), start=7, inputs=(_VALUE,)
    ),
    Planted(
        "MixtralForCausalLM",
        "layers exchanged",
        4,
        run=exchanged_inputs(_KEY, "past_key_values.1.key"),
        start=4,
        inputs=(_KEY,),
    ),
    Planted(
        "GPT2LMHeadModel",
        "keys and values exchanged",
        6,
        run=exchanged_inputs(_KEY, _VALUE),
        start=6,
        inputs=(_KEY, _VALUE),
    ),
    Planted("GPTNeoXForCausalLM", "stale cache", 6, run=unwritten(".key", ".value"), start=6, inputs=(_KEY, _VALUE)),
    Planted("Qwen3ForCausalLM", "stale keys", 5, run=unwritten("1.key"), start=5, inputs=("past_key_values.1.key",)),
    Planted(
        "Gemma2ForCausalLM",
        "position too late",
        5,
        run=fed(lambda x: x + 1, "position_ids"),
        start=5,
        inputs=("position_ids",),
    ),
    Planted(
        "GPT2LMHeadModel",
        "position too late",
        4,
        run=fed(lambda x: x + 1, "position_ids"),
        start=4,
        inputs=("position_ids",),
    ),
    Planted(
        "LlamaForCausalLM",
        "position too early in a sequence",
        8,
        run=fed(lambda x: x - torch.tensor([[0], [1]]), "position_ids"),
        start=8,
        sequence=1,
        inputs=("position_ids",),
    ),
    Planted(
        "MistralForCausalLM",
        "token before is masked",
        6,
        run=fed(lambda x: x * (torch.arange(x.shape[1]) != x.shape[1] - 2), "attention_mask"),
        start=6,
        inputs=("attention_mask",),
    ),
    Planted(
        "GPTNeoXForCausalLM",
        "first token is masked in a sequence",
        4,
        run=fed(lambda x: x * ((torch.arange(x.shape[1]) > 0) | (torch.arange(2)[:, None] == 0)), "attention_mask"),
        start=4,
        sequence=1,
        inputs=("attention_mask",),
    ),
    Planted("Qwen2ForCausalLM", "token of the call before", 6, run=token_again, start=6, inputs=("input_ids",)),
    Planted(
        "MixtralForCausalLM",
        "tokens exchanged",
        5,
        run=fed(lambda x: x.flip(0), "input_ids"),
        start=5,
        inputs=("input_ids",),
    ),
    Planted(
        "LlamaForCausalLM",
        "length too small",
        6,
        run=fed(lambda x: x - 1, ".length"),
        start=6,
        cache="static",
        inputs=("past_key_values.0.length", "past_key_values.1.length"),
    ),
    Planted(
        "MistralForCausalLM",
        "cache is reset",
        4,
        run=fed(torch.zeros_like, ".key", ".value"),
        start=4,
        cache="static",
        inputs=(_KEY, _VALUE),
    ),
)
"""Faults in programs and in what runs them: 62 in programs, 15 in runners."""
