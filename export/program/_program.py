"""A model exported to ONNX, with what is known of how its modules' calls became the graph's values."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from filch.steal import parse_json, refuse_link_out

from .._errors import ExportError, ProgramError, reason
from ..common._arrays import array_to_torch
from ..common._garbage_collection import no_collection
from ..evaluation._unpredictable import Unpredictable, nested_draws, of_graph
from ..graph._from_onnx import graph_from_onnx
from ..graph._graph import Graph
from ..graph._module_calls import ModuleCall, Port
from ..onnx_files._read import read_onnx
from . import _original
from ._operators import ModelOperator
from ._original import Original

_PROGRAM = "filch.program"
_INPUTS = "filch.inputs"
_OUTPUTS = "filch.outputs"
_CALLS = "filch.module_calls"
_MODEL = "filch.model"
_OPERATORS = "filch.operators"
_ORIGINAL = "filch.original"
_STRATEGY = "filch.strategy"
_VERSION = 1
_ANY = "main_graph"  # what torch's exporter calls every graph
_LARGE = 64 * 2**20  # beyond, weights go to a file beside the model


@dataclass(frozen=True)
class Program:
    """A model exported to ONNX.

    Attributes:
        model: the ONNX model; passes may change it, `module_calls` follow by value names.
        inputs: for each input of the graph, in order, the path of the argument that it is fed (`input_ids`,
            `cache.layers[0].keys`); empty for a file that Filch did not export.
        module_calls: by `(module path, iteration)`, which values each call of a module took and gave; `("", 0)` is the
            model itself.
        model_type: the exported module's class as `"module:QualifiedName"`; `""` if not known.
        missing: the file of the original, where it is not beside the ONNX file; `""` if none is missing.
        operators: the model's operations as they are written in PyTorch, from its inputs to its results.
        original: what the graph was translated from; None where only the file is there, and then only modules have
            reference values.
        path: the file it was loaded from, or None.
        outputs: the names of the graph's outputs as they were exported: the model's results, in order, whatever became
            of the graph since; empty for a file that Filch did not export.
        strategy: how torch exported the model: `strict=False`, or the first of torch.onnx's strategies that could,
            `strict=False, backed_size_oblivious`, `strict=True` or `draft_export`; `""` if not known.
    """

    model: ir.Model
    inputs: Mapping[str, str] = field(default_factory=dict)
    module_calls: Mapping[tuple[str, int], ModuleCall] = field(default_factory=dict)
    model_type: str = ""
    operators: tuple[ModelOperator, ...] = ()
    original: Original | None = None
    path: Path | None = None
    missing: str = ""
    outputs: tuple[str, ...] = ()
    strategy: str = ""

    @property
    def graph(self) -> Graph:
        """The graph as it is now, under the name of the model's class if the exporter's is all that it has.

        Raises:
            ProgramError: an attribute or a constant of the model can't be read.
        """
        try:
            graph = graph_from_onnx(self.model)
        except Exception as error:  # a file may hold anything
            name = repr(str(self.path)) if self.path else "the model"
            raise ProgramError(f"{name} can't be used: {reason(error)}") from error
        known = self.model_type.rpartition(":")[2].rpartition(".")[2]
        return replace(graph, name=known) if known and graph.name == _ANY else graph

    def __str__(self) -> str:
        """The graph as text, a line a node (see `Graph.text`)."""
        return str(self.graph)

    @cached_property
    def is_foreign(self) -> bool:
        """Whether the module calls are not known, so that values can only be mapped by inference."""
        return not self.module_calls

    @property
    def exported_program(self) -> ExportedProgram | None:
        """The decomposed torch program that the graph was translated from."""
        return self.original.program if self.original else None

    def is_changed(self) -> bool:
        """Whether the graph, or a weight in it, is not what was exported; False if that is not known."""
        if self.original is None:
            return False
        held, kept = self.model.graph.initializers, self.original.model.graph.initializers
        graph = self.graph
        return graph != replace(self.original.graph, name=graph.name) or any(
            not _equal(held[name], kept[name]) for name in held
        )

    @cached_property
    def unpredictable(self) -> Unpredictable:
        """The values that may differ between runs, found in the exported program if there is one, else by operator.

        What draws random numbers in the graph alone is no such value, but a fault of the graph.
        """
        if self.original is not None:
            with contextlib.suppress(ExportError):
                return self.original.unpredictable
        return of_graph(self.graph, nested_draws(self.model.graph))

    def constant(self, name: str) -> torch.Tensor | None:
        """The numbers of a value that the graph holds; None if it does not hold one of this name."""
        value = self.model.graph.initializers.get(name)
        if value is None or value.const_value is None:
            return None
        return array_to_torch(value.const_value.numpy())

    def save(self, path: str | os.PathLike[str], *, original: bool = True) -> None:
        """Write the ONNX file (weights over 64 MB in all go to `<path>.data`).

        Args:
            path: where to. The module calls travel in the file's metadata.
            original: write what the graph was translated from too, to `<path>.pt2`, as torch.export does: comparing
                the file, whatever was changed in it since, then has eager reference values for all nodes, not for
                modules alone. It holds the weights once more.

        Raises:
            ProgramError: the disk refuses.
        """
        where = Path(path)
        if not where.name or where.is_dir():
            raise ProgramError(f"{os.fspath(path)!r} is no name for a file")
        saved = self.model.clone()
        saved.metadata_props.update(self._metadata())
        held = [value.const_value for value in saved.graph.initializers.values() if value.const_value is not None]
        large = sum(tensor.nbytes for tensor in held) > _LARGE
        try:
            for file in (where, where.with_name(f"{where.name}.data")):
                refuse_link_out(file)
            if original and self.original is not None and _original.save(self.original, beside(where)):
                saved.metadata_props[_ORIGINAL] = json.dumps([beside(where).name, self.original.identity])
            if not large:
                ir.external_data.load_to_model(saved)  # of another file's
            ir.save(saved, where, external_data=f"{where.name}.data" if large else None)
        except OSError as error:
            raise ProgramError(f"can't write {str(where)!r}: {error.strerror or error}") from error

    def _metadata(self) -> dict[str, str]:
        calls = [
            [call.path, call.iteration, [_pack(port) for port in call.inputs], [_pack(port) for port in call.outputs]]
            for call in self.module_calls.values()
        ]
        contents = {_PROGRAM: _VERSION, _INPUTS: dict(self.inputs), _CALLS: calls, _MODEL: self.model_type}
        contents |= {_STRATEGY: self.strategy} if self.strategy else {}
        contents[_OUTPUTS] = self.outputs
        contents[_OPERATORS] = [[item.kind, item.text, item.value] for item in self.operators]
        return {key: json.dumps(value) for key, value in contents.items()}


def _equal(value: ir.Value, other: ir.Value) -> bool:
    a, b = value.const_value, other.const_value
    return a is b or (a is not None and b is not None and a.tobytes() == b.tobytes())


def beside(path: Path) -> Path:
    """Where the original of the program at `path` is kept."""
    return path.with_name(path.name + ".pt2")


@no_collection()
def load_program(path: str | os.PathLike[str]) -> Program:
    """Load any ONNX file.

    Args:
        path: a file that `Program.save` wrote, was changed since, or that anybody else exported.

    Raises:
        ProgramError: there is no such file, it is not an ONNX model, or what Filch noted in it is damaged.
    """
    where = Path(path)
    model = read_onnx(where)
    props = model.metadata_props
    if _PROGRAM not in props:
        return Program(model, path=where)
    try:
        calls = [_unpack(entry) for entry in parse_json(props[_CALLS])]
        original, missing = _find_original(where, props[_ORIGINAL]) if _ORIGINAL in props else (None, "")
        program = Program(
            model=model,
            inputs={str(name): _text(path) for name, path in parse_json(props[_INPUTS]).items()},
            module_calls={(call.path, call.iteration): call for call in calls},
            model_type=str(parse_json(props[_MODEL])),
            operators=tuple(ModelOperator(*map(_text, item)) for item in parse_json(props[_OPERATORS])),
            original=original,
            path=where,
            missing=missing,
            strategy=str(parse_json(props.get(_STRATEGY, '""'))),
            outputs=_outputs(props, calls),
        )
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise ProgramError(f"what Filch noted in {str(where)!r} is damaged: {error}") from error
    return follow_changes(program)


def _outputs(noted: Mapping[str, str], calls: Sequence[ModuleCall]) -> tuple[str, ...]:
    """The outputs that were exported; the first files do not list them, but say what the model's own call gave."""
    if _OUTPUTS in noted:
        return tuple(str(_text(name)) for name in parse_json(noted[_OUTPUTS]))
    ports = [port.value for call in calls if (call.path, call.iteration) == ("", 0) for port in call.outputs]
    return tuple(filter(None, ports)) if all(ports) else ()


def follow_changes(program: Program, before: Graph | None = None) -> Program:
    """Resolve the module calls again, in case passes have changed the graph.

    Args:
        program: its module calls are those of `before`.
        before: the graph that passes have changed; None is the one that was exported.
    """
    now = program.graph
    ports = (port for call in program.module_calls.values() for port in (*call.inputs, *call.outputs))
    if all(port.value is None or port.value in now.known for port in ports):
        return program
    try:
        before = program.original.graph if before is None and program.original else before
    except ExportError:
        before = None  # the comparison, which needs it more, says why it can't be loaded
    return replace(
        program, module_calls={key: call.resolved(before, now) for key, call in program.module_calls.items()}
    )


def _find_original(path: Path, noted: str) -> tuple[Original | None, str]:
    """What an ONNX file was translated from, under its own name or the noted one; if there is none, what is missing."""
    name, identity = parse_json(noted)
    if Path(name).name != name or not isinstance(identity, str):
        raise ValueError(f"{noted!r} is no file beside it")
    for found in (beside(path), path.with_name(name)):
        if found.is_file():
            return Original.at(found, identity), ""
    return None, name


def _pack(port: Port) -> list[Any]:
    return [port.path, port.value, port.resolution, port.note]


def _unpack(entry: list[Any]) -> ModuleCall:
    path, iteration, inputs, outputs = entry
    return ModuleCall(
        str(path),
        int(iteration),
        tuple(Port(*map(_text, port)) for port in inputs),
        tuple(Port(*map(_text, port)) for port in outputs),
    )


def _text(item: Any) -> Any:
    if item is not None and not isinstance(item, str):
        raise TypeError(f"{item!r} is no text")
    return item
