"""What the values of a graph should be."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from filch.export import ExportError, Program
from filch.steal import Key, Records, argument_tensors, tensors

from ._derived import Derivation
from ._inputs import StolenCall, cast_notes


@dataclass(frozen=True)
class Reference:
    """What one value should be.

    Attributes:
        tensor: its numbers.
        evidence: where they are from (see `Row.evidence`).
    """

    tensor: torch.Tensor
    evidence: str


class References:
    """Where the reference values of one program come from, for one call after the other.

    A value that a stolen module took or gave is what the module had. The other values of the exported program are
    computed by it in eager PyTorch. What an operation's translation has inside is computed by that translation, from
    eager's values, and only believed if it ends at eager's value again.
    """

    def __init__(self, reference: Records, program: Program, *, lower_precision: bool = False) -> None:
        self._reference = reference
        self._program = program
        self._lower_precision = lower_precision
        self._derivation: Derivation | None = None
        self.notes: list[str] = []
        if program.missing:
            self._note(f"{program.missing!r} is not beside the ONNX file: only modules have reference values")

    def of(self, call: StolenCall) -> dict[str, Reference]:
        """The reference values by the names of the exported graph's values, for one call."""
        stolen = stolen_values(self._reference, self._program, call)
        found = {name: Reference(tensor, "eager") for name, tensor in self._eager(call, stolen).items()}
        if found and self._derivation is None and self._program.original is not None:
            self._derivation = Derivation(self._program.original, frozenset(found))
        if self._derivation is not None:
            known = {name: item.tensor for name, item in found.items()}
            found |= {name: Reference(t, "derived") for name, t in self._derivation.run(known, call.inputs).items()}
        return found | {name: Reference(tensor, "module") for name, tensor in stolen.items()}

    def _eager(self, call: StolenCall, stolen: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        original = self._program.original
        if original is None:
            return {}
        if self._lower_precision and cast_notes(original.graph, {**call.inputs, **stolen}):
            self._note("the model was exported in a lower precision than it was stolen in: only modules are references")
            return {}
        found: dict[str, torch.Tensor] = {}
        try:
            original.run(call.inputs, lambda name, value: found.update({name: in_pairs(value)}))
        except ExportError as error:
            self._note(str(error))
            return {}
        return found

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def in_pairs(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as ONNX graphs have them: pairs of real ones, in one dimension more."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def stolen_values(reference: Records, program: Program, call: StolenCall) -> dict[str, torch.Tensor]:
    """The values of the graph that the modules of a stolen call took or gave, by name."""
    found: dict[str, torch.Tensor] = {}
    for key, record in call.keys.items():
        if key not in program.module_calls:
            continue
        module_call = program.module_calls[key]
        taken, given = stolen_tensors(reference, record)
        for ports, held in ((module_call.inputs, taken), (module_call.outputs, given)):
            for port in ports:
                if port.value is not None and port.path in held:
                    found[port.value] = in_pairs(held[port.path])
    return {name: tensor for name, tensor in found.items() if name not in call.inputs}


def stolen_tensors(
    reference: Records, record: tuple[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What a stolen call took (by parameter) and gave (by place)."""
    args, kwargs = reference[Key(*record, "I")]
    output = Key(*record, "O")
    given = tensors(reference[output]) if output in reference else {}
    return argument_tensors(reference.modules[record[0]].parameters, args, kwargs), given
