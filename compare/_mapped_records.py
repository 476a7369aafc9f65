"""Give a program the values of another implementation's capture, by a mapping of module outputs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from filch.export import ModuleCall, Port, Program, Value
from filch.steal import Capture, Key, Records, describe, steal_forward, tensors

from .alignment._value_map import MappedValue, ValueMap
from .common._errors import CompareError
from .layouts._layout import Layout
from .references._inputs import CapturedCall, captured_calls

Tensors = Mapping[str, torch.Tensor]
Call = tuple[str, int]  # the path of a module, and the number of earlier calls of it


@dataclass(frozen=True)
class MappedRecords:
    """The calls of implementation A, as if implementation B had been captured, with the program of B.

    Attributes:
        capture: the inputs of B, and those of its module outputs that the mapping makes of values of A.
        program: the program of B, with these module outputs and without the PyTorch program that it was made from,
            whose values are not those of A.
        note: how many values of B have a reference.
    """

    capture: Capture
    program: Program
    note: str


@dataclass(frozen=True)
class _TensorOfB:
    """A tensor that a module of B returned.

    Attributes:
        call: the call of the module.
        value: the value of the program.
    """

    call: Call
    value: Value


def mapped_records(reference: Records, program: Program, mapping: ValueMap) -> MappedRecords:
    """Return the records of implementation A for a program of implementation B.

    Args:
        reference: a capture or dump of A.
        program: the program of B, which says what its modules return, as one that was made by `export` does.
        mapping: where module outputs of A are in B.

    Raises:
        CompareError: the program does not say what its modules return; the mapping names a module that the program does
            not have, or a part that a value does not have; the inputs do not fit.
    """
    if program.is_foreign:
        raise CompareError("a mapping names modules, and the program does not say what they return: use `export`")
    outputs, graph = dict(_outputs(program)), program.graph
    rows = _rows_by_place(mapping, {f"{_called(*call)}{port.path}" for call, port in _ports(program)})
    # So that calls of A's class are taken, and its arguments are matched by name or position.
    calls = captured_calls(reference, replace(program, model_type="", inputs={})).calls
    outputs_of_calls = []
    for call in calls:
        values = _values(reference, call)
        made = {
            place: _joined(values, items, outputs[place].value) for place, items in rows.items() if place in outputs
        }
        # Several modules may return one value, of which the mapping names only one place.
        by_value = {outputs[place].value.name: tensor for place, tensor in made.items() if tensor is not None}
        outputs_of_calls.append(
            {place: by_value[name] for place, item in outputs.items() if (name := item.value.name) in by_value}
        )
    known = {place: item for place, item in outputs.items() if all(place in tensors for tensors in outputs_of_calls)}
    by_call: dict[Call, list[str]] = {}
    for place, item in known.items():
        by_call.setdefault(item.call, []).append(place)
    module = _ModulesOfB(by_call)
    with torch.no_grad(), steal_forward(module, submodules=True) as capture:
        for call, outputs_of_call in zip(calls, outputs_of_calls, strict=True):
            module.values = outputs_of_call
            module(**call.inputs)
    module_calls = {  # the path of each tensor is its key in the dictionaries that `_ModulesOfB` returns
        key: ModuleCall(*key, (), tuple(Port(f"[{place!r}]", known[place].value.name, "exact") for place in places))
        for key, places in by_call.items()
    }
    inputs = tuple(Port(name, name, "exact") for name in graph.inputs)
    module_calls["", 0] = replace(module_calls.get(("", 0), ModuleCall("", 0, (), ())), inputs=inputs)
    of_b = replace(
        program,
        inputs={name: name for name in graph.inputs},
        module_calls=module_calls,
        model_type="",
        original=None,
        missing="",
    )
    return MappedRecords(capture, of_b, f"{len(known)} values of modules have a reference by the mapping")


def _ports(program: Program) -> Iterator[tuple[Call, Port]]:
    """Yield each tensor that a module of the program returned, with the call of the module."""
    for key, call in program.module_calls.items():
        for port in call.outputs:
            yield key, port


def _called(path: str, iteration: int) -> str:
    """Return the path of a module with `@1` after its second call, as mappings name it."""
    return f"{path}@{iteration}" if iteration else path


def _outputs(program: Program) -> Iterator[tuple[str, _TensorOfB]]:
    """Yield the module outputs that are values of the program, by their places."""
    graph = program.graph
    for call, port in _ports(program):
        if port.value is not None and port.value in graph.values:
            yield f"{_called(*call)}{port.path}", _TensorOfB(call, graph.values[port.value])


def _rows_by_place(mapping: ValueMap, places: set[str]) -> dict[str, dict[str, MappedValue]]:
    """Return the rows of a mapping by the place of the value in B, and by the name of the value in A.

    Args:
        mapping: the mapping.
        places: what modules of B returned, each by the module, its call and the path of the tensor.

    Raises:
        CompareError: the mapping names another place.
    """
    rows: dict[str, dict[str, MappedValue]] = {}
    for name, row in mapping.values.items():
        if row.place not in places:
            close = get_close_matches(row.place, places, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise CompareError(f"the mapping names {row.place!r}, which no module of the program returned{hint}")
        rows.setdefault(row.place, {})[name] = row
    return rows


def _values(reference: Records, call: CapturedCall) -> dict[str, torch.Tensor]:
    """Return the module outputs of a call, by the names of mappings."""
    return {
        f"{_called(*key)}{path}": tensor
        for key, (name, iteration) in call.keys.items()
        if (record := Key(name, iteration, "O")) in reference
        for path, tensor in tensors(reference[record]).items()
    }


def _joined(values: Tensors, rows: Mapping[str, MappedValue], value: Value) -> torch.Tensor | None:
    """Return a value of B, made of those of A; None if not all of its elements are known, or its shape is not."""
    shape = [dim for dim in value.shape or () if isinstance(dim, int)]
    parts = {name: values[name] for name in rows if name in values}
    if not parts or value.shape is None or len(shape) < len(value.shape):
        return None
    joined = torch.zeros(shape, dtype=next(iter(parts.values())).dtype)
    is_known = torch.zeros(shape, dtype=torch.bool)
    for name, tensor in parts.items():
        layout = rows[name].layout or Layout.of(0, [(tensor.numel(), 1)])
        try:
            if 0 not in layout.strides:  # elements that are repeated in A say nothing new
                layout.select(joined).copy_(tensor.reshape(layout.sizes))
                layout.select(is_known).fill_(value=True)
        except (IndexError, RuntimeError):
            place = rows[name].place
            raise CompareError(
                f"the mapping says that {name!r}, {describe(tensor)}, is in {place!r}, {value}, which has no such part"
            ) from None
    return joined if bool(is_known.all()) else None


class _ModulesOfB(nn.Module):
    """Returns given values from modules of given paths.

    Args:
        places: the values of each call of a module, by the path and the number of the call.

    Attributes:
        values: the values of the next call.
    """

    def __init__(self, places: Mapping[Call, list[str]]) -> None:
        super().__init__()
        self._places, self.values = places, dict[str, Any]()
        for path, _ in places:
            parent: nn.Module = self
            for name in filter(None, path.split(".")):
                if name not in parent._modules:  # noqa: SLF001  names of lists are numbers
                    parent.add_module(name, _ReturnedTensors())
                parent = parent.get_submodule(name)

    def forward(self, **_: Any) -> dict[str, Any]:
        for call in sorted(self._places, key=lambda call: call[1]):
            if call[0]:
                self.get_submodule(call[0])({place: self.values[place] for place in self._places[call]})
        return {place: self.values[place] for place in self._places.get(("", 0), ())}


class _ReturnedTensors(nn.Module):
    """Returns the tensors that it is given, so that they are recorded as its output."""

    def forward(self, values: dict[str, Any]) -> dict[str, Any]:
        return values
