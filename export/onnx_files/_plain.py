"""Replace what onnx-ir can't represent: sparse tensors by dense ones, and maps by the tensor that they hold."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, TypeProto, helper, numpy_helper

from ._graphs import CheckTensor, all_graphs, subgraphs
from ._memory import MEMORY

_MAP = "filch.map "  # begins the entry of a model's metadata with the classes of a map that was replaced
_FEW, _SHORT = 8, 40  # classes, and characters of one
_OPTIONAL_INPUTS = 4  # the IR version since which weights that are inputs can be given other values


def plain_model(model: ModelProto, check_tensor: CheckTensor = lambda *_, **__: None) -> ModelProto:
    """Return a model without sparse tensors and maps; the model itself if it has none.

    Args:
        model: the model, which is not changed.
        check_tensor: called with the parts of each sparse tensor.

    Raises:
        ValueError: a sparse tensor is invalid or too large, or a map can't be replaced.
    """
    if not any(_is_rare(graph) for graph in _graphs(model)) and not any(map(_is_sparse, _nodes(model))):
        return model
    changed: ModelProto = ModelProto.FromString(model.SerializeToString())
    dense = _Dense(check_tensor)
    for graph in _graphs(changed):
        graph.initializer.extend(map(dense, graph.sparse_initializer))
        graph.ClearField("sparse_initializer")
        _replace_maps(changed, graph)
    for node in filter(_is_sparse, _nodes(changed)):
        value = dense(node.attribute[0].sparse_tensor)
        node.attribute[0].CopyFrom(helper.make_attribute("value", value))
    return changed


def with_constant_weights(model: ir.Model) -> ir.Model:
    """Return a model whose weights are no inputs; it is changed if its IR version is less than 4.

    Such a file lists its weights as inputs, too, although runtimes take them for constants. Where one of them folds a
    weight, it keeps the input and asks for it.
    """
    if model.ir_version < _OPTIONAL_INPUTS:
        for value in [value for value in model.graph.inputs if value.name in model.graph.initializers]:
            model.graph.inputs.remove(value)
        model.ir_version = _OPTIONAL_INPUTS
    return model


class _Dense:
    """Converts sparse tensors, which together may take as much memory as a graph."""

    def __init__(self, check_tensor: CheckTensor) -> None:
        self._check, self._left = check_tensor, MEMORY

    def __call__(self, sparse: SparseTensorProto) -> TensorProto:
        name, dims = sparse.values.name, [*sparse.dims]
        for part in (sparse.values, sparse.indices):
            self._check(part, load=True)
        values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        self._left -= math.prod(dims) * values.itemsize
        if values.ndim != 1 or values.dtype.kind == "O":  # strings
            raise ValueError(f"the sparse tensor {name!r:.80} does not have a list of numbers")
        if min(dims, default=0) < 0 or self._left < 0:
            raise ValueError(f"the sparse tensor {name!r:.80} would take more than {MEMORY // 2**20} MB as a dense one")
        result = np.zeros(math.prod(dims), values.dtype)
        result[_flat_indices(name, indices, dims, len(values))] = values
        return numpy_helper.from_array(result.reshape(dims), name)


def _flat_indices(name: str, indices: np.ndarray, dims: list[int], count: int) -> np.ndarray:
    """Return the indices of a sparse tensor's numbers in the flattened dense one.

    Args:
        name: the name of the tensor, for the error.
        indices: its indices: those in the flattened tensor, or a row of one for each dimension.
        dims: its shape.
        count: how many numbers it has.
    """
    by_axis = indices.T if indices.ndim == 2 else indices[None]
    sizes = dims if indices.ndim == 2 else [math.prod(dims)]
    limits = np.array(sizes, np.int64)[:, None]
    fits = by_axis.dtype.kind == "i" and by_axis.shape == (len(sizes), count)
    if not fits or (by_axis < 0).any() or (by_axis >= limits).any():
        raise ValueError(f"the indices of the sparse tensor {name!r:.80} do not fit its shape {dims}")
    return np.asarray(np.ravel_multi_index(tuple(by_axis), sizes))


def _replace_maps(model: ModelProto, graph: GraphProto) -> None:
    """Let the nodes that make maps return the tensors that they read, whose columns they sort by class.

    The classes become entries of the model's metadata; see `classes_of_maps`.
    """
    made: dict[str, str] = {}
    used = _names(model)
    for node in filter(_makes_map, graph.node):
        kinds = {item.name: item.ints or item.strings for item in node.attribute if item.ints or item.strings}
        if len(kinds) != 1:
            raise ValueError(f"the ZipMap node {node.name!r:.80} has no classes, or those of two kinds")
        (classes,) = kinds.values()
        order = np.array(sorted(range(len(classes)), key=classes.__getitem__), np.int64)
        made |= dict.fromkeys(node.output, _text_of([classes[index] for index in order]))
        name = "order"
        while name in used:  # by a value of the model
            name += "_"
        used.add(name)
        graph.initializer.append(numpy_helper.from_array(order, name))
        read = [*node.input[:1], name]
        axis = helper.make_attribute("axis", -1)
        node.CopyFrom(NodeProto(op_type="Gather", name=node.name, input=read, output=node.output, attribute=[axis]))
    for value in (*graph.output, *graph.value_info, *graph.input):
        if value.name in made:  # ZipMap returns maps to float32 numbers
            value.type.CopyFrom(TypeProto(tensor_type=TypeProto.Tensor(elem_type=TensorProto.FLOAT)))
        elif _is_map(value.type):
            raise ValueError(f"{value.name!r:.80} is a map, which only a ZipMap node may return")
    if made:
        entries = {f"{_MAP}{name}": classes for name, classes in made.items()}
        helper.set_model_props(model, {**{item.key: item.value for item in model.metadata_props}, **entries})


def _names(model: ModelProto) -> set[str]:
    """Return the names of all values: a graph within another one sees those of the latter."""
    names = {value.name for graph in _graphs(model) for value in (*graph.input, *graph.initializer)}
    return names | {name for node in _nodes(model) for name in (*node.input, *node.output)}


def _text_of(classes: Sequence[Any]) -> str:
    """Return a text that is the same for the same classes, however many they are."""
    texts = [repr(item.decode(errors="replace") if isinstance(item, bytes) else item) for item in classes]
    if len(texts) <= _FEW and max(map(len, texts)) <= _SHORT:
        return f"{len(texts)} classes ({', '.join(texts)})"
    first, last = (f"{text:.{_SHORT}}" for text in (texts[0], texts[-1]))
    digest = hashlib.sha256(repr(classes).encode()).hexdigest()[:16]
    return f"{len(texts)} classes ({first}, …, {last}; hash {digest})"


def classes_of_maps(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the classes of the maps that `plain_model` has replaced, by the names of the values."""
    return {key.removeprefix(_MAP): text for key, text in metadata.items() if key.startswith(_MAP)}


def _makes_map(node: NodeProto) -> bool:
    """Return whether a node makes maps: `ZipMap`, which classifiers of scikit-learn have."""
    return (node.domain, node.op_type) == ("ai.onnx.ml", "ZipMap")


def _is_map(kind: TypeProto) -> bool:
    """Return whether a type is a map or a sequence of maps."""
    while kind.HasField("sequence_type"):
        kind = kind.sequence_type.elem_type
    return bool(kind.HasField("map_type"))


def _is_rare(graph: GraphProto) -> bool:
    """Return whether a graph has sparse weights or maps."""
    types = (value.type for value in (*graph.output, *graph.input))
    return bool(graph.sparse_initializer) or any(map(_is_map, types)) or any(map(_makes_map, graph.node))


def _is_sparse(node: NodeProto) -> bool:
    """Return whether a node is a `Constant` with a sparse tensor."""
    return node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("sparse_tensor")


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yield all graphs of a model, also those in its functions."""
    yield from all_graphs([model.graph])
    for function in model.functions:
        for node in function.node:
            yield from all_graphs(subgraphs(node))


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of all graphs and functions of a model."""
    for owner in (*_graphs(model), *model.functions):
        yield from owner.node
