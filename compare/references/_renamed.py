"""Give the values of a reference the names that they have in the program that is judged."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from filch.export import Graph, Original

from ..pairing._paired_value import PairedValue, Pairs

_PREFIX = "reference:"  # of values that the other program does not have


class RenamedOriginal(Original):
    """The torch program of a model, with the names that its values have in a foreign program.

    Args:
        original: the torch program and the graph that it was translated to.
        pairs: the values of that graph that the foreign program has.
        judged: the graph of the foreign program.
        inferred: references of values that were found by their numbers alone, by name.
        notes: remarks for the reader of a report.
    """

    def __init__(
        self,
        original: Original,
        pairs: Pairs,
        judged: Graph,
        *,
        inferred: Mapping[str, torch.Tensor],
        notes: Sequence[str],
    ) -> None:
        model, names = renamed_model(original.model, pairs, judged)

        def load() -> tuple[ExportedProgram, ir.Model]:
            return original.renamed(_new_names(original.program, names, judged.known)), model

        super().__init__(load, "")
        self.inferred, self.notes, self.same_weights = inferred, notes, pairs.same_weights

    def changed(self, change: Callable[[ir.Model], ir.Model]) -> Original:  # noqa: ARG002  it was made for the program
        """Return the program itself: it has the names of the values of the program to judge, before any change."""
        return self


def _new_names(program: ExportedProgram, names: Mapping[str, str], taken: Collection[str]) -> dict[str, str]:
    """Return new names of the nodes of a program: those in `names`, else free ones for those in `taken`."""
    nodes = [node.name for node in program.graph.nodes]
    return {name: names.get(name) or (_free(name, taken) if name in taken else name) for name in nodes}


def renamed_model(model: ir.Model, pairs: Pairs, judged: Graph) -> tuple[ir.Model, Mapping[str, str]]:
    """Return a copy of a model in which values have the names of the other program's values, and all names by the old.

    A value that the other program computes several times has the first of its names, and copies with the others. The
    parts of a joined value have copies alone: one that has a reference would not be computed again for the joined one.
    Those that were found by their numbers alone have no such name: they may be other values, which float64 would tell.
    """
    renamed = model.clone()
    graph = renamed.graph
    aliases, joined = _aliases(pairs)
    produced = [value for node in graph for value in node.outputs if value.name]
    parts = {part for pair in joined for part in pair.sources}
    values = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values(), *produced)}
    taken = judged.known | values.keys()
    tensors = {name: value.const_value for name, value in values.items()}
    for value in values.values():  # it would be renamed, too, and the program has the same tensor
        value.const_value = None
    for name, value in values.items():  # first to names that no value has, as two values may exchange theirs
        value.name = _free(name, taken)
    weights = {*judged.constants}
    for name, value in values.items():
        copies = aliases.get(name, [])
        if value.is_initializer():
            value.name = name if name in weights else value.name
        elif name not in parts and (first := next((pair for pair in copies if pair.shape is None), None)):
            value.name, copies = first.value, [pair for pair in copies if pair is not first]
        value.const_value = tensors[name]
        for pair in copies:
            _add_copy(graph, value, pair.value, pair.shape)
    for pair in joined:
        _add_joined(graph, [values[source] for source in pair.sources], pair.value)
    for node in [node for node in graph if node.op_type == "SequenceAt"]:
        _replace_split(graph, node, taken)
    return renamed, {name: value.name or "" for name, value in values.items()}


def _aliases(pairs: Pairs) -> tuple[dict[str, list[PairedValue]], list[PairedValue]]:
    """Return the pairs of each value, and those of joined ones, other than by their numbers alone."""
    aliases: dict[str, list[PairedValue]] = {}
    known = [pair for pair in pairs.by_value.values() if pair.evidence != "numbers"]
    for pair in known:
        if pair.source is not None:
            aliases.setdefault(pair.source, []).append(pair)
    return aliases, [pair for pair in known if pair.source is None]


def _add_copy(graph: ir.Graph, value: ir.Value, name: str, shape: Sequence[int] | None) -> None:
    """Add a node that copies a value to one of another name, and of another shape unless that is None."""
    node = ir.node("Identity", [value])
    if shape is not None:
        sizes = ir.Value(name=f"{name}:shape", const_value=ir.tensor([*shape], dtype=ir.DataType.INT64))
        graph.register_initializer(sizes)
        node = ir.node("Reshape", [value, sizes], {"allowzero": 1})
    copied = node.outputs[0]
    copied.name, copied.type, copied.shape = name, value.type, value.shape if shape is None else ir.Shape(shape)
    producer = value.producer()
    if producer is not None:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def _add_joined(graph: ir.Graph, parts: Sequence[ir.Value], name: str) -> None:
    """Add a node that joins values along the last dimension, after the last of them."""
    node = ir.node("Concat", parts, {"axis": -1})
    node.outputs[0].name, node.outputs[0].type = name, parts[0].type
    producers = {value.producer() for value in parts}
    graph.insert_after(next(item for item in reversed(graph) if item in producers), node)


def _replace_split(graph: ir.Graph, node: ir.Node, taken: Collection[str]) -> None:
    """Replace a node that takes a part of a tensor from a sequence by one that slices it.

    Exporters translate `chunk` and `split` to sequences, which the float64 values of a graph do not include. A node
    stays as it is unless `SplitToSequence` makes the sequence and the sizes and the index, from 0, are constants.
    """
    sequence, index = node.inputs
    split = None if sequence is None else sequence.producer()
    if split is None or split.op_type != "SplitToSequence" or len(split.inputs) != 2:
        return
    sizes, place = map(_constant, (split.inputs[1], index))
    if sizes is None or place is None or int(place) < 0:
        return
    # A single size is that of all parts; the last one may be shorter, which `Slice` allows for.
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
    """Return the numbers of a value that is a constant; None of any other value."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _free(name: str, taken: Collection[str]) -> str:
    """Return a name that no value has, made from `name`."""
    free = f"{_PREFIX}{name}"
    while free in taken:
        free += "'"
    return free
