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
    values = {value.name: value for value in (*graph.inputs, *(item for node in graph for item in node.outputs))}
    value = values[name]
    nodes = []

    def add(operator, inputs, **attributes):
        inputs = [constant(item) if isinstance(item, list | int) else item for item in inputs]
        nodes.append(ir.node(operator, inputs, attributes))
        return nodes[-1].outputs[0]

    def constant(content):
        return add("Constant", [], value=ir.tensor(content, dtype=ir.DataType.INT64))

    length = values[past]
    if past.endswith((".key", ".value")):
        length = add("Squeeze", [add("Shape", [length], start=2, end=3)])
    is_late = add("GreaterOrEqual", [length, start])
    users = value.uses()
    result = add("Where", [is_late, change(add, value), value])
    for node, index in users:
        node.replace_input_with(index, result)
    result.dtype, result.shape = value.dtype, value.shape
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], nodes)
        return program
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = result
    value.name, result.name = f"{name}_before", name
    graph.insert_after(producer, nodes)
    return program


def exchanged(add, value):
    """Return the value with its rows in the opposite order."""
    return add("Slice", [value, [-1], [-(2**62)], [0], [-1]])
