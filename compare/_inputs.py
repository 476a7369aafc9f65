"""What a stolen call feeds to a program."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from filch.export import Program
from filch.steal import Call, Key, Records, argument_tensors, describe

from ._errors import CompareError


@dataclass(frozen=True)
class StolenCall:
    """One call of the model that was stolen.

    Attributes:
        index: which one, counted over the capture.
        name: the model's name in the capture.
        inputs: what the program is fed, by the names of its inputs.
        keys: for each `(module path, iteration in the call)`, the name and iteration of its records.
    """

    index: int
    name: str
    inputs: Mapping[str, torch.Tensor]
    keys: Mapping[tuple[str, int], tuple[str, int]]


def stolen_calls(reference: Records, program: Program) -> list[StolenCall]:
    """The calls of the program's model in a capture or dump.

    Raises:
        CompareError: there is none, or what they were given is not what the program takes.
    """
    calls = [call for call in reference.calls() if _is_outermost(reference, call)]
    if not calls:
        raise CompareError(f"{_where(reference)} has no inputs of an outermost call: steal the model itself too, not its submodules alone")  # fmt: skip
    fitting = [call for call in calls if program.model_type in ("", reference.modules[call.name].type_name)]
    if not fitting:
        stolen = reference.modules[calls[0].name].type_name
        raise CompareError(f"{_where(reference)} is of another model: it holds calls of {_short(stolen)}, the program is {_short(program.model_type)}")  # fmt: skip
    return [_stolen(reference, program, call) for call in fitting]


def _where(reference: Records) -> str:
    return "the capture" if reference.source == "memory" else f"the dump {reference.source!r}"


def _short(type_name: str) -> str:
    return type_name.rpartition(":")[2] or type_name


def _is_outermost(reference: Records, call: Call) -> bool:
    return any(reference.records[key].origin.path == "" and key.kind == "I" for key in call.keys)


def _stolen(reference: Records, program: Program, call: Call) -> StolenCall:
    keys = {}
    for key in call.keys:
        origin = reference.records[key].origin
        if origin.path is not None and key.kind == "I":
            keys.setdefault((origin.path, origin.iteration), (key.name, key.iteration))
    name, iteration = keys["", 0]
    args, kwargs = reference[Key(name, iteration, "I")]
    found = argument_tensors(reference.modules[name].parameters, args, kwargs)
    place = f"{_where(reference)}, call {call.index} of {name or 'the model'}"
    return StolenCall(call.index, name, _feeds(program, found, place), keys)


def _feeds(program: Program, found: Mapping[str, torch.Tensor], place: str) -> dict[str, torch.Tensor]:
    graph = program.graph
    feeds = {}
    rest = [path for path in found if path not in program.inputs.values() and path not in graph.inputs]
    for name in graph.inputs:
        path = program.inputs.get(name, name)
        if path not in found and not program.inputs and rest:
            path = rest.pop(0)  # a foreign file: inputs that are not called like parameters are taken in order
        if path not in found:
            has = ", ".join(found) or "no tensors"
            raise CompareError(f"the program takes an input {path!r}, but {place}, was given {has}")
        value = graph.values[name]
        tensor = found[path]
        if value.shape is not None and not _fits(tuple(tensor.shape), value.shape):
            raise CompareError(f"the program takes {name}: {value}, but {place}, was given {describe(tensor)}; export it with these inputs, or with dynamic_shapes")  # fmt: skip
        feeds[name] = tensor
    return feeds


def _fits(shape: tuple[int, ...], wanted: tuple[object, ...]) -> bool:
    return len(shape) == len(wanted) and all(not isinstance(dim, int) or dim == size for size, dim in zip(shape, wanted, strict=True))


