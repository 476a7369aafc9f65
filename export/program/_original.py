"""`Original`: the torch program that an ONNX graph was translated from, as the source of its reference values."""

import base64
import io
import json
import logging
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from google.protobuf.message import Message
from onnx_ir import serde, tensor_adapters
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature

from filch.steal.files._untrusted import open_companion, parse_json
from filch.steal.private._torch import pytree

from .._errors import ExportError, reason
from ..common._arrays import same_tensor, weight_to_torch
from ..common._quiet import quiet
from ..common._time_limit import limited_steps
from ..evaluation._eager import walk_eager, weight_names
from ..evaluation._float64 import Float64Program
from ..evaluation._onnx_node import Noise, evaluate
from ..evaluation._unpredictable import Unpredictable, of_program
from ..graph._from_onnx import graph_from_onnx
from ..graph._graph import Graph
from ..onnx_files._graphs import check_graphs
from ..onnx_files._mapped import map_weights
from ..onnx_files._memory import check_room
from ..onnx_files._tensors import Tensors
from ..pt2_files._archive import Archive, StoredError
from ..pt2_files._load import load_extra, load_program
from ..pt2_files._targets import is_runnable
from ._renaming import identifiers, renamed_program

_log = logging.getLogger("filch")
# Names of the extra files in the archive.
_MODEL_ENTRY = "filch.onnx"
_IDENTITY_ENTRY = "filch.id"
_WEIGHTS_ENTRY = "filch.weights"  # JSON: which weights of the program are in another file, and their checksums
_NOT_SAVED = "the exported program can't be saved beside the ONNX file (%s): only modules will have reference values"
_NAMES_ENTRY = "filch.names"  # JSON: other names of nodes, which are no identifiers, by those that the file has
_STATE_LOCATION = "filch-state"  # the external-data location of weights that are in the exported program


class Original:
    """The torch program that an ONNX graph was translated from, and the graph as it was exported.

    Args:
        load: returns both; called on first use.
        identity: a unique id of this export, stored in the ONNX file and in the file of the original.
    """

    def __init__(self, load: Callable[[], tuple[ExportedProgram, ir.Model]], identity: str) -> None:
        self._load = load
        self.identity = identity

    @cached_property
    def _program_and_model(self) -> tuple[ExportedProgram, ir.Model]:
        return self._load()

    @property
    def program(self) -> ExportedProgram:
        """The decomposed program; its nodes have the names of the ONNX values.

        Raises:
            ExportError: its file can't be loaded.
        """
        return self._program_and_model[0]

    @property
    def model(self) -> ir.Model:
        """The ONNX model as it was exported."""
        return self._program_and_model[1]

    @cached_property
    def graph(self) -> Graph:
        """The graph of `model`."""
        return graph_from_onnx(self.model)

    @property
    def nodes(self) -> Sequence[fx.Node]:
        """The nodes of `program` in order; none in `OnnxOriginal`, whose program is in ONNX."""
        return [*self.program.graph.nodes]

    @cached_property
    def names(self) -> list[str]:
        """The names of the program's operations in order, except those that return a list or tuple.

        Most of them are also values of the graph.
        """
        nodes = (node for node in self.nodes if node.op == "call_function")
        return [node.name for node in nodes if not isinstance(node.meta.get("val"), list | tuple)]

    @cached_property
    def reads(self) -> Mapping[str, Sequence[str]]:
        """What each value is computed from, by name: values of the program, or else of `graph`."""
        in_graph = {name: node.reads for node in self.graph.nodes for name in node.outputs}
        return in_graph | {node.name: [item.name for item in node.all_input_nodes] for node in self.nodes}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[str]]:
        """The values that are computed from each value, by name; see `reads`."""
        found = defaultdict[str, list[str]](list)
        for name, reads in self.reads.items():
            for read in reads:
                found[read].append(name)
        return found

    def walk(
        self,
        inputs: Mapping[str, torch.Tensor],
        *,
        known: Mapping[str, torch.Tensor] | None = None,
        wanted: Collection[str] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run the program in eager PyTorch and yield each name and value as soon as it is computed.

        Args:
            inputs: the inputs, by the names of the graph's inputs.
            known: values to use instead of running their nodes, by name. Nodes that only they need are not run.
            wanted: the names of the values to yield; None for all.
        """
        walk = walk_eager(self.program, inputs, known=known, wanted=wanted)
        return limited_steps(walk, "eager PyTorch", "to run an operation of the exported program", error=ExportError)

    @cached_property
    def float64(self) -> Float64Program:
        """The program in float64.

        Raises:
            ExportError: its file can't be loaded.
        """
        return Float64Program(self.program)

    def evaluate(
        self,
        node: str,
        inputs: Mapping[str, Any],
        noise: Noise | None = None,
        ties: Mapping[int, int] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Compute the outputs of a node of `graph` in float64.

        Args:
            node: the node's name.
            inputs: the values that it reads, by name: float64 and integer tensors, and lists of these, which are
                sequences.
            noise: called with the name and value of what a node in its graphs reads, which reads the result.
            ties: by axis, 1 or -1: which way a nearest `Resize` chooses between two numbers that are nearly as near.

        Returns:
            the outputs by name; empty if the operator is not supported.

        Raises:
            ExportError: it takes longer than the time limit.
        """
        return evaluate(self.model, self._nodes[node], inputs, noise, ties)

    def constant(self, name: str) -> torch.Tensor | None:
        """Return a weight of `graph`, which must not be changed; None if it has no weight of this name."""
        return weight(self.model, name)

    @cached_property
    def unpredictable(self) -> Unpredictable:
        """The values of the program and of `graph` that may differ between correct runs."""
        return of_program(self.program.graph, self.graph)

    @cached_property
    def types(self) -> Mapping[str, torch.dtype]:
        """The dtypes of the program's values, inputs and weights, and of the graph's values, by name."""
        values = {node.name: node.meta.get("val") for node in self.nodes}
        traced = {name: value.dtype for name, value in values.items() if isinstance(value, torch.Tensor)}
        declared = {name: getattr(torch, value.dtype or "", None) for name, value in self.graph.values.items()}
        return {**{name: dtype for name, dtype in declared.items() if isinstance(dtype, torch.dtype)}, **traced}

    @cached_property
    def _nodes(self) -> Mapping[str, ir.Node]:
        return dict(zip((node.name for node in self.graph.nodes), self.model.graph, strict=True))

    def renamed(self, names: Mapping[str, str]) -> ExportedProgram:
        """Return the decomposed program with other names of its nodes.

        Args:
            names: the new names by the old ones, none of which another node has.

        Raises:
            ExportError: its file can't be loaded.
        """
        return renamed_program(self.program, names)

    def changed(self, change: Callable[[ir.Model], ir.Model]) -> "Original":
        """Return the same program with what a function makes of the graph, in which values keep their names."""
        return Original(lambda: (self.program, change(self.model)), self.identity)

    @classmethod
    def of(cls, program: ExportedProgram, model: ir.Model) -> "Original":
        """Return the original of a new export; `model` is copied."""
        copied = model.clone()
        return cls(lambda: (program, copied), uuid.uuid4().hex)

    @classmethod
    def at(cls, path: Path, identity: str) -> "Original":
        """Return the original that `save` wrote to `path`; loading it fails if its identity is another one."""
        return cls(lambda: _load(path, identity), identity)


def weight(model: ir.Model, name: str) -> torch.Tensor | None:
    """Return a weight of a model, which must not be changed; None if it has no weight of numbers of this name."""
    value = model.graph.initializers.get(name)
    stored = None if value is None else value.const_value
    return None if stored is None or stored.dtype == ir.DataType.STRING else weight_to_torch(stored)


def save(original: Original, path: Path, stored: Mapping[str, tuple[Any, ir.ExternalTensor]]) -> bool:
    """Write the program and the graph to a file in torch.export's format, without pickles.

    Args:
        original: the program.
        path: the path of the file.
        stored: weights that were written to another file in the same folder, and where, by their names in the saved
            graph. Those that are also weights of the program are not written again.

    Returns:
        whether it was written. If not, a warning is logged: torch failed, or the program needs a pickle.

    Raises:
        OSError: the file can't be written.
    """
    if refusal := _load_refusal(original.program):
        _log.warning(_NOT_SAVED, refusal)
        return False
    written = identifiers(original.program)
    program, model = renamed_program(original.program, written), original.model.clone()
    program.example_inputs = None  # they may contain a user's classes, which torch would pickle
    program._module_call_graph = _flat_module_call_graph(program)  # noqa: SLF001  as may the signature; there is no setter
    elsewhere = _stored_elsewhere(original, stored)
    program._state_dict = _emptied(program.state_dict, elsewhere)  # noqa: SLF001  it has no setter
    program._constants = _emptied(program.constants, elsewhere)  # noqa: SLF001  nor has this
    places = {name: stored[name][1] for name in elsewhere.values()}
    entry = json.dumps({target: [name, _checksum(model, name)] for target, name in elsewhere.items()})
    names = {target: target for target in weight_names(program).values()}  # of the weights of the program
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if name in places:
            value.const_value = places[name]
        elif name in names and tensor is not None:
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.ExternalTensor(_STATE_LOCATION, None, None, tensor.dtype, shape=shape, name=name)
    contents = base64.b64encode(serde.serialize_model(model).SerializeToString()).decode()
    with _OutputFile(path, "wb") as file:
        try:
            with quiet():
                entries = {_MODEL_ENTRY: contents, _IDENTITY_ENTRY: original.identity, _WEIGHTS_ENTRY: entry}
                entries |= {_NAMES_ENTRY: json.dumps({new: name for name, new in written.items()})} if written else {}
                torch.export.save(program, file, extra_files=entries)
        except Exception as error:  # noqa: BLE001  torch's serializers raise exceptions of any type
            _log.warning(_NOT_SAVED, reason(error))
            path.unlink()
            return False
        if file.error is not None:
            raise file.error
    return True


class _OutputFile(io.FileIO):
    """A file for torch's writer, whose destructor ends the process if a write has failed.

    Attributes:
        error: the first error; nothing is written after it.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of the data, or keep the error."""
        rest = memoryview(data)
        while rest and self.error is None:
            try:
                rest = rest[super().write(rest) :]
            except OSError as error:
                self.error = error
        return len(data)


def _stored_elsewhere(original: Original, stored: Mapping[str, tuple[Any, ir.ExternalTensor]]) -> dict[str, str]:
    """Return the weights of the program that are also in another file: their names in the program and in the graph."""
    weights = original.model.graph.initializers
    pointers = {}  # the names in the graph, by the addresses of the data
    for name, (tensor, _) in stored.items():
        value = weights[name].const_value if name in weights else None
        if value is not None and same_tensor(value, tensor):
            pointers[value.numpy().__array_interface__["data"][0]] = name
    return {
        target: pointers[tensor.data_ptr()]
        for target, tensor in {**original.program.state_dict, **original.program.constants}.items()
        if isinstance(tensor, torch.Tensor)
        and tensor.is_contiguous()
        and tensor.data_ptr() in pointers
        and _is_like(tensor, weights[pointers[tensor.data_ptr()]].const_value)
    }


def _is_like(tensor: torch.Tensor, weight: Any) -> bool:
    """Return whether a tensor has the dtype and shape of a weight."""
    same_dtype: bool = tensor_adapters.from_torch_dtype(tensor.dtype) == weight.dtype
    return same_dtype and tuple(tensor.shape) == tuple(weight.shape.numpy())


def _emptied(weights: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the weights, with a single number in place of those with these names."""
    return {name: _placeholder(value) if name in names else value for name, value in weights.items()}


def _placeholder(value: torch.Tensor) -> torch.Tensor:
    number = torch.zeros(1, dtype=value.dtype)
    return torch.nn.Parameter(number, requires_grad=False) if isinstance(value, torch.nn.Parameter) else number


def _checksum(model: ir.Model, name: str) -> int:
    """Return the CRC-32 of a weight's bytes."""
    tensor = model.graph.initializers[name].const_value
    array = np.empty(0) if tensor is None else np.asarray(tensor.numpy(), order="C")
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def _load_refusal(program: ExportedProgram) -> str | None:
    """Return why `load_program` would refuse the program's file; None if it would not."""
    for name, value in {**program.state_dict, **program.constants}.items():
        # The `data` of an nn.Parameter are a plain tensor; those of another subclass are not.
        if not isinstance(value, torch.Tensor) or type(value.data) is not torch.Tensor:
            return f"{name!r} is a {type(value).__name__}, which only a pickle can hold"
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
        if not is_runnable(node.target):
            return f"{node.name!r} calls {node.target}, which Filch does not run from a file"
    return None


def _flat_module_call_graph(program: ExportedProgram) -> list[ModuleCallEntry]:
    """Return a module call graph of the program's own call, with flat inputs and outputs.

    Their real structure may contain classes (a cache) that are not importable where the file is loaded. It is not
    needed, because the program is run node by node.
    """
    signature = program.graph_signature
    inputs = sum(spec.kind.name == "USER_INPUT" for spec in signature.input_specs)
    outputs = sum(spec.kind.name == "USER_OUTPUT" for spec in signature.output_specs)
    specs = pytree.tree_structure(((0,) * inputs, {})), pytree.tree_structure((0,) * outputs)
    return [ModuleCallEntry("", ModuleCallSignature([], [], *specs))]


def _load(path: Path, identity: str) -> tuple[ExportedProgram, ir.Model]:
    """Load the file of an original; raise an ExportError if that fails or it is of another export."""
    try:
        with open_companion(path, path.name) as file:
            parts = _read_archive(Archive(file), identity, path)
    except Exception as error:  # for a damaged file, onnx and onnx_ir raise exceptions of any type
        cause = error.strerror if isinstance(error, OSError) else str(error)
        cause = cause if isinstance(error, OSError | StoredError | ValueError) else reason(error)
        raise ExportError(f"can't load {str(path)!r}, the source of reference values: {cause}") from error
    if parts is None:
        raise ExportError(f"{str(path)!r} is of another export than the ONNX file: only modules have reference values")
    return parts


def _read_archive(archive: Archive, identity: str, path: Path) -> tuple[ExportedProgram, ir.Model] | None:
    """Return the program and the ONNX model in an archive; None if the archive is of another export."""
    if load_extra(archive, _IDENTITY_ENTRY) != identity.encode():
        return None
    model = _read_model(base64.b64decode(load_extra(archive, _MODEL_ENTRY), validate=True), path)
    program = load_program(archive, _read_elsewhere(load_extra(archive, _WEIGHTS_ENTRY, b"{}"), model))
    weights = {**program.state_dict, **program.constants}
    for name, value in model.graph.initializers.items():
        if isinstance(value.const_value, ir.ExternalTensor):
            if name not in weights:
                raise StoredError("its graph refers to other files")
            value.const_value = tensor_adapters.TorchTensor(weights[name].detach(), name=name)
    names = {str(name): str(new) for name, new in parse_json(load_extra(archive, _NAMES_ENTRY, b"{}")).items()}
    return renamed_program(program, names) if names else program, model


def _read_model(contents: bytes, path: Path) -> ir.Model:
    """Parse the graph of the file at `path`; weights that are in the program are external tensors without a file."""
    check_room(contents)
    proto = onnx.ModelProto.FromString(contents)
    external = [tensor for tensor in _tensors(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    weights = [tensor for tensor in proto.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    if len(external) > len(weights):
        raise StoredError("its graph refers to other files")
    tensors = Tensors(path)

    def check(tensor: onnx.TensorProto, *, load: bool = False) -> None:
        locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
        if tensor.data_location != onnx.TensorProto.EXTERNAL or locations != [_STATE_LOCATION]:  # else in the program
            tensors.check(tensor, load=load)

    check_graphs(proto, check)
    model = serde.deserialize_model(proto)
    in_program = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor) and value.const_value.location == _STATE_LOCATION
    }
    for name in in_program:
        model.graph.initializers[name].const_value = None  # until the others are mapped
    map_weights(model, path)
    if any(isinstance(value.const_value, ir.ExternalTensor) for value in model.graph.initializers.values()):
        raise StoredError("it refers to weights that can't be mapped into memory")
    for name, tensor in in_program.items():
        model.graph.initializers[name].const_value = tensor
    return model


def _read_elsewhere(entry: bytes, model: ir.Model) -> dict[str, torch.Tensor]:
    """Return the weights of the program that are in another file, by name; they are those of the graph.

    Args:
        entry: JSON, the name in the graph and the checksum of each weight, by its name in the program.
        model: the graph.

    Raises:
        StoredError: they were changed since, or the entry is damaged.
    """
    names = parse_json(entry)
    if not isinstance(names, dict):
        raise StoredError("its list of weights is damaged")
    weights: dict[str, torch.Tensor] = {}
    checked: dict[str, int] = {}
    for target, item in names.items():
        name, checksum = item if isinstance(item, list) and len(item) == 2 else (None, 0)
        value = model.graph.initializers.get(name) if isinstance(name, str) else None
        tensor = None if value is None else value.const_value
        if not isinstance(name, str) or not isinstance(tensor, tensor_adapters.TorchTensor):
            raise StoredError(f"its list of weights is damaged: {target!r:.200}")
        if name not in checked:
            checked[name] = _checksum(model, name)
        if checked[name] != checksum:
            raise StoredError(f"the weight {name!r:.200} was changed since it was saved, in the file of the weights")
        weights[target] = tensor.raw
    return weights


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield the tensors anywhere in a message."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in [value] if isinstance(value, Message) else value:
                yield from _tensors(item)
