"""Resolve the reference of each value of a graph."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeVar

import torch

from filch.export import ExportError, Graph, Original, Program
from filch.export.evaluation._unpredictable import Unpredictable
from filch.export.graph._sizes import value_sizes
from filch.steal import Key, Records, tensors
from filch.steal.values._arguments import argument_tensors

from ..common._complex import complex_as_real
from ._decomposition_replay import DecompositionReplay
from ._inputs import CapturedCall, cast_notes
from ._reference_program import ReferenceProgram
from ._renamed import RenamedOriginal
from ._resolver import EagerReplay, Reference, ReferenceResolver

T = TypeVar("T")


class References:
    """The references of a program's values, call by call.

    The input or output of a captured module is itself the reference. All other values of the exported program are
    computed from these in eager PyTorch. Values inside an operator's decomposition are computed by the decomposition
    from eager values, and used only if its output matches the eager value. A transposed weight, which linear layers
    have inside, is computed from the weight alone: replaying the layer to obtain it would multiply by the weight.

    Args:
        reference: the capture or dump.
        program: the program.
        wanted: the names of the exported graph's values that will be requested.
        buffer: the size in bytes of the cache of references.
        lower_precision: see `compare`.
    """

    def __init__(
        self,
        reference: Records,
        program: Program,
        *,
        wanted: Collection[str],
        buffer: int,
        lower_precision: bool = False,
    ) -> None:
        self._reference = reference
        self._program = program
        self._wanted = wanted
        self._buffer = buffer
        self._lower_precision = lower_precision
        self._decompositions: DecompositionReplay | None = None
        self.notes = [*program.original.notes] if isinstance(program.original, RenamedOriginal) else []
        if program.missing:
            self._note(f"{program.missing!r} is not beside the ONNX file: only modules have reference values")

    def of(self, call: CapturedCall, wanted: Collection[str]) -> ReferenceResolver:
        """Return the references of one call, to be requested in graph order.

        Args:
            call: the captured call.
            wanted: the names of the values that will be requested in this run.
        """
        captured = without_random(captured_values(self._reference, self._program, call), self._program.unpredictable)
        # Compiled graphs and programs of lower precision store inputs and weights in other forms.
        weights = {name: weight for name in self._wanted if (weight := self._weight(name)) is not None}
        known = {
            name: Reference(complex_as_real(tensor), "given") for name, tensor in {**call.inputs, **weights}.items()
        }
        known |= {name: Reference(tensor, "module") for name, tensor in captured.items()}
        original = self._program.original
        if isinstance(original, RenamedOriginal):
            known |= {name: Reference(complex_as_real(value), "inferred") for name, value in original.inferred.items()}
        if isinstance(original, ReferenceProgram):
            return ReferenceResolver(known | original.references(call.index))
        if original is None or not self._is_reference(original, {**call.inputs, **captured}):
            return ReferenceResolver(known)
        if self._decompositions is None:
            sizes = value_sizes(original.graph, call.inputs)
            wanted_inside = self._wanted - self._transposed_weights.keys()
            self._decompositions = DecompositionReplay(original, wanted_inside, sizes, self._buffer)
        decompositions, transposed = self._decompositions, self._transposed_weights
        return EagerReplay(
            known, original, decompositions, call.inputs, captured, transposed, wanted, self._buffer, self._note
        )

    def _is_reference(self, original: Original, captured: Mapping[str, torch.Tensor]) -> bool:
        """Return whether the exported program can run, with at least the precision of the capture.

        Args:
            original: the exported program.
            captured: the inputs of the program and the values of modules in the capture, by name.
        """
        try:
            graph, _ = original.graph, original.names  # either may load its file, which may be damaged
        except ExportError as error:
            self._note(str(error))
            return False
        if self._lower_precision and cast_notes(graph, captured):
            self._note("the model was exported in a lower precision than captured: only modules are references")
            return False
        return True

    def _weight(self, name: str) -> torch.Tensor | None:
        """Return a weight of the program, or the exported one if its precision was lowered; None of another value."""
        weight, exported = self._program.constant(name), self._exported_weights.get(name)
        return weight if exported is None or (weight is not None and weight.dtype == exported.dtype) else exported

    @cached_property
    def _exported_weights(self) -> Mapping[str, torch.Tensor]:
        """The weights of the exported program, if lower precision is allowed, without folded ones.

        Optimizers that fold another weight into a weight keep its name, but remove the nodes that used it.
        """
        original = self._program.original
        if not self._lower_precision or original is None:
            return {}
        try:
            graph, exported = original.graph, Program(original.model)
        except ExportError:  # reported by `_is_reference`
            return {}
        known = self._program.graph.known
        unfolded = (
            name
            for name in graph.constants
            if name in self._wanted and all(known.issuperset(user.outputs) for user in graph.consumers.get(name, ()))
        )
        return {name: tensor for name in unfolded if (tensor := exported.constant(name)) is not None}

    @cached_property
    def _transposed_weights(self) -> Mapping[str, Callable[[], torch.Tensor | None]]:
        """Functions that compute the wanted values which are transposed weights of the exported program, by name."""
        original = self._program.original
        if original is None:
            return {}
        # Eager PyTorch computes the values in `names`; the other ones are inside an operator's decomposition.
        weights, inside = {*original.graph.constants}, {*self._wanted}.difference(original.names)
        return {
            node.outputs[0]: partial(_transposed, original, node.inputs[0], node.attributes.get("perm"))
            for node in original.graph.nodes
            if node.operator.movement == "permute"
            and weights.intersection(node.inputs[:1])
            and inside.intersection(node.outputs[:1])
        }

    def _note(self, text: str) -> None:
        """Add a remark for the reader of the report, once."""
        if text not in self.notes:
            self.notes.append(text)


def _transposed(original: Original, name: str, order: Sequence[int] | None) -> torch.Tensor | None:
    """Return a weight with its dimensions in another order (None reverses them); None if there is no such tensor."""
    weight = original.constant(name)
    dims = [] if weight is None else [*range(weight.ndim)]
    order = dims[::-1] if order is None else order
    return None if weight is None or sorted(order) != dims else weight.permute([*order]).contiguous()


def without_random(values: Mapping[str, T], unpredictable: Unpredictable) -> dict[str, T]:
    """Return the values that are deterministic."""
    return {name: value for name, value in values.items() if name not in unpredictable.all}


def captured_values(reference: Records, program: Program, call: CapturedCall) -> dict[str, torch.Tensor]:
    """Return the graph values that are inputs or outputs of the modules of a captured call, by name.

    The inputs of the program are left out, and tensors that no value of the graph equals (`Port.value` is None).
    """
    values: dict[str, torch.Tensor] = {}
    for key, record in call.keys.items():
        if (module_call := program.module_calls.get(key)) is None:
            continue
        inputs, outputs = captured_tensors(reference, record)
        for ports, tensors_by_path in ((module_call.inputs, inputs), (module_call.outputs, outputs)):
            for port in ports:
                if port.value is not None and port.value not in call.inputs and port.path in tensors_by_path:
                    values[port.value] = complex_as_real(tensors_by_path[port.path])
    return values


def captured_tensors(
    reference: Records, record: tuple[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the input tensors (by parameter) and output tensors (by path) of a captured module call."""
    args, kwargs = reference.borrow(reference.arguments_key(*record))
    output = Key(*record, "O")
    outputs = tensors(reference.borrow(output)) if output in reference else {}
    return argument_tensors(reference.modules[record[0]].parameters, args, kwargs), outputs


def captured_results(reference: Records, call: CapturedCall) -> list[torch.Tensor]:
    """Return the tensors of the model's result in a captured call, in order."""
    return [*map(complex_as_real, captured_tensors(reference, call.keys["", 0])[1].values())]


def result_references(results: Sequence[torch.Tensor], graph: Graph) -> dict[str, Reference]:
    """Return the model's results as references of the graph's outputs; empty if there are more or fewer."""
    if len(results) != len(graph.outputs):
        return {}
    return {name: Reference(tensor, "module") for name, tensor in zip(graph.outputs, results, strict=True)}
