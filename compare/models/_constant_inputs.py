"""Inputs that no tensor can be, strings and sequences: they become constants of the program."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from filch.export import Graph, Program

from ..common._errors import CompareError

# By the names of inputs: an array of strings, or the arrays of a sequence.
Constants = Mapping[str, np.ndarray | list[np.ndarray]]
_WORDS = ("a", "b", "c", "d")


def constant_inputs(program: Program) -> tuple[str, ...]:
    """Return the names of the inputs of a program that are strings or sequences."""
    sequences = _sequences(program)
    values = program.graph.values
    return tuple(name for name in program.graph.inputs if name in sequences or values[name].dtype == "string")


def draw_constants(program: Program, names: Sequence[str], seed: int, shapes: Mapping[str, Sequence[int]]) -> Constants:
    """Draw inputs that are strings, from those that an attribute of a node that reads them has, if there are any.

    Args:
        program: the program.
        names: the names of the inputs.
        seed: equal seeds give equal strings.
        shapes: shapes of inputs, by name; dynamic dimensions of the others have size 1.

    Raises:
        CompareError: the number of dimensions of an input is not known, or it is a sequence.
    """
    random, drawn, graph = np.random.default_rng(seed), {}, program.graph
    for name in names:
        if name in _sequences(program):
            raise CompareError(f"the input {name!r} is a sequence: give a list of its tensors in `inputs`")
        declared = shapes.get(name, graph.values[name].shape)
        if declared is None:
            raise CompareError(f"the program does not declare the shape of its input {name!r}: give it")
        shape = [size if isinstance(size, int) else 1 for size in declared]
        drawn[name] = random.choice(_words(graph, name), shape).astype(object)
    return drawn


def _sequences(program: Program) -> set[str | None]:
    return {value.name for value in program.model.graph.inputs if isinstance(value.type, ir.SequenceType)}


def _words(graph: Graph, name: str) -> Sequence[str]:
    attributes = (item for node in graph.consumers.get(name, ()) for item in node.attributes.values())
    lists = (item for item in attributes if isinstance(item, list | tuple) and item)
    return next((item for item in lists if all(isinstance(word, str) for word in item)), _WORDS)


def common_constants(program: Program, calls: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Constants:
    """Return the inputs of several calls that are strings or sequences, and the same in all of them.

    Raises:
        CompareError: one is missing, is no list for a sequence, or differs between calls.
    """
    calls, found = [*calls], {}
    for name in names:
        kind, form = ("is a sequence", list) if name in _sequences(program) else ("has strings", object)
        given = [call[name] for call in calls if isinstance(call.get(name), form)]
        arrays = [[np.asarray(item) for item in one] if form is list else np.asarray(one, object) for one in given]
        if len(arrays) < len(calls) or any(not _are_equal(array, arrays[0]) for array in arrays):
            what = "a list of its tensors" if form is list else "them"
            raise CompareError(f"the input {name!r} {kind}: give {what}, the same in each call")
        found[name] = arrays[0]
    return found


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return one.dtype == other.dtype and np.array_equal(one, other)


def with_constants(program: Program, constants: Constants) -> Program:
    """Return a program in which some inputs are constants."""
    model = program.model.clone()
    for value in [*model.graph.inputs]:
        content = constants.get(value.name or "")
        if content is None:
            continue
        model.graph.inputs.remove(value)
        if isinstance(content, list):
            _construct(model.graph, value, content)
        else:
            value.const_value, value.shape = _constant(content, value.name), ir.Shape(content.shape)
            model.graph.register_initializer(value)
    inputs = {name: path for name, path in program.inputs.items() if name not in constants}
    return replace(program, model=model, inputs=inputs).snapshot()


def _construct(graph: ir.Graph, value: ir.Value, elements: Sequence[np.ndarray]) -> None:
    """Let a node make a sequence in place of an input."""
    weights = [
        ir.Value(name=name, const_value=_constant(element, name), shape=ir.Shape(element.shape))
        for name, element in ((f"{value.name}[{index}]", element) for index, element in enumerate(elements))
    ]
    for weight in weights:
        graph.register_initializer(weight)
    empty = [] if weights or value.dtype is None else [ir.AttrInt64("dtype", value.dtype.value)]
    sequence = ir.Value(name=value.name, type=value.type)
    node = ir.Node("", "SequenceConstruct" if weights else "SequenceEmpty", weights, empty, outputs=[sequence])
    ir.convenience.replace_all_uses_with(value, sequence, replace_graph_outputs=True)
    graph.insert_before(graph[0], node) if len(graph) else graph.append(node)


def _constant(array: np.ndarray, name: str | None) -> ir.TensorProtocol:
    if array.dtype.kind not in "OSTU":
        return ir.tensor(array, name=name)
    content = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]
    return ir.StringTensor(content, shape=ir.Shape(array.shape), name=name)
