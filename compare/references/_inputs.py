"""Find the captured calls of a model, and the inputs that a program takes from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from filch.export import Graph, Program, Value
from filch.steal import Call, Key, Records, Skipped, argument_tensors, compact, describe, left_out, named_arguments

from ..common._errors import CompareError
from ..metrics._tolerance import is_coarser

_LEAST = 2**31  # bytes that inputs may take however few are stored
_MOST_REPEATED = 64


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
        left_out: why each of the other calls was rejected.
        notes: the arguments of the model that the program does not take.
    """

    calls: tuple[CapturedCall, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def captured_calls(reference: Records, program: Program) -> CapturedCalls:
    """The calls of the program's model in a capture or dump.

    Raises:
        CompareError: no call was captured, or no call has the inputs of the program.
    """
    calls = [call for call in reference.calls() if call.name in reference.modules and _is_outermost(reference, call)]
    if not calls:
        raise CompareError(
            f"{_where(reference)} has no inputs of an outermost call: "
            "steal the model itself too, not its submodules alone"
        )
    # The module of a class depends on how its file was imported; the class's own name does not.
    wanted = _short(program.model_type)
    fitting = [call for call in calls if wanted in ("", _short(reference.modules[call.name].type_name))]
    if not fitting:
        stolen = reference.modules[calls[0].name].type_name
        raise CompareError(
            f"{_where(reference)} is of another model: it holds calls of {_short(stolen)}, "
            f"the program is {wanted}; if these are its parts, steal the model itself too"
        )
    made: list[CapturedCall] = []
    refused: list[CompareError] = []
    unused: dict[str, None] = {}
    graph = program.graph
    for call in fitting:
        try:
            stolen_call, extra = _stolen(reference, program, graph, call)
        except CompareError as error:
            refused.append(error)
        else:
            made.append(stolen_call)
            unused |= dict.fromkeys(extra)
    if not made:
        raise refused[0]
    notes = [f"the model was given {name!r} too, which the program does not take" for name in unused]
    return CapturedCalls(tuple(made), tuple(map(str, refused)), tuple(notes))


def _where(reference: Records) -> str:
    return "the capture" if reference.source == "memory" else f"the dump {reference.source!r}"


def _short(type_name: str) -> str:
    return type_name.rpartition(":")[2] or type_name


def _is_outermost(reference: Records, call: Call) -> bool:
    known = (key for key in call.keys if key.kind == "I" and key.name in reference.modules)
    return any(reference.records[key].origin.path == "" for key in known)


def _stolen(reference: Records, program: Program, graph: Graph, call: Call) -> tuple[CapturedCall, list[str]]:
    """One call, and the paths of what the model was given and the program does not take."""
    keys: dict[tuple[str, int], tuple[str, int]] = {}
    for key in call.keys:
        origin = reference.records[key].origin
        if origin.path is not None and key.kind == "I" and key.name in reference.modules:
            keys.setdefault((origin.path, origin.iteration), (key.name, key.iteration))
    name, iteration = keys["", 0]
    args, kwargs = reference[Key(name, iteration, "I")]
    parameters = reference.modules[name].parameters
    found = argument_tensors(parameters, args, kwargs)
    place = f"{_where(reference)}, call {call.index} of {name or 'the model'}"
    paths = _paths(program, graph, found)
    unread = {name for name, path in paths.items() if path not in found and _is_unread(program, graph, name)}
    missing = next((path for name, path in paths.items() if path not in found and name not in unread), None)
    if missing is not None:
        given = f"{', '.join(found) or 'no tensors'}{_lost(named_arguments(parameters, args, kwargs))}"
        raise CompareError(f"the program takes an input {missing!r}, but {place}, was given {given}")
    feeds = {
        item: _zeros(graph.values[item]) if item in unread else _fed(graph.values[item], path, found[path], place)
        for item, path in paths.items()
    }
    taken = frozenset(paths.values())
    _check_size(feeds, place)
    return CapturedCall(call.index, name, feeds, keys), [path for path in found if path not in taken]


def _paths(program: Program, graph: Graph, found: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the path of the argument for each graph input, even if there is no such argument."""
    paths = {name: program.inputs.get(name, name) for name in graph.inputs}
    if not program.inputs:  # a foreign file: names that match no argument are matched by position
        rest = (path for path in found if path not in paths)
        return {name: path if path in found else next(rest, path) for name, path in paths.items()}
    return paths


def _is_unread(program: Program, graph: Graph, name: str) -> bool:
    """Whether an input was added to an exported program, and nothing reads it: its value has no effect."""
    added = not program.is_foreign and name not in program.inputs
    return added and name not in graph.consumers and name not in graph.outputs


def _zeros(value: Value) -> torch.Tensor:
    shape = [dim if isinstance(dim, int) else 1 for dim in value.shape or ()]
    return torch.zeros(shape, dtype=getattr(torch, value.dtype or "float32"))


def _lost(arguments: Mapping[str, Any]) -> str:
    """Describe the first tensor that was skipped in the capture, for a message."""
    for name, value in arguments.items():
        for path, part in left_out(value).items():
            why = part.reason if isinstance(part, Skipped) else "it has their statistics only"
            return f"; of {name}{path} the capture has no numbers: {why}"
    return ""


def _fed(value: Value, path: str, tensor: torch.Tensor, place: str) -> torch.Tensor:
    if value.shape is not None and not _fits(tuple(tensor.shape), value.shape):
        raise CompareError(
            f"the program takes {value.name}: {value}, but {place}, was given {describe(tensor)} as {path}; "
            "export it with these inputs, or with dynamic_shapes"
        )
    return tensor


def _check_size(feeds: Mapping[str, torch.Tensor], place: str) -> None:
    """Refuse inputs whose expanded size is many times their stored size: a few bytes can stand for terabytes."""
    dense = [tensor for tensor in feeds.values() if tensor.layout is torch.strided]
    size, held = sum(tensor.nbytes for tensor in dense), sum(compact(tensor).nbytes for tensor in dense)
    if size > _LEAST and size > _MOST_REPEATED * held:
        raise CompareError(
            f"{place}, was given tensors that repeat their numbers: they would take {size / 2**30:,.1f} GiB, "
            f"more than {_MOST_REPEATED} times what is stored"
        )


def _fits(shape: tuple[int, ...], wanted: tuple[object, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(shape, wanted, strict=True)
    )


def cast_inputs(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cast the inputs to the floating-point dtypes of the graph where these are coarser."""
    return {name: tensor.to(_taken_dtype(graph, name, tensor)) for name, tensor in inputs.items()}


def cast_notes(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    """Return a note for each input that `cast_inputs` changes."""
    return [
        f"the program takes {name} as {graph.values[name].dtype}: what the model was given is rounded to it"
        for name, tensor in inputs.items()
        if _taken_dtype(graph, name, tensor) != tensor.dtype
    ]


def _taken_dtype(graph: Graph, name: str, tensor: torch.Tensor) -> torch.dtype:
    named = graph.values[name].dtype if name in graph.values else None
    wanted = getattr(torch, named or "", None)
    return wanted if isinstance(wanted, torch.dtype) and is_coarser(wanted, tensor.dtype) else tensor.dtype
