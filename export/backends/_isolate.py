"""Runs each node of a compiled graph on what its inputs should be, whatever runs it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ..common._arrays import torch_to_array
from ..graph._cutting import AGAIN, Cutter
from ..graph._graph import Graph
from ..program._program import Program
from ._backend import Backend, Compiled, Isolates, ReferenceLookup, Values

_BUFFER = 2**28


def isolate(
    backend: Backend,
    program: Program,
    compiled: Compiled,
    inputs: Values,
    given: ReferenceLookup,
    *,
    optimize: bool,
    buffer: int = _BUFFER,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run what a backend compiled, each node on what its inputs should be, not on what the nodes before it made.

    A backend that can't do so itself compiles the program once more, cut at each value that is given and survives in
    the compiled graph: what is read there is an input, and what is made an output. All is held at once then.

    Args:
        backend: runs it.
        program: what was compiled.
        compiled: what became of it.
        inputs: as `Backend.run` takes them.
        given: see `Isolates.isolate`.
        optimize: as `Backend.compile` was told.
        buffer: see `Isolates.isolate`.

    Returns:
        see `Isolates.isolate`.

    Raises:
        BackendError: running fails, or the backend refuses the program that was cut.
    """
    if isinstance(backend, Isolates):
        return backend.isolate(compiled, inputs, given, buffer=buffer)
    cut = CutProgram.of(program, compiled, inputs, given, optimize=optimize)
    return cut.shown(backend.run(backend.compile(cut.program, optimize=optimize), cut.inputs))


@dataclass(frozen=True)
class CutProgram:
    """A program that was cut at each value that is given and survives in a compiled graph.

    Attributes:
        program: what is read there is an input, and what is made an output.
        inputs: what it is given, by name.
        values: the exported names of the values that it shows, by those that they have in the compiled graph.
    """

    program: Program
    inputs: Values
    values: Mapping[str, str]

    @classmethod
    def of(
        cls, program: Program, compiled: Compiled, inputs: Values, given: ReferenceLookup, *, optimize: bool
    ) -> "CutProgram":
        """Cut a program; see `isolate` for the arguments."""
        exported = program.graph
        made = {
            name: compiled.value_aliases.get(name, name) for name in (*compiled.graph.producer, *compiled.graph.outputs)
        }
        values = {name: value for name, value in made.items() if value in exported.producer}
        fed = _fed(exported, values, given, optimize=optimize)
        inside = exported.producer.keys() - fed.keys()
        model = Cutter(program.model, exported).cut(exported.nodes, inside, wanted={*values.values()})
        for value in model.graph.inputs:
            if value.name in fed:  # an exporter need not have said what is between nodes
                tensor = fed[value.name]
                value.type = value.type or ir.TensorType(ir.DataType.from_numpy(torch_to_array(tensor).dtype))
                value.shape = value.shape or ir.Shape(tensor.shape)
        taken = {value.name or "" for value in model.graph.inputs}
        return cls(
            Program(model), {name: tensor for name, tensor in {**inputs, **fed}.items() if name in taken}, values
        )

    def shown(self, found: Values) -> Iterator[tuple[str, torch.Tensor]]:
        """What it made, as `isolate` shows it."""
        for name, value in self.values.items():
            for made in (value + AGAIN, value):
                if made in found:
                    yield name, found[made]
                    break


def _fed(
    exported: Graph, values: Mapping[str, str], given: ReferenceLookup, *, optimize: bool
) -> dict[str, torch.Tensor]:
    """What is given of the values that are read, by their exported names.

    Constants are left for the backend to fold, as it has done; and one that folds nothing has none but `Constant`.
    """
    constants = {name for node in exported.nodes if node.op == "Constant" for name in node.outputs}
    fixed = exported.constant_values if optimize else constants
    found: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        if value in exported.consumers and value not in fixed and value not in found:
            tensor = given(name)
            if tensor is not None and _fits(exported, value, tensor):
                found[value] = tensor
    return found


def _fits(exported: Graph, name: str, tensor: torch.Tensor) -> bool:
    known = exported.values[name]
    if known.dtype not in (None, str(tensor.dtype).removeprefix("torch.")):
        return False
    shape = known.shape
    return shape is None or (
        len(shape) == tensor.ndim
        and all(dim == size for dim, size in zip(shape, tensor.shape, strict=True) if isinstance(dim, int))
    )
