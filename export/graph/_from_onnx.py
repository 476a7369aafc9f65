"""Reads an ONNX model as a `Graph`."""

import ast
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import NodeProto

from ..common._garbage_collection import no_collection
from ._graph import Graph
from ._nodes import Dim, Frame, Node, Value

_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_STACK = "pkg.torch.onnx.stack_trace"
_NOWHERE = "_empty_nn_module_stack_from_metadata_hook"  # what torch.export calls the place of its own shape queries
_LONGEST_LIST = 2**14  # characters; parsed, each may take a hundred bytes
_MOST_NUMBERS = 8  # of a constant, that are shown
_LAST_FRAME = re.compile(r'.*File "([^"]+)", line (\d+)', re.DOTALL)


@no_collection()
def graph_from_onnx(model: ir.Model) -> Graph:
    """The graph of an ONNX model, with the local functions that it calls; nodes without a name are given one."""
    functions = {f"{made.domain}::{made.name}": _graph(made, {}) for made in model.functions.values()}
    return dataclasses.replace(_graph(model.graph, model.graph.initializers), functions=functions, onnx=model)


def _graph(graph: ir.Graph | ir.Function, initializers: Mapping[str, ir.Value]) -> Graph:
    values: dict[str, Value] = {}
    for value in (*graph.inputs, *initializers.values(), *(out for node in graph for out in node.outputs)):
        if value.name:
            values[value.name] = value_of(value.name, value.dtype, value.shape, value.const_value)
    return Graph(
        name=graph.name or "",
        inputs=tuple(value.name or "" for value in graph.inputs if value.name not in initializers),
        outputs=tuple(value.name or "" for value in graph.outputs),
        constants=tuple(initializers),
        nodes=tuple(map(_node, graph, node_names(graph))),
        values=values,
    )


def value_of(
    name: str, dtype: ir.DataType | None, shape: ir.Shape | None, held: ir.TensorProtocol | None = None
) -> Value:
    """What an ONNX value says of itself, or the constant that it holds does."""
    dtype = held.dtype if dtype is None and held is not None else dtype
    dims = held.shape if shape is None and held is not None else shape
    return Value(
        name,
        None if dtype is None else dtype_name(dtype),
        None if dims is None else tuple(_dim(dim) for dim in dims),
        None if held is None else _content(held),
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


def _node(node: ir.Node, name: str) -> Node:
    return node_of(
        node,
        name,
        inputs=tuple("" if value is None else value.name or "" for value in node.inputs),
        outputs=tuple(value.name or "" for value in node.outputs),
        attributes={attr.name: _attribute(attr) for attr in node.attributes.values()},
        captured=_captured(node) if node.attributes else (),
        noted=node.metadata_props,
    )


def node_of(
    node: ir.Node | NodeProto,
    name: str,
    *,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    attributes: Mapping[str, Any],
    captured: Collection[str],
    noted: Mapping[str, str],
) -> Node:
    """A node of ONNX, whichever library parsed it, with the module and the line of code that its metadata tells.

    Args:
        node: its operator is read.
        name: what it is called; see `Node`, as for the next four.
        inputs: names of values.
        outputs: names of values.
        attributes: by name.
        captured: names of values, in any order.
        noted: its metadata.
    """
    *paths, target = _listed(noted.get(_SCOPES)) or (None,)
    return Node(
        name=name,
        op=node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}",
        inputs=inputs,
        outputs=outputs,
        attributes=attributes,
        captured=tuple(sorted(captured)),
        module=None if target is None else "" if not paths else None if paths[-1] == _NOWHERE else paths[-1],
        source=_source(noted.get(_STACK)),
        target=target,
        stack=_stack(tuple(paths), _listed(noted.get(_CLASSES))),
    )


def node_names(nodes: Iterable[ir.Node | NodeProto]) -> Iterator[str]:
    """The name of each node of a graph; one that no other has for a node without a name."""
    taken = {node.name for node in nodes if node.name}
    for index, node in enumerate(nodes):
        yield node.name or _free(f"{node.op_type}_{index}", taken)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


@lru_cache(maxsize=2**10)  # nodes of one module have the same
def _stack(paths: tuple[str, ...], classes: tuple[str, ...]) -> tuple[Frame, ...]:
    return tuple(Frame(*pair) for pair in zip(paths, classes, strict=False) if pair[0] != _NOWHERE)


def _listed(noted: str | None) -> tuple[str, ...]:
    """A list that torch's exporter leaves on nodes: of the calls around an operation, then of the operation itself."""
    if noted is None or len(noted) > _LONGEST_LIST:
        return ()
    texts = noted[2:-2].split("', '")
    quoted = noted.startswith("['") and noted.endswith("']") and noted.count("'") == 2 * len(texts)
    if quoted and "\\" not in noted and noted.isprintable():  # most: Python's parser takes ten times as long
        return tuple(texts)
    try:
        found = ast.literal_eval(noted)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: too many brackets
        return ()
    return tuple(str(item) for item in found) if isinstance(found, list) else ()


def _source(noted: str | None) -> str | None:
    """The innermost frame that the exporter recorded, which is the line of model code."""
    frame = _LAST_FRAME.match(noted) if noted else None
    return f"{frame[1]}:{frame[2]}" if frame else None


def _attribute(attr: ir.Attr) -> Any:
    if attr.type == ir.AttributeType.GRAPH:
        return of_graph(len(attr.as_graph()))
    return attribute_of(attr)


def of_graphs() -> str:
    """What stands for an attribute that is several graphs."""
    return "<graphs>"


def of_graph(nodes: int) -> str:
    """What stands for an attribute that is a graph."""
    return f"<graph of {nodes} nodes>"


def attribute_of(attr: ir.Attr) -> Any:
    """What an attribute holds, as Python has it; any but a graph."""
    if attr.type in (ir.AttributeType.TENSOR, ir.AttributeType.SPARSE_TENSOR):
        tensor = attr.as_tensor()
        held = _content(tensor)
        return f"<{dtype_name(tensor.dtype)}{list(tensor.shape)}>" if held is None else held
    if attr.type == ir.AttributeType.GRAPHS:
        return of_graphs()
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
