"""What an ONNX graph was translated from, kept so that every node of it has a reference value."""

import base64
import copy
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from google.protobuf.message import Message
from onnx_ir import serde, tensor_adapters
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.utils import _pytree as pytree

from filch.steal import open_companion

from .._errors import ExportError, reason
from ..common._arrays import array_to_torch
from ..common._quiet import quiet
from ..common._time_limit import limited_steps
from ..evaluation._eager import walk_eager, weight_names
from ..evaluation._float64 import Float64Program
from ..evaluation._onnx_node import evaluate
from ..evaluation._unpredictable import Unpredictable, of_program
from ..graph._from_onnx import graph_from_onnx
from ..graph._graph import Graph
from ..onnx_files._graphs import check_graphs
from ..onnx_files._memory import check_room
from ..onnx_files._tensors import Tensors
from ..pt2_files import Archive, StoredError, is_run, load_extra, load_program

_log = logging.getLogger("filch")
_ENTRY = "filch.onnx"
_IDENTITY = "filch.id"
_UNKEPT = "the exported program can't be kept beside the ONNX file (%s): only modules will have reference values"
_IN_STATE = "filch-state"  # the 'file' of weights that are the exported program's own


class Original:
    """The torch program behind an ONNX graph, and the graph as it was before anything was changed in it.

    Args:
        load: makes both; called when one of them is asked for.
        identity: what tells this export from all others; the ONNX file and the file of the original both hold it.
    """

    def __init__(self, load: Callable[[], tuple[ExportedProgram, ir.Model]], identity: str) -> None:
        self._load = load
        self.identity = identity

    @cached_property
    def _parts(self) -> tuple[ExportedProgram, ir.Model]:
        return self._load()

    @property
    def program(self) -> ExportedProgram:
        """The decomposed program; its nodes have the names of the ONNX values.

        Raises:
            ExportError: the file that it is kept in can't be loaded here.
        """
        return self._parts[0]

    @property
    def model(self) -> ir.Model:
        """The ONNX model, untouched."""
        return self._parts[1]

    @cached_property
    def graph(self) -> Graph:
        """The graph of `model`."""
        return graph_from_onnx(self.model)

    @cached_property
    def names(self) -> list[str]:
        """The names of the program's operations in order, except those that return several values, such as a list.

        Most of them are values of the graph.
        """
        nodes = (node for node in self.program.graph.nodes if node.op == "call_function")
        return [node.name for node in nodes if not isinstance(node.meta.get("val"), list | tuple)]

    def walk(
        self,
        inputs: Mapping[str, torch.Tensor],
        *,
        known: Mapping[str, torch.Tensor] | None = None,
        wanted: Collection[str] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run the program in eager PyTorch, and give each value with its name, in order, as it is made.

        Args:
            inputs: by the names of the graph's inputs.
            known: values that are had already, by name: they are taken as they are, and what only they need is left
                out.
            wanted: the names of the values to give; None is all.
        """
        walk = walk_eager(self.program, inputs, known=known, wanted=wanted)
        return limited_steps(walk, "eager PyTorch", "to run an operation of the exported program", error=ExportError)

    @cached_property
    def float64(self) -> Float64Program:
        """The program in float64.

        Raises:
            ExportError: the file that it is kept in can't be loaded here.
        """
        return Float64Program(self.program)

    def evaluate(self, node: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What a node of `graph` makes in float64, by name, by the ONNX specification's own evaluator.

        Args:
            node: its name.
            inputs: what it reads, by name: float64, and integers.

        Returns:
            its outputs; none of them if the evaluator does not know the operator, or the node has a graph inside.
        """
        return evaluate(self.model, self._nodes[node], inputs)

    def constant(self, name: str) -> torch.Tensor | None:
        """The numbers of a value that `graph` holds; None if it does not hold one of this name."""
        value = self.model.graph.initializers.get(name)
        return None if value is None or value.const_value is None else array_to_torch(value.const_value.numpy())

    @cached_property
    def unpredictable(self) -> Unpredictable:
        """The values of the program, and of `graph`, on which no two runs have to agree."""
        return of_program(self.program.graph, self.graph)

    @cached_property
    def types(self) -> Mapping[str, torch.dtype]:
        """The types of the program's values, its inputs and its weights, by name."""
        values = {node.name: node.meta.get("val") for node in self.program.graph.nodes}
        found = {name: value.dtype for name, value in values.items() if isinstance(value, torch.Tensor)}
        noted = {name: getattr(torch, value.dtype or "", None) for name, value in self.graph.values.items()}
        return {**{name: dtype for name, dtype in noted.items() if isinstance(dtype, torch.dtype)}, **found}

    @cached_property
    def _nodes(self) -> Mapping[str, ir.Node]:
        return dict(zip((node.name for node in self.graph.nodes), self.model.graph, strict=True))

    @classmethod
    def of(cls, program: ExportedProgram, model: ir.Model) -> "Original":
        """Keep `program`, and `model` as it is now."""
        untouched = model.clone()
        return cls(lambda: (program, untouched), uuid.uuid4().hex)

    @classmethod
    def at(cls, path: Path, identity: str) -> "Original":
        """What `save` wrote to `path`, if it is of the export called `identity`."""
        return cls(lambda: _load(path, identity), identity)


def save(original: Original, path: Path) -> bool:
    """Write the program as torch.export does, with the graph beside it; say whether that was possible.

    The file holds no pickle: what only a pickle could hold is not written.
    """
    if refused := _refused(original.program):
        _log.warning(_UNKEPT, refused)
        return False
    program, model = copy.copy(original.program), original.model.clone()
    program.example_inputs = None  # they may nest a user's classes, which would be pickled
    program._module_call_graph = _flat(program)  # noqa: SLF001  as may inputs and outputs; there is no setter
    names = {target: target for target in weight_names(program).values()}
    for name, value in model.graph.initializers.items():
        held = value.const_value
        if name in names and held is not None:
            shape = ir.Shape(held.shape.numpy())
            value.const_value = ir.ExternalTensor(_IN_STATE, None, None, held.dtype, shape=shape, name=name)
    contents = base64.b64encode(serde.serialize_model(model).SerializeToString()).decode()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".pt2", dir=path.parent)
    os.close(handle)
    try:
        with quiet():
            torch.export.save(program, temporary, extra_files={_ENTRY: contents, _IDENTITY: original.identity})
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except Exception as error:  # noqa: BLE001  torch raises whatever its serializers meet
        _log.warning(_UNKEPT, reason(error))
        return False
    finally:
        Path(temporary).unlink(missing_ok=True)
    return True


def _refused(program: ExportedProgram) -> str | None:
    """What of a program would not be read back, if anything: see `stored`."""
    for name, held in {**program.state_dict, **program.constants}.items():
        if not isinstance(held, torch.Tensor) or type(held.data) is not torch.Tensor:
            return f"{name!r} is a {type(held).__name__}, which only a pickle can hold"
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
        if not is_run(node.target):
            return f"{node.name!r} calls {node.target}, which Filch does not run from a file"
    return None


def _flat(program: ExportedProgram) -> list[ModuleCallEntry]:
    """The program's own call alone, its inputs and outputs in one row: it is run node by node.

    Their structure may hold classes (a cache) that are not imported where the file is loaded.
    """
    signature = program.graph_signature
    taken = sum(spec.kind.name == "USER_INPUT" for spec in signature.input_specs)
    given = sum(spec.kind.name == "USER_OUTPUT" for spec in signature.output_specs)
    specs = pytree.tree_structure(((0,) * taken, {})), pytree.tree_structure((0,) * given)
    return [ModuleCallEntry("", ModuleCallSignature([], [], *specs))]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _load(path: Path, identity: str) -> tuple[ExportedProgram, ir.Model]:
    try:
        with open_companion(path, path.name) as file:
            found = _read(Archive(file), identity)
    except Exception as error:  # onnx and onnx_ir raise whatever a damaged file makes them do
        told = error.strerror if isinstance(error, OSError) else str(error)
        told = told if isinstance(error, OSError | StoredError | ValueError) else reason(error)
        raise ExportError(f"can't load {str(path)!r}, which holds the reference of all nodes: {told}") from error
    if found is None:
        raise ExportError(f"{str(path)!r} is of another export than the ONNX file: only modules have reference values")
    return found


def _read(archive: Archive, identity: str) -> tuple[ExportedProgram, ir.Model] | None:
    if load_extra(archive, _IDENTITY) != identity.encode():
        return None
    program = load_program(archive)
    return program, _with_weights(base64.b64decode(load_extra(archive, _ENTRY), validate=True), program)


def _with_weights(contents: bytes, program: ExportedProgram) -> ir.Model:
    """The graph, with the program's weights; it may refer to no other data outside of itself."""
    check_room(contents)
    proto = onnx.ModelProto.FromString(contents)
    held = {**program.state_dict, **program.constants}
    apart = [tensor for tensor in _tensors(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    own = [tensor for tensor in proto.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    if len(apart) > len(own) or any(tensor.name not in held for tensor in own):
        raise StoredError("its graph refers to other files")
    check_graphs(proto, _check_inside)
    model = serde.deserialize_model(proto)
    for name, value in model.graph.initializers.items():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = tensor_adapters.TorchTensor(held[name].detach(), name=name)
    return model


def _check_inside(tensor: onnx.TensorProto, *, load: bool = False) -> None:
    """As `Tensors.check`, of a tensor with its numbers in the graph."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        Tensors(Path()).check(tensor, load=load)


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """The tensors anywhere in a message."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in [value] if isinstance(value, Message) else value:
                yield from _tensors(item)
