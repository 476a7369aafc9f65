"""Find the captured calls of a model, and the inputs that a program takes from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from filch.export import Graph, Program, Value
from filch.steal import Call, Records, Skipped, describe, missing_tensors
from filch.steal.values._arguments import argument_tensors, named_arguments

from ..common._dtypes import declared_dtype
from ..common._errors import CompareError
from ..metrics._repeated import repetition_problem
from ..metrics._tolerance import is_coarser


@dataclass(frozen=True)
class CapturedCall:
    """One captured call of the model.

    Attributes:
        index: which one, counted over the capture.
        name: the model's name in the capture.
        inputs: the inputs of the program, by name.
        keys: for each `(module path, iteration in the call)`, the name and iteration of its records.
    """

    index: int
    name: str
    inputs: Mapping[str, torch.Tensor]
    keys: Mapping[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True)
class CapturedCalls:
    """The calls of the program's model in a capture or dump.

    Attributes:
        calls: those that have the inputs of the program.
        left_out: for each other call, why it can't be used.
        notes: the arguments of the model that the program does not take.
    """

    calls: tuple[CapturedCall, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def captured_calls(reference: Records, program: Program) -> CapturedCalls:
    """Return the calls of the program's model in a capture or dump.

    Raises:
        CompareError: no call was captured, or no call has the inputs of the program.
    """
    calls = [call for call in reference.calls() if call.name in reference.modules and _is_outermost(reference, call)]
    if not calls:
        raise CompareError(
            f"{_source(reference)} has no inputs of an outermost call: "
            "capture the model itself too, not only its submodules"
        )
    # The module of a class depends on how its file was imported; the class's own name does not.
    model_class = _class_name(program.model_type)  # "" in a foreign program
    matching = [call for call in calls if model_class in ("", _class_name(reference.modules[call.name].type_name))]
    if not matching:
        captured_class = _class_name(reference.modules[calls[0].name].type_name)
        raise CompareError(
            f"{_source(reference)} has no calls of {model_class}, the model of the program, but calls of "
            f"{captured_class}; if {captured_class} is a part of {model_class}, capture {model_class} itself too"
        )
    captured: list[CapturedCall] = []
    errors: list[CompareError] = []
    unused: dict[str, None] = {}  # a set in order
    graph = program.graph
    for call in matching:
        try:
            captured_call, unused_paths = _captured_call(reference, program, graph, call)
        except CompareError as error:
            errors.append(error)
        else:
            captured.append(captured_call)
            unused |= dict.fromkeys(unused_paths)
    if not captured:
        raise errors[0]
    notes = [f"the model was given {name!r} too, which the program does not take" for name in unused]
    return CapturedCalls(tuple(captured), tuple(map(str, errors)), tuple(notes))


def _source(reference: Records) -> str:
    """Return what records are called in messages."""
    return "the capture" if reference.source == "memory" else f"the dump {reference.source!r}"


def _class_name(type_name: str) -> str:
    """Return the name of a class that is written as `module:class`."""
    return type_name.rpartition(":")[2] or type_name


def _is_outermost(reference: Records, call: Call) -> bool:
    """Whether the inputs of the model itself were recorded, whose path is empty, not only those of submodules.

    The inputs of a module are the records of the kind `I`.
    """
    known = (key for key in call.keys if key.kind == "I" and key.name in reference.modules)
    return any(reference.records[key].origin.path == "" for key in known)


def _captured_call(reference: Records, program: Program, graph: Graph, call: Call) -> tuple[CapturedCall, list[str]]:
    """Return a call, and the paths of the model's arguments that the program does not take."""
    keys: dict[tuple[str, int], tuple[str, int]] = {}
    for key in call.keys:
        origin = reference.records[key].origin
        if origin.path is not None and key.kind == "I" and key.name in reference.modules:
            keys.setdefault((origin.path, origin.iteration), (key.name, key.iteration))
    name, iteration = keys["", 0]
    args, kwargs = reference[reference.arguments_key(name, iteration)]
    parameters = reference.modules[name].parameters
    arguments = argument_tensors(parameters, args, kwargs)
    source = f"{_source(reference)}, call {call.index} of {name or 'the model'}"
    inputs: dict[str, torch.Tensor] = {}
    paths = argument_paths(program, graph, arguments)
    for graph_input, path in paths.items():
        value = graph.values[graph_input]
        if path in arguments:
            tensor = inputs[graph_input] = arguments[path]
            if value.shape is not None and not _fits(tensor, value.shape):
                raise CompareError(
                    f"the program takes {graph_input}: {value}, but {source}, was given {describe(tensor)} as {path}; "
                    "export it with these inputs, or with dynamic_shapes"
                )
        elif _is_unread(program, graph, graph_input):  # any numbers will do
            shape = [dim if isinstance(dim, int) else 1 for dim in value.shape or ()]
            inputs[graph_input] = torch.zeros(shape, dtype=getattr(torch, value.dtype or "float32"))
        else:
            given = ", ".join(arguments) or "no tensors"
            skipped = _skipped_tensor(named_arguments(parameters, args, kwargs))
            raise CompareError(f"the program takes an input {path!r}, but {source}, was given {given}{skipped}")
    dense = [tensor for tensor in inputs.values() if tensor.layout is torch.strided]
    if problem := repetition_problem(sum(tensor.nbytes for tensor in dense), dense):
        raise CompareError(f"{source}, was given tensors that repeat their numbers: they would take {problem}")
    return CapturedCall(call.index, name, inputs, keys), [path for path in arguments if path not in paths.values()]


def argument_paths(program: Program, graph: Graph, arguments: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the path of the argument for each graph input, even if there is no such argument.

    Args:
        program: the program.
        graph: its graph.
        arguments: the arguments of the model, by path.
    """
    paths = {name: program.inputs.get(name, name) for name in graph.inputs}
    if not program.inputs:  # a foreign file: names that match no argument are matched by position
        unmatched = (path for path in arguments if path not in paths)
        return {name: path if path in arguments else next(unmatched, path) for name, path in paths.items()}
    return paths


def empty_shape(value: Value, sizes: Mapping[object, int]) -> list[int] | None:
    """Return the shape of an input for keys and values of earlier tokens if there are none; None for another input.

    It is a floating-point input with a dimension of size 0, such as the number of earlier tokens if `sizes` lacks it.

    Args:
        value: the input.
        sizes: of symbolic dimensions, as far as they are known; the others are 0.
    """
    shape = [dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in value.shape or ()]
    return shape if 0 in shape and "float" in (value.dtype or "") else None


def empty_inputs(graph: Graph, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs of a graph that are not given and that are empty in a call without a past."""
    sizes: dict[object, int] = {}
    for name, tensor in given.items():
        sizes |= dict(zip(graph.values[name].shape or (), tensor.shape, strict=False))
    values = [graph.values[name] for name in graph.inputs if name not in given]
    shapes = [(value, empty_shape(value, sizes)) for value in values]
    return {
        value.name: torch.zeros(shape, dtype=getattr(torch, value.dtype or ""))
        for value, shape in shapes
        if shape is not None
    }


def _is_unread(program: Program, graph: Graph, name: str) -> bool:
    """Whether an input was added to an exported program, and nothing reads it: its value has no effect."""
    added = not program.is_foreign and name not in program.inputs
    return added and name not in graph.consumers and name not in graph.outputs


def _skipped_tensor(arguments: Mapping[str, Any]) -> str:
    """Describe the first tensor whose numbers the capture does not have, for a message; `""` if there is none."""
    for name, value in arguments.items():
        for path, part in missing_tensors(value).items():
            why = part.reason if isinstance(part, Skipped) else "it has their statistics only"
            return f"; of {name}{path} the capture has no numbers: {why}"
    return ""


def _fits(tensor: torch.Tensor, shape: tuple[object, ...]) -> bool:
    """Whether a tensor has a shape whose symbolic dimensions accept any size."""
    return tensor.dim() == len(shape) and all(
        size == dim for size, dim in zip(tensor.shape, shape, strict=True) if isinstance(dim, int)
    )


def cast_inputs(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cast the inputs to the floating-point dtypes of the graph where these are coarser."""
    return {name: tensor.to(_cast_dtype(graph, name, tensor)) for name, tensor in inputs.items()}


def cast_notes(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    """Return a note for each input that `cast_inputs` changes."""
    return [
        f"the program takes {name} as {graph.values[name].dtype}: what the model was given is rounded to it"
        for name, tensor in inputs.items()
        if _cast_dtype(graph, name, tensor) != tensor.dtype
    ]


def _cast_dtype(graph: Graph, name: str, tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype to which a graph rounds an input: the one that it declares if that is coarser, else its own."""
    declared = declared_dtype(graph, name)
    return declared if declared is not None and is_coarser(declared, tensor.dtype) else tensor.dtype
