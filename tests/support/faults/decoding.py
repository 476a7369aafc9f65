"""Faults of programs with a cache that begin at some position."""

import onnx_ir as ir

from filch.export import Program


def change_late(program: Program, name: str, start: int, change, past: str) -> Program:
    """Change a program so that `change` computes a value again, in calls with at least `start` tokens in the cache.

    Args:
        program: the program.
        name: the name of the value.
        start: the number of tokens.
        change: takes a function that adds a node and returns its value, and the value.
        past: the input that has the tokens of the cache along its axis 2, or their number.
    """
    graph = program.model.graph
    values = _values(graph)
    value = values[name]
    add = _Adder()
    length = values[past]
    if past.endswith((".key", ".value")):
        length = add("Squeeze", [add("Shape", [length], start=2, end=3)])
    elif past.endswith(".length"):  # of each sequence, or of all
        length = add("ReduceMax", [length], keepdims=0)
    is_late = add("GreaterOrEqual", [length, start])
    users = value.uses()
    result = add("Where", [is_late, change(add, value), value])
    for node, index in users:
        node.replace_input_with(index, result)
    result.dtype, result.shape = value.dtype, value.shape
    if value.producer() is None:
        graph.insert_before(graph[0], add.nodes)
    else:
        _insert(graph, add.nodes, value, result)
    return program


def replaced(program: Program, name: str, change) -> Program:
    """Change a program so that it returns another value; see `change_late`."""
    graph = program.model.graph
    value, add = _values(graph)[name], _Adder()
    result = change(add, value)
    result.dtype = value.dtype
    _insert(graph, add.nodes, value, result)
    return program


def with_further_output(program: Program) -> Program:
    """Let a program return `further`, a value that the model does not compute."""
    graph = program.model.graph
    further = ir.Value(name="further", type=graph.outputs[0].type, shape=graph.outputs[0].shape)
    graph.append(ir.node("Neg", [graph.outputs[0]], outputs=[further]))
    graph.outputs.append(further)
    return program


def _values(graph):
    return {value.name: value for value in (*graph.inputs, *(item for node in graph for item in node.outputs))}


class _Adder:
    """Makes nodes; a call returns the value of a new one."""

    def __init__(self):
        self.nodes = []

    def __call__(self, operator, inputs, **attributes):
        inputs = [self._constant(item) if isinstance(item, list | int) else item for item in inputs]
        self.nodes.append(ir.node(operator, inputs, attributes))
        return self.nodes[-1].outputs[0]

    def _constant(self, content):
        return self("Constant", [], value=ir.tensor(content, dtype=ir.DataType.INT64))


def _insert(graph, nodes, value, result):
    """Let a graph return a result of new nodes in the place of a value, with its name."""
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = result
    value.name, result.name = f"{value.name}_before", value.name
    graph.insert_after(value.producer(), nodes)


def exchanged(add, value):
    """Return the value with its rows in the opposite order."""
    return add("Slice", [value, [-1], [-(2**62)], [0], [-1]])
