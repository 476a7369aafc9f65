"""Inputs that are strings, which torch has no tensors of: they become constants of the program."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from filch.export import Graph, Program

from ..common._errors import CompareError

Strings = Mapping[str, np.ndarray]  # by the names of inputs
_WORDS = ("a", "b", "c", "d")


def string_inputs(graph: Graph) -> tuple[str, ...]:
    """Return the names of the inputs of a graph that are strings."""
    return tuple(name for name in graph.inputs if graph.values[name].dtype == "string")


def draw_strings(graph: Graph, names: Sequence[str], seed: int, shapes: Mapping[str, Sequence[int]]) -> Strings:
    """Draw inputs that are strings, from those that an attribute of a node that reads them has, if there are any.

    Args:
        graph: the graph.
        names: the names of the inputs.
        seed: equal seeds give equal strings.
        shapes: shapes of inputs, by name; dynamic dimensions of the others have size 1.

    Raises:
        CompareError: the number of dimensions of an input is not known.
    """
    random, drawn = np.random.default_rng(seed), {}
    for name in names:
        declared = shapes.get(name, graph.values[name].shape)
        if declared is None:
            raise CompareError(f"the program does not declare the shape of its input {name!r}: give it")
        shape = [size if isinstance(size, int) else 1 for size in declared]
        drawn[name] = random.choice(_words(graph, name), shape).astype(object)
    return drawn


def _words(graph: Graph, name: str) -> Sequence[str]:
    attributes = (item for node in graph.consumers.get(name, ()) for item in node.attributes.values())
    lists = (item for item in attributes if isinstance(item, list | tuple) and item)
    return next((item for item in lists if all(isinstance(word, str) for word in item)), _WORDS)


def common_strings(calls: Iterable[Mapping[str, object]], names: Sequence[str]) -> Strings:
    """Return the inputs of several calls that are strings, and the same in all of them.

    Raises:
        CompareError: one is missing, or differs between calls.
    """
    calls, strings = [*calls], {}
    for name in names:
        arrays = [np.asarray(call[name]).astype(object) for call in calls if name in call]
        if len(arrays) < len(calls) or any(not np.array_equal(array, arrays[0]) for array in arrays):
            raise CompareError(f"the input {name!r} has strings: give them, the same in each call")
        strings[name] = arrays[0]
    return strings


def with_strings(program: Program, strings: Strings) -> Program:
    """Return a program in which some inputs are constants."""
    model = program.model.clone()
    for value in [*model.graph.inputs]:
        array = strings.get(value.name or "")
        if array is not None:
            content = [str(item).encode() for item in array.reshape(-1)]
            value.const_value = ir.StringTensor(content, shape=ir.Shape(array.shape), name=value.name)
            value.shape = ir.Shape(array.shape)
            model.graph.inputs.remove(value)
            model.graph.register_initializer(value)
    inputs = {name: path for name, path in program.inputs.items() if name not in strings}
    return replace(program, model=model, inputs=inputs).snapshot()
