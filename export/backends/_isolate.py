"""Run each node of a compiled graph on reference inputs, with any backend."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ..common._arrays import torch_to_array
from ..graph._cutting import AGAIN, Cutter
from ..graph._graph import Graph
from ..program._program import Program
from ._backend import Backend, Compiled, Isolates, ReferenceLookup, Values

_BUFFER = 2**28  # bytes


def isolate(
    backend: Backend,
    program: Program,
    compiled: Compiled,
    inputs: Values,
    references: ReferenceLookup,
    *,
    optimize: bool,
    nodes: Collection[str] | None = None,
    buffer: int = _BUFFER,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run a compiled program, each node on reference inputs instead of what the nodes before it computed.

    A backend that does not implement `Isolates` compiles the program once more, cut at each value that has a reference
    and survives in the compiled graph: its consumers read a new input, and its computed value becomes an output. All
    values are in memory at once then.

    Args:
        backend: the backend that compiled the program.
        program: the program.
        compiled: the result of `Backend.compile`.
        inputs: see `Backend.run`.
        references: returns the reference of a value of the compiled graph by its name, or None; see `Isolates.isolate`.
        optimize: the argument with which the program was compiled.
        nodes: the names of the nodes to run, if the backend can run some of them; see `Isolates.isolate`.
        buffer: how many bytes of values may be in memory at a time, if the backend can limit that.

    Returns:
        see `Isolates.isolate`.

    Raises:
        BackendError: running fails, or the backend refuses the cut program.
    """
    if isinstance(backend, Isolates):
        return backend.isolate(compiled, inputs, references, nodes=nodes, buffer=buffer)
    cut = CutProgram.of(program, compiled, inputs, references, optimize=optimize)
    return cut.computed_values(backend.run(backend.compile(cut.program, optimize=optimize), cut.inputs))


@dataclass(frozen=True)
class CutProgram:
    """A program that is cut at each value that has a reference and survives in a compiled graph.

    Attributes:
        program: at each cut, it has an input for the consumers and an output with the computed value.
        inputs: its inputs by name.
        values: maps names of values in the compiled graph to their exported names.
    """

    program: Program
    inputs: Values
    values: Mapping[str, str]

    @classmethod
    def of(
        cls, program: Program, compiled: Compiled, inputs: Values, references: ReferenceLookup, *, optimize: bool
    ) -> "CutProgram":
        """Cut a program; see `isolate` for the arguments."""
        exported = program.graph
        names = {name: compiled.exported_name(name) for name in (*compiled.graph.producer, *compiled.graph.outputs)}
        values = {name: value for name, value in names.items() if value in exported.producer}
        tensors = _exported_references(exported, values, references, optimize=optimize)
        inside = exported.producer.keys() - tensors.keys()
        model = Cutter(program.model, exported).cut(exported.nodes, inside, wanted={*values.values()})
        for value in model.graph.inputs:
            if value.name in tensors:  # a cut; the model need not declare types and shapes of inner values
                tensor = tensors[value.name]
                value.type = value.type or ir.TensorType(ir.DataType.from_numpy(torch_to_array(tensor).dtype))
                value.shape = value.shape or ir.Shape(tensor.shape)
        input_names = {value.name or "" for value in model.graph.inputs}
        feeds = {name: tensor for name, tensor in {**inputs, **tensors}.items() if name in input_names}
        return cls(Program(model), feeds, values)

    def computed_values(self, outputs: Values) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the computed values, in the form that `isolate` returns.

        A value that is cut is an input under its own name; what is computed for it has `AGAIN` appended to the name.
        """
        for name, value in self.values.items():
            output = value + AGAIN if value + AGAIN in outputs else value
            if output in outputs:
                yield name, outputs[output]


def _exported_references(
    exported: Graph, values: Mapping[str, str], references: ReferenceLookup, *, optimize: bool
) -> dict[str, torch.Tensor]:
    """Return the references of the values that nodes read, by their exported names.

    Constants keep their values, so that the backend folds them as before. Without optimization, none but the outputs of
    `Constant` nodes are constants.

    Args:
        exported: the exported graph.
        values: see `CutProgram.values`.
        references: see `isolate`.
        optimize: see `isolate`.
    """
    unoptimized = {name for node in exported.nodes if node.op == "Constant" for name in node.outputs}
    constants = exported.constant_values if optimize else unoptimized
    tensors: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        if value in exported.consumers and value not in constants and value not in tensors:
            tensor = references(name)
            if tensor is not None and _fits(exported, value, tensor):
                tensors[value] = tensor
    return tensors


def _fits(exported: Graph, name: str, tensor: torch.Tensor) -> bool:
    """Return whether a tensor has the dtype and shape that the graph declares for a value, as far as it does."""
    declared = exported.values[name]
    if declared.dtype not in (None, str(tensor.dtype).removeprefix("torch.")):
        return False
    if declared.shape is None or len(declared.shape) != tensor.ndim:
        return declared.shape is None
    pairs = zip(declared.shape, tensor.shape, strict=True)
    return all(dim == size for dim, size in pairs if isinstance(dim, int))
