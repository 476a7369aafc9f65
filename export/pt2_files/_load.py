"""Load the program of an archive: Filch's readers check everything, then torch's deserializer builds the program."""

from collections.abc import Callable, Mapping

import torch
from torch import fx
from torch.export import ExportedProgram

from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import parse_json
from filch.steal.private import _torch
from filch.steal.private._torch import pytree, schema

from .._errors import reason
from ..common._quiet import quiet
from ..common._time_limit import TimeLimit
from . import _targets
from ._archive import Archive, StoredError
from ._expressions import expressions_of_one_file
from ._payloads import CONSTANTS, WEIGHTS, meta_weights, read_weights
from ._schema import read_program

_MODEL = "models/model.json"
_OLD_MODEL = "serialized_exported_program.json"  # up to torch 2.7
_EXTRA = "extra/"
_PER_NODE = 0.02  # seconds that torch may take; it takes 0.001
_JSON = 64 * 2**20  # bytes; torch writes about 2,500 for an operation


def load_program(archive: Archive, stored_elsewhere: Mapping[str, torch.Tensor] | None = None) -> ExportedProgram:
    """Load the program with its weights. Running it can only compute tensors.

    It has no example inputs, no guards and no module calls.

    Args:
        archive: the archive.
        stored_elsewhere: weights that replace those in the archive, by name.

    Raises:
        StoredError: it is damaged, has an unknown schema, calls an operator that is not a pure function of tensors, or
            contains a pickle or objects of classes.
    """
    stored = _read(archive, _targets.runnable)
    weights, constants = read_weights(archive, WEIGHTS), read_weights(archive, CONSTANTS)
    for name, tensor in (stored_elsewhere or {}).items():
        group = weights if name in weights else constants
        is_parameter = isinstance(group.get(name), torch.nn.Parameter)
        group[name] = torch.nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
    return _deserialized(stored, weights, constants)


def load_graph(archive: Archive) -> fx.Graph:
    """Load only the graph, for display. Weights are not read, and it may call any operator that torch knows here.

    Raises:
        StoredError: it is damaged, has an unknown schema, or contains objects of classes.
    """
    stored = _read(archive, _targets.displayable)
    graph: fx.Graph = _deserialized(stored, *meta_weights(stored)).graph
    return graph


def load_extra(archive: Archive, name: str, default: bytes | None = None) -> bytes:
    """Load an extra file of the archive by name; `default`, if given, is the result if there is none.

    Raises:
        StoredError: there is no such file.
    """
    return archive.read(_EXTRA + name) if default is None else archive.get(_EXTRA + name, default)


def _read(archive: Archive, target: Callable[[str], str]) -> schema.ExportedProgram:
    """Read and check the program of an archive; `target` checks the name of each operator."""
    name = _OLD_MODEL if _OLD_MODEL in archive else _MODEL
    if name == _MODEL and archive.get("archive_format", b"") != b"pt2":
        raise StoredError("it is not an archive of torch.export")
    if archive.size(name) > _JSON:
        raise StoredError(f"its graph takes {archive.size(name):,} bytes, and at most {_JSON:,} are read")
    try:
        with expressions_of_one_file():
            stored = read_program(parse_json(archive.read(name)), target)
    except (RecursionError, ValueError) as error:
        cause = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise StoredError(f"its graph can't be read: {cause}") from error
    stored.graph_module.module_call_graph = [_flat_call(stored.graph_module.signature)]
    return stored


def _flat_call(signature: schema.GraphSignature) -> schema.ModuleCallEntry:
    """Return the program's own call with flat inputs and outputs; their real structure may name classes to import."""
    inputs = sum(spec.type in ("user_input", "constant_input") for spec in signature.input_specs)
    outputs = sum(spec.type == "user_output" for spec in signature.output_specs)
    specs = pytree.tree_structure(((0,) * inputs, {})), pytree.tree_structure((0,) * outputs)
    in_spec, out_spec = map(pytree.treespec_dumps, specs)
    return schema.ModuleCallEntry("", schema.ModuleCallSignature([], [], in_spec, out_spec))


def _deserialized(
    stored: schema.ExportedProgram, weights: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]
) -> ExportedProgram:
    """Let torch's deserializer build the program, in limited time."""
    seconds = budget_of("exported program").kind.seconds + _PER_NODE * len(stored.graph_module.graph.nodes)
    limit = TimeLimit(seconds)
    try:
        with limit, limit.step(lambda: StoredError(f"torch takes more than {seconds:g} seconds"), seconds), quiet():
            return _torch.ExportedProgramDeserializer().deserialize(stored, weights, constants)
    except Exception as error:  # torch raises exceptions of any type
        raise StoredError(f"torch can't make a program of it: {reason(error)}") from error
