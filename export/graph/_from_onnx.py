"""Read an ONNX model as a `Graph`."""

import ast
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import NodeProto

from ..common._garbage_collection import no_collection
from ._graph import Graph
from ._nodes import Dim, Frame, Node, Value

SCOPES = "pkg.torch.onnx.name_scopes"
CLASSES = "pkg.torch.onnx.class_hierarchy"
STACK = "pkg.torch.onnx.stack_trace"
_NOWHERE = "_empty_nn_module_stack_from_metadata_hook"  # the module path that torch.export gives its own shape queries
_LONGEST_LIST = 2**14  # characters; parsing may take a hundred bytes for each
_MOST_NUMBERS = 8  # elements of a constant that are shown
_NAMED = re.compile(r"[^\W\d]")  # a letter or an underscore
_LAST_FRAME = re.compile(r'.*File "([^"]+)", line (\d+)', re.DOTALL)


@no_collection()
def graph_from_onnx(model: ir.Model) -> Graph:
    """Convert an ONNX model and its local functions. Unnamed nodes get unique names."""
    functions = {f"{item.domain}::{item.name}": _graph(item, {}) for item in model.functions.values()}
    return dataclasses.replace(_graph(model.graph, model.graph.initializers), functions=functions, onnx=model)


def _graph(graph: ir.Graph | ir.Function, initializers: Mapping[str, ir.Value]) -> Graph:
    values: dict[str, Value] = {}
    for value in (*graph.inputs, *initializers.values(), *(out for node in graph for out in node.outputs)):
        if value.name:
            values[value.name] = value_of(value.name, value.dtype, value.shape, value.const_value)
    return Graph(
        name=graph.name or "",
        # An input that is also an initializer has a default: it counts as a constant.
        inputs=tuple(value.name or "" for value in graph.inputs if value.name not in initializers),
        outputs=tuple(value.name or "" for value in graph.outputs),
        constants=tuple(initializers),
        nodes=tuple(map(_node, graph, node_names(graph))),
        values=values,
    )


def value_of(
    name: str, dtype: ir.DataType | None, shape: ir.Shape | None, constant: ir.TensorProtocol | None = None
) -> Value:
    """Return a `Value` with the declared dtype and shape, or else those of its constant."""
    dtype = constant.dtype if dtype is None and constant is not None else dtype
    dims = constant.shape if shape is None and constant is not None else shape
    return Value(
        name,
        None if dtype is None else dtype_name(dtype),
        None if dims is None else tuple(_dim(dim) for dim in dims),
        None if constant is None else _content(constant),
    )


def _content(tensor: ir.TensorProtocol) -> Any:
    """Return the elements of a small tensor as Python numbers; None for larger tensors and for strings."""
    if tensor.size > _MOST_NUMBERS or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy().tolist()


def dtype_name(dtype: ir.DataType) -> str:
    """Return torch's name of an ONNX dtype: `"float32"` for `FLOAT`."""
    return _DTYPES.get(dtype.name, dtype.name.lower())


_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64"} | {
    name: "float8_" + name.removeprefix("FLOAT8").lower()
    for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
}


def _dim(dim: Any) -> Dim:
    """Return a declared size, or the name of an unknown one; None if it has no name.

    Exporters of other frameworks write -1, or "-1" or "?" as a name, for any unknown size.
    """
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value if dim.value and _NAMED.search(dim.value) else None


def _node(node: ir.Node, name: str) -> Node:
    return node_of(
        node,
        name,
        inputs=tuple("" if value is None else value.name or "" for value in node.inputs),
        outputs=tuple(value.name or "" for value in node.outputs),
        attributes={attr.name: _attribute(attr) for attr in node.attributes.values()},
        captured=_captured(node) if node.attributes else (),
        metadata=node.metadata_props,
    )


def node_of(
    node: ir.Node | NodeProto,
    name: str,
    *,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    attributes: Mapping[str, Any],
    captured: Collection[str],
    metadata: Mapping[str, str],
) -> Node:
    """Convert an ONNX node, parsed by onnx or by onnx-ir; its metadata gives the module and the source line.

    Args:
        node: the node; only its operator and domain are read.
        name: see `Node`, as for the next four.
        inputs: names of values.
        outputs: names of values.
        attributes: by name.
        captured: names of values, in any order.
        metadata: the node's metadata properties.
    """
    *paths, target = _parse_list(metadata.get(SCOPES)) or (None,)  # without modules, it is in the model itself (`""`)
    return Node(
        name=name,
        op=node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}",
        inputs=inputs,
        outputs=outputs,
        attributes=attributes,
        captured=tuple(sorted(captured)),
        module=None if target is None else "" if not paths else None if paths[-1] == _NOWHERE else paths[-1],
        source=_source(metadata.get(STACK)),
        target=target,
        stack=_stack(tuple(paths), _parse_list(metadata.get(CLASSES))),
    )


def node_names(nodes: Iterable[ir.Node | NodeProto]) -> Iterator[str]:
    """Yield the name of each node of a graph; unnamed nodes get unique names."""
    taken = {node.name for node in nodes if node.name}
    for index, node in enumerate(nodes):
        name = node.name or f"{node.op_type}_{index}"
        while not node.name and name in taken:
            name += "_"
        taken.add(name)
        yield name


@lru_cache(maxsize=2**10)  # nodes of one module have equal stacks
def _stack(paths: tuple[str, ...], classes: tuple[str, ...]) -> tuple[Frame, ...]:
    return tuple(Frame(*pair) for pair in zip(paths, classes, strict=False) if pair[0] != _NOWHERE)


def _parse_list(text: str | None) -> tuple[str, ...]:
    """Parse a list in a node's metadata: one item per enclosing module call, then one for the operation itself.

    Empty if there is none, or it is damaged or too long.
    """
    if text is None or len(text) > _LONGEST_LIST:
        return ()
    items = text[2:-2].split("', '")
    quoted = text.startswith("['") and text.endswith("']") and text.count("'") == 2 * len(items)
    if quoted and "\\" not in text and text.isprintable():  # the usual case: Python's parser takes ten times as long
        return tuple(items)
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: too many brackets
        return ()
    return tuple(str(item) for item in parsed) if isinstance(parsed, list) else ()


def _source(trace: str | None) -> str | None:
    """Return the innermost frame of a recorded stack trace, `file:line` of the model's code; None if there is none."""
    frame = _LAST_FRAME.match(trace) if trace else None
    return f"{frame[1]}:{frame[2]}" if frame else None


def _attribute(attr: ir.Attr) -> Any:
    if attr.type == ir.AttributeType.GRAPH:
        return graph_text(len(attr.as_graph()))
    return attribute_of(attr)


GRAPHS_TEXT = "<graphs>"  # represents an attribute of several graphs


def graph_text(nodes: int) -> str:
    """Return the text that represents an attribute that is a graph."""
    return f"<graph of {nodes} nodes>"


def attribute_of(attr: ir.Attr) -> Any:
    """Convert an attribute, except a graph, to a Python value."""
    if attr.type in (ir.AttributeType.TENSOR, ir.AttributeType.SPARSE_TENSOR):
        tensor = attr.as_tensor()
        content = _content(tensor)
        return f"<{dtype_name(tensor.dtype)}{list(tensor.shape)}>" if content is None else content
    if attr.type == ir.AttributeType.GRAPHS:
        return GRAPHS_TEXT
    value = attr.value
    return [_number(item) for item in value] if isinstance(value, tuple | list) else _number(value)


def _number(value: Any) -> Any:
    """Undo the rounding to float32 of ONNX files, where 1e-05 reads as 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _captured(node: ir.Node) -> set[str]:
    """Return the names of outer values that a node's subgraphs read."""
    names: set[str] = set()
    for graph in subgraphs(node):
        defined = {value.name for value in (*graph.inputs, *graph.initializers.values())}
        defined |= {out.name for inner in graph for out in inner.outputs}
        read = {value.name for inner in graph for value in inner.inputs if value is not None}
        read |= {value.name for value in graph.outputs} | {name for inner in graph for name in _captured(inner)}
        names |= {name for name in read - defined if name}
    return names


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs among a node's attributes."""
    attributes = node.attributes.values()
    single = [attr.as_graph() for attr in attributes if attr.type == ir.AttributeType.GRAPH]
    return single + [graph for attr in attributes if attr.type == ir.AttributeType.GRAPHS for graph in attr.as_graphs()]
