"""An ONNX program as the source of references for another one."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram

from filch.export import ExportError, Graph, Original, Program, Unpredictable
from filch.export.backends import Backend, Compiled

from ..common._complex import complex_as_real
from ._alignment import ProgramAlignment
from ._resolver import Reference

_PREFIX = "reference:"  # of values that the other program does not have
_EVIDENCE = {"name": "program", "operands": "program", "numbers": "inferred"}


class ReferenceProgram(Original):
    """An ONNX program, with the names that its values have in another program, as the source of that one's references.

    The references are what the program computes on a backend, node by node. In float64 its graph is evaluated by the
    evaluator of the ONNX specification, as the inside of an operation's translation is in other comparisons.

    Args:
        program: the program.
        alignment: its values that the other program has.
        judged: the graph of the other program.
        backend: the backend that runs the program.
        compiled: what the backend compiled, without optimizations.
        feeds: the inputs of each call, by name.
    """

    def __init__(  # noqa: PLR0917  called in one place
        self,
        program: Program,
        alignment: ProgramAlignment,
        judged: Graph,
        backend: Backend,
        compiled: Compiled,
        feeds: Sequence[Mapping[str, torch.Tensor]],
    ) -> None:
        super().__init__(self._load_nothing, "")
        self._alignment, self._backend, self._compiled, self._feeds = alignment, backend, compiled, feeds
        self._model = _renamed(program.model, alignment, judged)
        self._constants = {
            name: tensor for name, source in alignment.names.items() if (tensor := program.constant(source)) is not None
        }
        self._values: tuple[int, Mapping[str, torch.Tensor]] | None = None

    def values(self, call: int) -> Mapping[str, torch.Tensor]:
        """Return all values of a call, by their own names; those of the last call are kept.

        Raises:
            BackendError: the program can't be run.
        """
        if self._values is None or self._values[0] != call:
            graph = self._compiled.graph
            values = self._backend.run(self._compiled, self._feeds[call], tuple(graph.producer))
            self._values = call, {name: complex_as_real(tensor) for name, tensor in values.items()}
        return self._values[1]

    def references(self, call: int) -> dict[str, Reference]:
        """Return the references of a call, by the names of the other program's values."""
        values = {**self.values(call)}
        alignment = self._alignment
        known = {name: values[source] for name, source in alignment.names.items() if source in values}
        known |= self._constants
        return {name: Reference(tensor, _EVIDENCE[alignment.bases.get(name, "name")]) for name, tensor in known.items()}

    @property
    def program(self) -> ExportedProgram:
        """See `Original.program`.

        Raises:
            ExportError: always.
        """
        return self._load_nothing()[0]

    @property
    def nodes(self) -> Sequence[fx.Node]:
        """See `Original.nodes`: none."""
        return ()

    @property
    def model(self) -> ir.Model:
        """The ONNX model with the names of the other program."""
        return self._model

    @cached_property
    def types(self) -> Mapping[str, torch.dtype]:
        """See `Original.types`: those of the values of the first call, as the graph may not declare them."""
        declared = {name: getattr(torch, value.dtype or "", None) for name, value in self.graph.values.items()}
        known = {name: dtype for name, dtype in declared.items() if isinstance(dtype, torch.dtype)}
        return known | {name: reference.tensor.dtype for name, reference in self.references(0).items()}

    @cached_property
    def unpredictable(self) -> Unpredictable:
        """See `Original.unpredictable`."""
        return Program(self._model).unpredictable

    @staticmethod
    def _load_nothing() -> tuple[ExportedProgram, ir.Model]:
        raise ExportError("the reference is an ONNX program: backends that run PyTorch programs can't be used with it")


def _renamed(model: ir.Model, alignment: ProgramAlignment, judged: Graph) -> ir.Model:
    """Return a copy of a model in which values have the names of the other program's values.

    A value that the other program computes several times has the first of its names, and copies with the others. Those
    that were found by their numbers alone have no such name: they may be other values, which float64 would tell.
    """
    renamed = model.clone()
    graph = renamed.graph
    aliases: dict[str, list[str]] = {}
    for name, source in alignment.names.items():
        if alignment.bases.get(name) != "numbers":
            aliases.setdefault(source, []).append(name)
    produced = [value for node in graph for value in node.outputs if value.name]
    values = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values(), *produced)}
    taken = judged.known | values.keys()
    tensors = {name: value.const_value for name, value in values.items()}
    for value in values.values():  # it would be renamed, too, and the program has the same tensor
        value.const_value = None
    for name, value in values.items():  # first to names that no value has, as two values may exchange theirs
        value.name = _free(name, taken)
    weights = {*judged.constants}
    for name, value in values.items():
        names = aliases.get(name, [])
        if value.is_initializer():
            value.name = name if name in weights else value.name
        elif names:
            value.name, *names = names
        value.const_value = tensors[name]
        for alias in names:
            _add_copy(graph, value, alias)
    for node in [node for node in graph if node.op_type == "SequenceAt"]:
        _replace_split(graph, node, taken)
    return renamed


def _add_copy(graph: ir.Graph, value: ir.Value, name: str) -> None:
    """Add a node that copies a value to one of another name."""
    copy = ir.node("Identity", [value])
    copied = copy.outputs[0]
    copied.name, copied.type, copied.shape = name, value.type, value.shape
    producer = value.producer()
    if producer is not None:
        graph.insert_after(producer, copy)
    elif len(graph):
        graph.insert_before(graph[0], copy)
    else:
        graph.append(copy)


def _replace_split(graph: ir.Graph, node: ir.Node, taken: Collection[str]) -> None:
    """Replace a node that takes a part of a tensor from a sequence by one that slices it.

    Exporters translate `chunk` and `split` to sequences, which the float64 values of a graph do not include.
    """
    sequence, index = node.inputs
    split = None if sequence is None else sequence.producer()
    if split is None or split.op_type != "SplitToSequence" or len(split.inputs) != 2:
        return
    sizes, place = map(_constant, (split.inputs[1], index))
    if sizes is None or place is None or int(place) < 0:
        return
    at = int(place)
    start, length = (at * int(sizes), int(sizes)) if sizes.ndim == 0 else (int(sizes[:at].sum()), int(sizes[at]))
    output, axis = node.outputs[0], split.attributes.get_int("axis", 0)
    bounds = [
        ir.Value(name=_free(f"{output.name}:{bound}", taken), const_value=ir.tensor([number]))
        for bound, number in (("start", start), ("end", start + length), ("axis", axis))
    ]
    for bound in bounds:
        graph.register_initializer(bound)
    sliced = ir.node("Slice", [split.inputs[0], *bounds], name=node.name)
    name, sliced.outputs[0].type, sliced.outputs[0].shape = output.name, output.type, output.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], [sliced], [output], [sliced.outputs[0]])
    sliced.outputs[0].name = name


def _constant(value: ir.Value | None) -> np.ndarray | None:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _free(name: str, taken: Collection[str]) -> str:
    """Return a name that no value has, made from `name`."""
    free = f"{_PREFIX}{name}"
    while free in taken:
        free += "'"
    return free
