"""Graphs as JSON, and back."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ._graph import Graph
from ._nodes import Frame, Node, Value


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """A graph as what JSON can hold.

    What a comparison found, the graph that it was made of and the ONNX model that it was read from are not in it.
    """
    return {
        "name": graph.name,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "constants": graph.constants,
        "nodes": [_packed(node) for node in graph.nodes],
        "values": [_packed_value(value) for value in graph.values.values()],
        "functions": {name: graph_to_json(function) for name, function in graph.functions.items()},
    }


def graph_from_json(found: Mapping[str, Any]) -> Graph:
    """The inverse of `graph_to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    values = [_value(*item) for item in found["values"]]
    return Graph(
        name=_text(found["name"]),
        inputs=_texts(found["inputs"]),
        outputs=_texts(found["outputs"]),
        constants=_texts(found["constants"]),
        nodes=tuple(_node(item) for item in found["nodes"]),
        values={value.name: value for value in values},
        functions={name: graph_from_json(function) for name, function in found["functions"].items()},
    )


def _packed_value(value: Value) -> list[Any]:
    found = [value.name, value.dtype, value.shape]
    return found if value.content is None else [*found, _plain(value.content)]


def _value(name: Any, dtype: Any, shape: Any, content: Any = None) -> Value:
    return Value(_text(name), _told(dtype), _dims(shape), _attribute(content))


def _packed(node: Node) -> dict[str, Any]:
    """A node without what is not known of it, which is most of it in most graphs."""
    told = {name: item for name, item in asdict(node).items() if item not in (None, (), {})}
    if node.attributes:
        told["attributes"] = {name: _plain(item) for name, item in node.attributes.items()}
    if node.stack:
        told["stack"] = [[frame.path, frame.type, frame.source] for frame in node.stack]
    return told


def _node(found: Mapping[str, Any]) -> Node:
    told: dict[str, Any] = {name: _texts(found.get(name, ())) for name in ("inputs", "outputs", "captured", "origins")}
    for name in ("module", "source", "target", "code", "gradient_of"):
        told[name] = _told(found.get(name))
    stack = tuple(Frame(_text(path), _text(kind), _told(source)) for path, kind, source in found.get("stack", ()))
    return Node(
        name=_text(found["name"]),
        op=_text(found["op"]),
        attributes={name: _attribute(item) for name, item in found.get("attributes", {}).items()},
        stack=stack,
        **told,
    )


_FLOAT = "float"  # JSON has no number for inf and NaN


def _plain(item: Any) -> Any:
    if isinstance(item, list | tuple):
        return [_plain(one) for one in item]
    if isinstance(item, float) and not math.isfinite(item):
        return {_FLOAT: str(item)}
    return item if item is None or isinstance(item, str | int | float) else str(item)


def _attribute(item: Any) -> Any:
    if isinstance(item, list):
        return [_attribute(one) for one in item]
    return float(item[_FLOAT]) if isinstance(item, dict) else item


def _dims(shape: Any) -> tuple[Any, ...] | None:
    return None if shape is None else tuple(map(_dim, shape))


def _dim(size: Any) -> Any:
    if size is not None and type(size) not in (int, str):
        raise TypeError(f"{size!r} is no dimension")
    return size


def _texts(found: Any) -> tuple[str, ...]:
    if isinstance(found, str):
        raise TypeError(f"{found!r} is one text, and no list of them")
    return tuple(map(_text, found))


def _told(item: Any) -> str | None:
    return None if item is None else _text(item)


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{item!r} is no text")
    return item
