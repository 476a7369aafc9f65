"""Faults in programs with a cache: a value that is computed otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import torch

from faults._expressions import Names
from filch.export import Program

FIRST = 3  # tokens in the first call
SLOTS = 16  # of static caches


@dataclass(frozen=True)
class ProgramFault:
    """A fault in a program. One of `value`, `next` and `operand` is given; the expressions have the names of `Edit`.

    Attributes:
        model: the name of the model.
        kind: what is wrong.
        position: the first position with a wrong value.
        becomes: what the value becomes, which is `x` here and is computed by `node`.
        value: the value that is wrong for all that read it, or the node that computes it.
        next: the value that is wrong for the next call, but not for what reads it in this one.
        operand: a node and the number of its input that is wrong for this node alone.
        each: the values of `i` in turn, for several operands.
        layer: the layer that is changed.
        start: how many tokens are in the cache when the fault begins; None means that it does not depend on it.
        sequence: the first wrong sequence.
        shows: the first position with wrong logits, if it is another one.
        cache: the kind of cache.
        names: expressions by name.
    """

    model: str
    kind: str
    position: int
    becomes: str
    value: str = ""
    next: str = ""
    operand: str = ""
    each: tuple[int, ...] = (0,)
    layer: int = 0
    start: int | None = None
    sequence: int = 0
    shows: int | None = None
    cache: str = "dynamic"
    names: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        where = f"layer {self.layer}" + ("" if self.start is None else f", from {self.start}")
        return f"{self.model}, {self.cache}: {self.kind} ({where})"

    def plant(self, program: Program) -> tuple[Program, set[str]]:
        """Return a changed copy of a program, and the names of the values that become wrong."""
        edit, wrong = Edit(program, self.layer, self.start), set[str]()
        for index in self.each:
            names = edit.names(self.names, i=index)
            if self.operand:
                node, position = names.evaluate(self.operand)
                wrong |= edit.redirect(node, position, self._maker(names, node.inputs[position]))
            else:
                value = names.evaluate(self.value or self.next)
                value = value.outputs[0] if isinstance(value, ir.Node) else value
                change = edit.put if self.value else edit.keep
                wrong |= change(value, self._maker(names, value))
        return edit.program, wrong

    def _maker(self, names: Names, value: ir.Value) -> Callable[[], ir.Value]:
        names.update(x=value, node=value.producer())
        return lambda: names.evaluate(self.becomes)


class Edit:
    """A copy of a program that is changed, and what is where in it.

    Attributes:
        program: the program; its graph is a copy.
        graph: its graph.
        layer: the layer that is changed.
        start: how many tokens have to be in the cache for the fault to show; None means that it always does.
        anchor: the node before which nodes are inserted; they belong to its module.
    """

    def __init__(self, program: Program, layer: int = 0, start: int | None = None) -> None:
        self.program = replace(program, model=program.model.clone())
        self.graph = self.program.model.graph
        self.layer, self.start, self.anchor = layer, start, self.graph[0]

    def names(self, shared: Mapping[str, str], **names: Any) -> Names:
        """Return the names for expressions: the public methods, and operators that add a node."""
        methods = {name: getattr(self, name) for name in vars(Edit) if not name.startswith("_")}
        return Names(shared, **methods, **names)

    # Changes.

    def add(self, op: str, *inputs: Any, **attributes: Any) -> ir.Value:
        """Insert a node before the anchor, and return its output; inputs that are no values become constants."""
        operands = [item if isinstance(item, ir.Value) else self._constant(item) for item in inputs]
        return self._insert(ir.node(op, operands, attributes))

    def put(self, value: ir.Value, make: Callable[[], ir.Value]) -> set[str]:
        """Let all readers of a value read another one, of the same name; return the name."""
        users, producer = tuple(value.uses()), value.producer()
        order = {node: index for index, node in enumerate(self.graph)}
        outputs = [index for index, output in enumerate(self.graph.outputs) if output is value]
        if outputs:  # both what this call reads and what the next one gets
            self.anchor = list(self.graph)[order[producer] + 1]
        else:
            self.anchor = min((node for node, _ in users), key=order.__getitem__)
        known = set(self.graph)
        new = self._late(make(), value)
        new.name, value.name, new.dtype, new.shape = value.name, f"{value.name}_before", value.dtype, value.shape
        for node in set(self.graph) - known:
            if producer is not None:
                node.metadata_props.update(producer.metadata_props)
        for node, index in users:
            node.replace_input_with(index, new)
        for index in outputs:
            self.graph.outputs[index] = new
        return {new.name}

    def redirect(self, node: ir.Node, index: int, make: Callable[[], ir.Value]) -> set[str]:
        """Let one node read another value; return the names of its outputs and of the value if it is a new one."""
        self.anchor, known = node, set(self.graph)
        new = self._late(make(), node.inputs[index])
        node.replace_input_with(index, new)
        producer = new.producer()
        is_constant = producer is not None and producer.op_type == "Identity"
        added = {new.name} if producer not in known and not is_constant else set()
        return added | {output.name for output in node.outputs}

    def keep(self, value: ir.Value, make: Callable[[], ir.Value]) -> set[str]:
        """Change an output of the graph, but not what this call reads; return the name."""
        index = next(index for index, output in enumerate(self.graph.outputs) if output is value)
        self.anchor = list(self.graph)[-1]
        new = self._late(make(), value)
        new.name, value.name, new.dtype, new.shape = value.name, f"{value.name}_read", value.dtype, value.shape
        new.producer().metadata_props.update(value.producer().metadata_props)
        self.graph.outputs[index] = new
        return {new.name}

    def _late(self, new: ir.Value, old: ir.Value) -> ir.Value:
        """Return `new` in calls with at least `start` tokens in the cache, else `old`."""
        if self.start is None:
            return new
        is_late = self.add("GreaterOrEqual", self.past(), self.start)
        if old.dtype != ir.DataType.BOOL:
            return self.add("Where", is_late, new, old)
        early = self.add("Not", is_late)  # ONNX Runtime has no Where of booleans
        return self.add("Or", self.add("And", is_late, new), self.add("And", early, old))

    def _constant(self, content: Any) -> ir.Value:
        return self._insert(ir.node("Constant", [], {"value": ir.tensor(torch.as_tensor(content).numpy())}))

    def _insert(self, node: ir.Node) -> ir.Value:
        (output,) = node.outputs
        output.name = f"planted_{len(self.graph)}"
        node.name = f"node_{output.name}"
        node.metadata_props.update(self.anchor.metadata_props)
        self.graph.insert_before(self.anchor, node)
        return output

    # What is computed of values.

    def past(self) -> ir.Value:
        """Return the number of tokens in the cache."""
        inputs = {value.name: value for value in self.graph.inputs}
        if "past_key_values.0.length" in inputs:
            return self.add("ReduceMax", inputs["past_key_values.0.length"], keepdims=0)
        keys = next(value for name, value in inputs.items() if is_key(name))
        return self.add("Squeeze", self.add("Shape", keys, start=2, end=3))

    def part(self, value: ir.Value, start: int, end: int, axis: int = 2) -> ir.Value:
        """Return a slice."""
        return self.add("Slice", value, [start], [end], [axis])

    def parts(self, value: ir.Value, *ends: tuple[int, int], axis: int = 2) -> ir.Value:
        """Concatenate slices of a value."""
        return self.add("Concat", *[self.part(value, *end, axis) for end in ends], axis=axis)

    def turned(self, value: ir.Value, half: int, end: int) -> ir.Value:
        """Return the second half, negated, then the first one."""
        low, high = self.part(value, 0, half, -1), self.part(value, half, end, -1)
        return self.add("Concat", self.add("Neg", high), low, axis=-1)

    def rotated(self, value: ir.Value, cos: ir.Value, sin: ir.Value, end: int = 99) -> ir.Value:
        """Rotate a query or a key."""
        turned = self.turned(value, int(value.shape[-1]) // 2, end)
        return self.add("Add", self.add("Mul", value, cos), self.add("Mul", turned, sin))

    def recomputed(self, value: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
        """Compute a value as it is computed, but of another value."""
        known = {old: new}

        def copied(item: ir.Value | None) -> Any:
            node = item.producer() if item is not None else None
            if item is None or node is None or item in known:
                return known.get(item, item)
            inputs = [copied(operand) for operand in node.inputs]
            if all(one is two for one, two in zip(inputs, node.inputs, strict=True)):
                known[item] = item
            else:
                options = {name: attribute.value for name, attribute in node.attributes.items()}
                known[item] = self.add(node.op_type, *inputs, **options)
            return known[item]

        return copied(value)

    # What is where.

    def given(self, name: str) -> ir.Value:
        """Return an input of the program."""
        return next(value for value in self.graph.inputs if value.name == name)

    def present(self, kind: str, layer: int | None = None) -> ir.Value:
        """Return the keys, the values or a state of a layer that the next call gets."""
        return self.output(f"present.{self._layer(layer)}.{kind}")

    def output(self, name: str) -> ir.Value:
        """Return an output of the program."""
        return next(value for value in self.graph.outputs if value.name == name)

    def producer(self, value: ir.Value) -> ir.Node:
        """Return the node that computes a value."""
        return value.producer()

    def above(self, value: ir.Value, op: str) -> ir.Node:
        """Return the nearest node of an operator among a value's producer and the nodes before it."""
        level = [value]
        while level:
            nodes = [node for item in level if item is not None and (node := item.producer()) is not None]
            for node in nodes:
                if node.op_type == op:
                    return node
            level = [item for node in nodes for item in node.inputs]
        raise AssertionError(f"no {op}")

    def at(self, module: str, op: str, index: int = 0, layer: int | None = None) -> ir.Node:
        """Find a node by its module and operator among those that compute floats."""
        modules = {name: node.module for node in self.program.graph.nodes for name in node.outputs}
        module = module.format(layer=self._layer(layer))
        nodes = [node for node in self.graph if node.op_type == op and node.outputs[0].dtype == ir.DataType.FLOAT]
        return [node for node in nodes if modules.get(str(node.outputs[0].name)) == module][index]

    def reads(self, name: str, op: str) -> ir.Node:
        """Find the first node of an operator that reads a value."""
        nodes = (node for node in self.graph if node.op_type == op)
        return next(node for node in nodes if name in [item.name for item in node.inputs if item])

    def softmax(self, layer: int | None = None) -> ir.Node:
        """Return the node that normalizes the attention of a layer."""
        nodes = [node for node in self.graph if node.op_type == "Softmax" and len(node.outputs[0].shape or ()) == 4]
        return nodes[self._layer(layer)]

    def masked(self, layer: int | None = None) -> ir.Node:
        """Return the node that adds the mask to the scores of a layer."""
        return self.above(self.softmax(layer).inputs[0], "Add")

    def mask(self) -> ir.Node:
        """Return the node that turns the mask of the layer into numbers that are added."""
        return self.above(self.masked().inputs[1], "Where")

    def causal(self) -> ir.Node:
        """Return the comparison of the positions of keys with those of queries."""
        return self.above(self.mask().inputs[0], "LessOrEqual")

    def window(self) -> ir.Node:
        """Return the comparison of the positions of keys with the first one in the window."""
        return self.above(self.mask().inputs[0], "Greater")

    def query(self) -> ir.Node:
        """Return the addition that ends the rotation of the query."""
        return self.above(self.above(self.masked().inputs[0], "MatMul").inputs[0], "Add")

    def key(self) -> ir.Node:
        """Return the addition that ends the rotation of the key."""
        node = self.present("key").producer()
        return self.above(
            node.inputs[1] if node.op_type == "Concat" else self.above(node.inputs[0], "ScatterND").inputs[2], "Add"
        )

    def angle(self) -> ir.Node:
        """Return the product of positions and frequencies."""
        return self.above(next(node for node in self.graph if node.op_type == "Cos").inputs[0], "Mul")

    def places(self) -> ir.Value:
        """Return the positions that are rotated by, int64 in the shape [sequences, tokens, 1]."""
        return self.above(self.angle().inputs[0], "Cast").inputs[0]

    def attended(self) -> ir.Node:
        """Return the node that makes the values, repeated for all heads, that attention reads."""
        products = (node for node in self.graph if node.op_type == "MatMul")
        return next(node for node in products if _weights(node.inputs[0]) is self.softmax()).inputs[1].producer()

    def embedding(self) -> ir.Node:
        """Return the lookup of the tokens."""
        lookups = (node for node in self.graph if node.op_type == "Gather")
        return next(node for node in lookups if node.inputs[1] is self.graph.inputs[0])

    def router(self) -> ir.Node:
        """Return the node of the scores that experts are chosen by."""
        return [node for node in self.graph if node.op_type == "TopK"][self.layer].inputs[0].producer()

    def _layer(self, layer: int | None) -> int:
        return self.layer if layer is None else layer


def is_key(name: str) -> bool:
    """Return whether an input of a program has a key of each token in the cache."""
    return name.endswith(".key") and ".encoder." not in name


def _weights(value: ir.Value | None) -> ir.Node | None:
    """Return the Softmax that computes a value, by way of nodes that keep its shape; None if there is none."""
    for _ in range(4):
        node = value.producer() if value is not None else None
        if node is None or node.op_type == "Softmax":
            return node
        value = node.inputs[-1] if node.op_type == "Where" else node.inputs[0]
    return None


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


def _operation(node: ir.Node) -> str:
    return node.metadata_props.get("pkg.torch.onnx.fx_node", "")
