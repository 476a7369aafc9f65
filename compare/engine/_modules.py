"""Compare each tensor that a captured module received or returned."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from filch.export import Program
from filch.steal import Records

from ..common._complex import complex_as_real
from ..metrics._limits import Limits
from ..metrics._metrics import Difference, compare_tensors
from ..references._inferred import Inference
from ..references._inputs import CapturedCall
from ..references._references import captured_tensors
from ..references._resolver import Reference
from ..results._rows import JudgedValue, ModuleRow


class ModuleRows:
    """The rows of the tensors of module calls, filled while the values of a run arrive.

    Random values and uninitialized memory are not compared.

    Attributes:
        is_resolved: whether each tensor is mapped to a value; in a foreign graph, `infer` does this from its values.

    Args:
        reference: the capture or dump.
        program: the program to compare with it.
        call: the call of the model.
        limits: the tolerance of each value.
    """

    def __init__(self, reference: Records, program: Program, call: CapturedCall, limits: Limits) -> None:
        self._reference = reference
        self._program = program
        self._call = call
        self._limits = limits
        self.is_resolved = False
        self._entries: list[tuple[_TensorPlace, torch.Tensor]] = []
        self._differences: dict[int, Difference] = {}  # by the index of the entry
        if not program.is_foreign:
            self._resolve(None)

    def infer(self, values: Mapping[str, torch.Tensor]) -> None:
        """Map the tensors of modules to the values of a foreign graph with the same numbers."""
        self._resolve(Inference(self._program.graph, values))

    def _resolve(self, inference: Inference | None) -> None:
        """Find the value of each tensor of a module, and compare those that are inputs or constants of the program.

        Args:
            inference: finds values of a foreign graph by their numbers; None for a program that says which they are.
        """
        self._entries = [*_entries(self._reference, self._program, self._call, inference)]
        self.is_resolved = True
        self._rows_of_value: dict[str, list[int]] = {}  # the indices of the entries, by the name of their value
        for index, (entry, _) in enumerate(self._entries):
            if entry.value is not None:
                self._rows_of_value.setdefault(entry.value, []).append(index)
        for name in list(self._rows_of_value):
            tensor = self._call.inputs.get(name, self._program.constant(name))
            if tensor is not None:
                self.compare(name, tensor, None, None)

    def compare(self, name: str, tensor: torch.Tensor, reference: Reference | None, value: JudgedValue | None) -> None:
        """Compare a value by its exported name, see `OnValue`; reuse its difference if it has the same reference.

        Of several stages, the first one that has the value compares it.
        """
        for index in self._rows_of_value.pop(name, ()) if name not in self._program.unpredictable.all else ():
            captured = complex_as_real(self._entries[index][1])
            difference = None
            if value is not None and reference is not None and _is_same_memory(captured, reference.tensor):
                difference = value.difference
            if difference is None:
                limit = self._limits.of(name, tensor.dtype)
                difference = compare_tensors(
                    complex_as_real(tensor), captured, tolerance=limit, lower_precision=self._limits.lower_precision
                )
            self._differences[index] = difference

    @property
    def rows(self) -> list[ModuleRow]:
        """One row per tensor of each module call, in the order of execution."""
        return [
            ModuleRow(self._call.index, *entry, self._differences.get(index))
            for index, (entry, _) in enumerate(self._entries)
        ]

    def references(self) -> dict[str, Reference]:
        """Return modules' captured tensors as references of the values of a foreign graph, by the names of the values.

        Only values that `infer` found by their numbers have one: that of the first tensor with these numbers.
        """
        references: dict[str, Reference] = {}
        for entry, tensor in self._entries:
            if entry.resolution == "inferred" and entry.value is not None:
                references.setdefault(entry.value, Reference(tensor, "inferred"))
        return references


class _TensorPlace(NamedTuple):
    """The place of a tensor; see `ModuleRow`."""

    path: str
    iteration: int
    side: str
    port: str
    resolution: str
    value: str | None
    note: str


def _entries(
    reference: Records, program: Program, call: CapturedCall, inference: Inference | None
) -> Iterator[tuple["_TensorPlace", torch.Tensor]]:
    """Yield the place of each tensor of the call's modules, with the value of the program, and the captured tensor.

    Args:
        reference: the capture or dump.
        program: the program, which may say what the values are.
        call: the call of the model.
        inference: see `ModuleRows._resolve`.
    """
    for (path, iteration), record in call.keys.items():
        module_call = program.module_calls.get((path, iteration))
        port_lists = (module_call.inputs, module_call.outputs) if module_call else ((), ())
        for side, tensors, port_list in zip(
            ("input", "output"), captured_tensors(reference, record), port_lists, strict=True
        ):
            ports = {port.path: port for port in port_list}
            for place, tensor in tensors.items():
                resolution, value, note = "not mapped", None, "the exported model did not make this call"
                if place in ports:
                    resolution, value, note = ports[place].resolution, ports[place].value, ports[place].note
                elif inference is not None:
                    note = "nothing in this file says which value it is, and none has its numbers"
                    if side == "output" and (inferred := inference.find(path, iteration, tensor)) is not None:
                        resolution, (value, note) = "inferred", inferred
                yield _TensorPlace(path, iteration, side, place, resolution, value, note), tensor


def _is_same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are views of the same memory with the same dtype, shape and strides."""
    return (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype)
