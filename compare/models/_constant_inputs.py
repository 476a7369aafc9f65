"""Inputs that no tensor can be, strings and sequences: they become constants of the program."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters

from filch.export import Graph, Program
from filch.steal import tensors

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
    """Return the names of the inputs that are sequences."""
    return {value.name for value in program.model.graph.inputs if isinstance(value.type, ir.SequenceType)}


def _words(graph: Graph, name: str) -> Sequence[str]:
    """Return the strings that an attribute of a node that reads an input has, such as the keys of a LabelEncoder."""
    attributes = (item for node in graph.consumers.get(name, ()) for item in node.attributes.values())
    lists = (item for item in attributes if isinstance(item, list | tuple) and item)
    return next((item for item in lists if all(isinstance(word, str) for word in item)), _WORDS)


def common_constants(program: Program, calls: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Constants:
    """Return the inputs of several calls that are strings or sequences, and the same in all of them.

    Raises:
        CompareError: one is missing, is of another kind, or differs between calls.
    """
    calls, found = [*calls], dict[str, np.ndarray | list[np.ndarray]]()
    for name in names:
        is_sequence = name in _sequences(program)
        read = _as_list if is_sequence else _as_strings
        first, *others = (read(call.get(name)) for call in calls)
        if first is None or not all(_are_equal(first, other) for other in others):
            what = "is a sequence: give a list of its tensors" if is_sequence else "has strings: give them"
            raise CompareError(f"the input {name!r} {what}, the same in each call")
        found[name] = first
    return found


def _as_list(sequence: object) -> list[np.ndarray] | None:
    """Return the arrays of a sequence; None if it is none."""
    if not isinstance(sequence, list | tuple):
        return None
    arrays = [array for item in sequence if (array := _as_element(item)) is not None]
    return arrays if len(arrays) == len(sequence) else None


def _as_element(item: object) -> np.ndarray | None:
    """Return the array of an element of a sequence; None if it is neither numbers nor strings."""
    tensor = as_tensor(item)
    return _as_strings(item) if tensor is None else tensor_adapters.TorchTensor(tensor.contiguous()).numpy()


def _as_strings(given: object) -> np.ndarray | None:
    """Return an array of strings; None if it has something else, or text that is not UTF-8."""
    try:
        array = np.asarray(given, object)
        texts = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1)]
        is_text = all(isinstance(text, str) and text.encode() is not None for text in texts)
    except (ValueError, RuntimeError, TypeError):  # UnicodeError is a ValueError
        return None
    return np.array(texts, object).reshape(array.shape) if is_text else None


def as_tensor(given: object) -> torch.Tensor | None:
    """Return numbers as a tensor, which shares their memory if possible; None if there is something else."""
    if isinstance(given, torch.Tensor):
        is_plain = given.layout is torch.strided and not (given.is_meta or given.is_quantized)
        return given.detach() if is_plain else None
    try:
        array = np.asarray(given)
        # Objects, text, times and long doubles, which torch does not have.
        if array.dtype.kind in "OSTUMm" or (array.dtype.isbuiltin == 1 and array.dtype.char in "gG"):
            return None
        return next(iter(tensors(array if array.flags.writeable else array.copy()).values()), None)
    except (ValueError, TypeError, RuntimeError):  # of lists of several lengths, and of tensors among them
        return None


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two arrays, or lists of arrays, are the same, bit for bit."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_are_equal, one, other))
    if not isinstance(other, np.ndarray) or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    is_text = one.dtype.kind == "O"
    return bool(one.tolist() == other.tolist() if is_text else one.tobytes() == other.tobytes())


def with_constants(program: Program, constants: Constants) -> Program:
    """Return a program in which some inputs are constants."""
    model = program.model.clone()
    for value in [*model.graph.inputs]:
        content = constants.get(value.name or "")
        if content is None:
            continue
        model.graph.inputs.remove(value)
        if isinstance(content, list):
            _construct(model, value, content)
        else:
            value.const_value, value.shape = _constant(content, value.name), ir.Shape(content.shape)
            model.graph.register_initializer(value)
    inputs = {name: path for name, path in program.inputs.items() if name not in constants}
    return replace(program, model=model, inputs=inputs).snapshot()


def _construct(model: ir.Model, value: ir.Value, elements: Sequence[np.ndarray]) -> None:
    """Let a node make a sequence in place of an input."""
    graph, weights = model.graph, list[ir.Value]()
    used = {item.name for part in model.graphs() for item in (*part.inputs, *part.initializers.values())}
    used |= {output.name for part in model.graphs() for node in part for output in node.outputs}
    for index, element in enumerate(elements):
        name = f"{value.name}[{index}]"
        while name in used:
            name += "_"
        constant, shape = _constant(element, name), ir.Shape(element.shape)
        weights.append(ir.Value(name=name, type=ir.TensorType(constant.dtype), shape=shape, const_value=constant))
        graph.register_initializer(weights[-1])
    empty = [] if weights or value.dtype is None else [ir.AttrInt64("dtype", value.dtype.value)]  # of SequenceEmpty
    sequence = ir.Value(name=value.name, type=value.type)
    node = ir.Node("", "SequenceConstruct" if weights else "SequenceEmpty", weights, empty, outputs=[sequence])
    ir.convenience.replace_all_uses_with(value, sequence, replace_graph_outputs=True)
    graph.insert_before(graph[0], node) if len(graph) else graph.append(node)


def _constant(array: np.ndarray, name: str | None) -> ir.TensorProtocol:
    """Return an array of numbers or strings as a tensor of ONNX."""
    if array.dtype.kind != "O":
        return ir.tensor(array, name=name)
    return ir.StringTensor([item.encode() for item in array.reshape(-1)], shape=ir.Shape(array.shape), name=name)
