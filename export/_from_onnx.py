"""Reads an ONNX model as a `Graph`."""

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir

from ._garbage import no_collection
from ._graph import Dim, Frame, Graph, Node, Value

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_STACK = "pkg.torch.onnx.stack_trace"
_NOWHERE = "_empty_nn_module_stack_from_metadata_hook"  # what torch.export calls the place of its own shape queries
_LONGEST_LIST = 2**14  # characters; parsed, each may take a hundred bytes
_MOST_NUMBERS = 8  # of a constant, that are shown
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@no_collection()
def graph_from_onnx(model: ir.Model) -> Graph:
    """The graph of an ONNX model, with the local functions that it calls; nodes without a name are given one."""
    functions = {f"{made.domain}::{made.name}": _graph(made, {}) for made in model.functions.values()}
    return dataclasses.replace(_graph(model.graph, model.graph.initializers), functions=functions, onnx=model)


def _graph(graph: ir.Graph | ir.Function, initializers: Mapping[str, ir.Value]) -> Graph:
    values: dict[str, Value] = {}
    for value in (*graph.inputs, *initializers.values(), *(out for node in graph for out in node.outputs)):
        if value.name:
            values[value.name] = value_of(value)
    taken = {node.name for node in graph if node.name}
    return Graph(
        name=graph.name or "",
        inputs=tuple(value.name or "" for value in graph.inputs if value.name not in initializers),
        outputs=tuple(value.name or "" for value in graph.outputs),
        constants=tuple(initializers),
        nodes=tuple(_node(node, index, taken) for index, node in enumerate(graph)),
        values=values,
    )


def value_of(value: ir.Value) -> Value:
    """What an ONNX value says of itself, or its constant does."""
    shape = value.shape if value.shape is not None else value.const_value.shape if value.const_value else None
    dtype = value.dtype if value.dtype is not None else value.const_value.dtype if value.const_value else None
    return Value(
        value.name or "",
        None if dtype is None else dtype_name(dtype),
        None if shape is None else tuple(_dim(dim) for dim in shape),
        None if value.const_value is None else _content(value.const_value),
    )


def _content(tensor: ir.TensorProtocol) -> Any:
    """The numbers of a small tensor as Python has them; None for a larger one, and for texts."""
    if tensor.size > _MOST_NUMBERS or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy().tolist()


def dtype_name(dtype: ir.DataType) -> str:
    """`FLOAT` -> `"float32"`: ONNX's name as torch writes it."""
    return _DTYPES.get(dtype.name, dtype.name.lower())


_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64"} | {
    name: "float8_" + name.removeprefix("FLOAT8").lower()
    for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
}


def _dim(dim: Any) -> Dim:
    return dim if isinstance(dim, int) else dim.value


def _node(node: ir.Node, index: int, taken: set[str]) -> Node:
    op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
    name = node.name or _free(f"{node.op_type}_{index}", taken)
    *paths, target = _listed(node, _SCOPES) or (None,)
    stack = tuple(Frame(*pair) for pair in zip(paths, _listed(node, _CLASSES), strict=False) if pair[0] != _NOWHERE)
    return Node(
        name=name,
        op=op,
        inputs=tuple("" if value is None else value.name or "" for value in node.inputs),
        outputs=tuple(value.name or "" for value in node.outputs),
        attributes={attr.name: _attribute(attr) for attr in node.attributes.values()},
        captured=tuple(sorted(_captured(node))),
        module=None if target is None else "" if not paths else None if paths[-1] == _NOWHERE else paths[-1],
        source=_source(node),
        target=target,
        stack=stack,
    )


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _listed(node: ir.Node, key: str) -> tuple[str, ...]:
    """One of the lists that torch's exporter leaves on nodes: of the calls around an operation, then of itself."""
    noted = node.metadata_props.get(key)
    return _read_list(noted) if noted is not None else ()


@lru_cache(maxsize=2**12)  # nodes of one module have the same lists
def _read_list(noted: str) -> tuple[str, ...]:
    if len(noted) > _LONGEST_LIST:
        return ()
    try:
        found = ast.literal_eval(noted)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: too many brackets
        return ()
    return tuple(str(item) for item in found) if isinstance(found, list) else ()


def _source(node: ir.Node) -> str | None:
    """The innermost frame that the exporter recorded, which is the line of model code."""
    noted = node.metadata_props.get(_STACK)
    frames = _FRAME.findall(noted) if noted else None
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else None


def _attribute(attr: ir.Attr) -> Any:
    if attr.type in (ir.AttributeType.TENSOR, ir.AttributeType.SPARSE_TENSOR):
        tensor = attr.as_tensor()
        held = _content(tensor)
        return f"<{dtype_name(tensor.dtype)}{list(tensor.shape)}>" if held is None else held
    if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return f"<graph of {len(list(attr.as_graph()))} nodes>" if attr.type == ir.AttributeType.GRAPH else "<graphs>"
    value = attr.value
    return [_number(item) for item in value] if isinstance(value, tuple | list) else _number(value)


def _number(value: Any) -> Any:
    """ONNX holds float32: 1e-05 comes back from a file as 9.999999747378752e-06, and is written as what it was."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _captured(node: ir.Node) -> set[str]:
    """Names of outer values that are read inside a node's subgraphs."""
    found: set[str] = set()
    for attr in node.attributes.values():
        for graph in _subgraphs(attr):
            own = {value.name for value in (*graph.inputs, *graph.initializers.values())}
            own |= {out.name for inner in graph for out in inner.outputs}
            read = {value.name for inner in graph for value in inner.inputs if value is not None}
            read |= {value.name for value in graph.outputs} | {name for inner in graph for name in _captured(inner)}
            found |= {name for name in read - own if name}
    return found


def _subgraphs(attr: ir.Attr) -> Sequence[ir.Graph]:
    if attr.type == ir.AttributeType.GRAPH:
        return (attr.as_graph(),)
    return attr.as_graphs() if attr.type == ir.AttributeType.GRAPHS else ()
