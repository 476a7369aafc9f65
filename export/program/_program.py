"""`Program`: a model exported to ONNX, with the values of its module calls."""

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from filch.steal import phase, writing
from filch.steal.files._outputs import new_files
from filch.steal.files._untrusted import parse_json

from .._errors import ExportError, ProgramError, reason
from ..common._arrays import same_tensor
from ..common._garbage_collection import no_collection
from ..common._weights import weight_bytes
from ..evaluation._unpredictable import Unpredictable, of_graph, outputs_of_random_subgraphs
from ..graph._from_onnx import graph_from_onnx
from ..graph._graph import Graph
from ..graph._module_calls import ModuleCall, Port
from ..onnx_files._plain import classes_of_maps
from ..onnx_files._read import read_onnx
from . import _original
from ._operators import ModelOperator
from ._original import Original, weight

_PROGRAM = "filch.program"
_INPUTS = "filch.inputs"
_OUTPUTS = "filch.outputs"
_CALLS = "filch.module_calls"
_MODEL = "filch.model"
_OPERATORS = "filch.operators"
_ORIGINAL = "filch.original"
_STRATEGY = "filch.strategy"
_VERSION = 1
_NUMBERS = "the tensor of its numbers, sorted by class, is compared in its place"
_DEFAULT_NAME = "main_graph"  # the name that torch's exporter gives every graph
_LARGE = 64 * 2**20  # bytes; larger weights are written to a file beside the model
_SMALL, _ALIGNMENT = 256, 4096  # bytes; smaller weights stay in the model, and those in the file begin at a page


@dataclass(frozen=True)
class Program:
    """A model exported to ONNX.

    Attributes:
        model: the ONNX model. Passes may change it; `module_calls` refers to its values by name.
        inputs: for each input of the graph, in order, the path of its argument (`input_ids`, `cache.layers[0].keys`);
            empty for a file that Filch did not export.
        module_calls: the input and output values of each module call, by `(module path, iteration)`; `("", 0)` is the
            model itself.
        model_type: the exported module's class as `"module:QualifiedName"`; `""` if not known.
        operators: the model's operations as written in PyTorch, from its inputs to its first output.
        original: the torch program that the graph was translated from; None if it is not available, in which case only
            modules have reference values.
        path: the file that the program was loaded from, or None.
        missing: the file of the original, if it is not beside the ONNX file; `""` if none is missing.
        outputs: the names of the exported graph's outputs, which are the model's results in order, even if the graph
            was changed since; empty for a file that Filch did not export.
        strategy: how torch exported the model: `strict=False`, or the first of torch.onnx's strategies that succeeded,
            `strict=False, backed_size_oblivious`, `strict=True` or `draft_export`; `""` if not known.
        untranslated: why torch can't translate the program to ONNX, if the nodes of the graph are PyTorch's operations
            in the domain `torch`; `""` otherwise.
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
    untranslated: str = ""

    @property
    def graph(self) -> Graph:
        """The current graph, named after the model's class if the exporter gave it only its default name.

        Raises:
            ProgramError: an attribute or a constant of the model can't be read.
        """
        try:
            graph = graph_from_onnx(self.model)
        except Exception as error:  # a file may contain anything
            name = repr(str(self.path)) if self.path else "the model"
            raise ProgramError(f"{name} can't be used: {reason(error)}") from error
        class_name = self.model_type.rpartition(":")[2].rpartition(".")[2]
        return replace(graph, name=class_name) if class_name and graph.name == _DEFAULT_NAME else graph

    def snapshot(self) -> "Program":
        """Return the program with a `graph` that is read once, for use while its model does not change."""
        return _Snapshot(**{item.name: getattr(self, item.name) for item in fields(self)})

    def __repr__(self) -> str:
        return repr(self.graph).replace("<Graph", "<Program", 1)

    def _repr_html_(self) -> str:
        """Return the first nodes as a table, for a notebook."""
        return self.graph._repr_html_()

    def __str__(self) -> str:
        """Return the graph as text, one line per node (see `Graph.text`)."""
        return str(self.graph)

    @cached_property
    def is_foreign(self) -> bool:
        """Whether the module calls are unknown, so that values can only be mapped by inference."""
        return not self.module_calls

    @property
    def replaced(self) -> tuple[str, ...]:
        """What the file has that no tensor can hold, and what is in its place, a sentence each."""
        return tuple(f"{name!r:.80} is a map from {classes}: {_NUMBERS}" for name, classes in self.maps.items())

    @property
    def maps(self) -> Mapping[str, str]:
        """From what classes the maps are that the file returns, by the names of the values."""
        found, outputs = classes_of_maps(self.model.metadata_props), {value.name for value in self.model.graph.outputs}
        return {name: classes for name, classes in found.items() if name in outputs}

    @property
    def exported_program(self) -> ExportedProgram | None:
        """The decomposed torch program that the graph was translated from."""
        return self.original.program if self.original else None

    def is_changed(self) -> bool:
        """Whether the graph or one of its weights differs from the exported one; False if that is not known."""
        if self.original is None:
            return False
        weights, exported = self.model.graph.initializers, self.original.model.graph.initializers
        graph = self.graph
        # Equal graphs have weights of the same names.
        return graph != replace(self.original.graph, name=graph.name) or any(
            not _equal(weights[name], exported[name]) for name in weights
        )

    def changed_weights(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those of some weights that differ from the exported model's; none if the export is not known.

        Weights of another dtype than the exported ones are not listed: they have been converted.
        """
        if self.original is None:
            return ()
        weights, exported = self.model.graph.initializers, self.original.model.graph.initializers
        known = (name for name in names if name in weights and name in exported)
        known = (name for name in known if weights[name].dtype == exported[name].dtype)
        return tuple(name for name in known if not _equal(weights[name], exported[name]))

    @cached_property
    def unpredictable(self) -> Unpredictable:
        """The values that may differ between correct runs, found in the exported program if there is one.

        A random node of the graph that the exported program does not have is a fault, and is not listed. Without an
        exported program, random values are found by operator.
        """
        if self.original is not None:
            with contextlib.suppress(ExportError):
                return self.original.unpredictable
        return of_graph(self.graph, outputs_of_random_subgraphs(self.model.graph))

    def constant(self, name: str) -> torch.Tensor | None:
        """Return a weight of the graph, which must not be changed; None if it has no weight of this name."""
        return weight(self.model, name)

    @phase("saving")
    def save(self, path: str | os.PathLike[str], *, original: bool = True) -> None:
        """Write the ONNX file. If its weights are larger than 64 MB in total, they are written to `<path>.data`.

        Args:
            path: the path of the file. Its metadata contain the module calls.
            original: also write the exported torch program to `<path>.pt2`, in torch.export's format. With it, a
                comparison of the file has eager reference values for all nodes, even if the file was changed since;
                without it, only for modules. It does not contain the weights that are in `<path>.data`, so that these
                must stay as they are; smaller weights, and those that the graph no longer has, are in both files.

        Raises:
            ProgramError: the file can't be written.
        """
        where = Path(path)
        if not where.name or where.is_dir():
            raise ProgramError(f"{os.fspath(path)!r} is not a file name")
        saved = self.model.clone()
        saved.metadata_props.update(self._metadata())
        large = weight_bytes(saved) > _LARGE
        with writing(where, ProgramError), new_files(where.parent, last=where.name) as folder:
            if large:
                ir.external_data.unload_from_model(
                    saved, folder, f"{where.name}.data", size_threshold_bytes=_SMALL, alignment=_ALIGNMENT
                )
            else:
                ir.external_data.load_to_model(saved)  # the weights of another file
            weights = self.model.graph.initializers
            stored = {
                name: (weights[name].const_value, value.const_value)
                for name, value in saved.graph.initializers.items()
                if isinstance(value.const_value, ir.ExternalTensor)
            }
            new = folder / where.name
            if original and self.original is not None and _original.save(self.original, beside(new), stored):
                saved.metadata_props[_ORIGINAL] = json.dumps([beside(where).name, self.original.identity])
            ir.save(saved, new)

    def _metadata(self) -> dict[str, str]:
        """Return the entries of the file's metadata that `load_program` reads, as JSON."""
        calls = [
            [call.path, call.iteration, *([astuple(port) for port in ports] for ports in (call.inputs, call.outputs))]
            for call in self.module_calls.values()
        ]
        contents = {_PROGRAM: _VERSION, _INPUTS: dict(self.inputs), _OUTPUTS: self.outputs, _CALLS: calls}
        contents |= {_MODEL: self.model_type, _STRATEGY: self.strategy}
        contents[_OPERATORS] = [astuple(operator) for operator in self.operators]
        return {key: json.dumps(value) for key, value in contents.items()}


class _Snapshot(Program):
    """A program whose model does not change."""

    @cached_property
    def graph(self) -> Graph:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().graph

    def snapshot(self) -> Program:
        return self


def _equal(value: ir.Value, other: ir.Value) -> bool:
    """Return whether two weights have the same content, or both have none."""
    a, b = value.const_value, other.const_value
    return a is b or (a is not None and b is not None and same_tensor(a, b))


def beside(path: Path) -> Path:
    """Return the path of the original of the program at `path`."""
    return path.with_name(path.name + ".pt2")


@no_collection()
def load_program(path: str | os.PathLike[str]) -> Program:
    """Load any ONNX file.

    Args:
        path: the file: one that `Program.save` wrote, changed since or not, or one of any other exporter.

    Raises:
        ProgramError: the file does not exist, is not an ONNX model, or has damaged metadata of Filch.
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
            strategy=str(parse_json(props[_STRATEGY])),
            outputs=tuple(str(_text(name)) for name in parse_json(props[_OUTPUTS])),
        )
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise ProgramError(f"Filch's metadata in {str(where)!r} are damaged: {error}") from error
    return follow_changes(program)


def follow_changes(program: Program, before: Graph | None = None) -> Program:
    """Resolve the module calls again after passes may have changed the graph.

    Args:
        program: a program whose module calls are those of `before`.
        before: the graph before the passes; None for the exported one.
    """
    now = program.graph
    ports = (port for call in program.module_calls.values() for port in (*call.inputs, *call.outputs))
    if all(port.value is None or port.value in now.known for port in ports):
        return program
    try:
        before = program.original.graph if before is None and program.original else before
    except ExportError:
        before = None  # the comparison reports why it can't be loaded
    return replace(
        program, module_calls={key: call.resolved(before, now) for key, call in program.module_calls.items()}
    )


def _find_original(path: Path, entry: str) -> tuple[Original | None, str]:
    """Find the original of an ONNX file, under the file's current name or the recorded one.

    Returns:
        the original and `""`, or None and the recorded name of the missing file.
    """
    name, identity = parse_json(entry)
    if Path(name).name != name or not isinstance(identity, str):
        raise ValueError(f"{entry!r} does not name a file in the same folder")
    for candidate in (beside(path), path.with_name(name)):
        if candidate.is_file():
            return Original.at(candidate, identity), ""
    return None, name


def _unpack(entry: list[Any]) -> ModuleCall:
    """Convert an entry of the metadata to a module call."""
    path, iteration, *sides = entry
    inputs, outputs = (tuple(Port(*map(_text, port)) for port in ports) for ports in sides)
    return ModuleCall(str(path), int(iteration), inputs, outputs)


def _text(item: Any) -> Any:
    """Return an item of the metadata; refuse any but a string or None."""
    if item is not None and not isinstance(item, str):
        raise TypeError(f"{item!r} is not a string")
    return item
