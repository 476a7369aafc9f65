"""Convert graphs to JSON and back."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ._graph import Graph
from ._nodes import Frame, Node, Value


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Convert a graph to JSON-compatible values, without results of comparisons, other graphs and `onnx`."""
    return {
        "name": graph.name,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "constants": graph.constants,
        "nodes": [_pack_node(node) for node in graph.nodes],
        "values": [_pack_value(value) for value in graph.values.values()],
        "functions": {name: graph_to_json(function) for name, function in graph.functions.items()},
    }


def graph_from_json(data: Mapping[str, Any]) -> Graph:
    """Convert the result of `graph_to_json` back to a graph.

    Raises:
        KeyError, TypeError, ValueError: `data` does not describe a graph.
    """
    values = [_value(*item) for item in data["values"]]
    return Graph(
        name=_text(data["name"]),
        inputs=_texts(data["inputs"]),
        outputs=_texts(data["outputs"]),
        constants=_texts(data["constants"]),
        nodes=tuple(_node(item) for item in data["nodes"]),
        values={value.name: value for value in values},
        functions={name: graph_from_json(function) for name, function in data["functions"].items()},
    )


def _pack_value(value: Value) -> list[Any]:
    """Convert a value to a list of its fields, without a content of None."""
    packed = [value.name, value.dtype, value.shape]
    return packed if value.content is None else [*packed, _plain(value.content)]


def _value(name: Any, dtype: Any, shape: Any, content: Any = None) -> Value:
    return Value(_text(name), _optional_text(dtype), _shape(shape), _attribute(content))


def _pack_node(node: Node) -> dict[str, Any]:
    """Convert a node; fields that are empty or None, which most are in most graphs, are left out."""
    fields = {name: item for name, item in asdict(node).items() if item not in (None, (), {})}
    if node.attributes:
        fields["attributes"] = {name: _plain(item) for name, item in node.attributes.items()}
    if node.stack:
        fields["stack"] = [[frame.path, frame.type, frame.source] for frame in node.stack]
    return fields


def _node(data: Mapping[str, Any]) -> Node:
    """Convert the result of `_pack_node` back; the fields that it left out are empty or None."""
    fields: dict[str, Any] = {name: _texts(data.get(name, ())) for name in ("inputs", "outputs", "captured", "origins")}
    for name in ("module", "source", "target", "code", "gradient_of"):
        fields[name] = _optional_text(data.get(name))
    frames = data.get("stack", ())
    return Node(
        name=_text(data["name"]),
        op=_text(data["op"]),
        attributes={name: _attribute(item) for name, item in data.get("attributes", {}).items()},
        stack=tuple(Frame(_text(path), _text(kind), _optional_text(source)) for path, kind, source in frames),
        **fields,
    )


_FLOAT = "float"  # JSON has no inf and no NaN


def _plain(item: Any) -> Any:
    """Convert an attribute to JSON-compatible values; `_attribute` is the reverse."""
    if isinstance(item, list | tuple):
        return [_plain(element) for element in item]
    if isinstance(item, float) and not math.isfinite(item):
        return {_FLOAT: str(item)}
    return item if item is None or isinstance(item, str | int | float) else str(item)


def _attribute(item: Any) -> Any:
    """Convert an attribute or a constant's content back; a dictionary is a float that is not finite (see `_plain`)."""
    if isinstance(item, list):
        return [_attribute(element) for element in item]
    return float(item[_FLOAT]) if isinstance(item, dict) else item


def _shape(shape: Any) -> tuple[Any, ...] | None:
    """Check a shape: None, or sizes that are integers, symbolic expressions as text, or None."""
    for size in shape or ():
        if size is not None and type(size) not in (int, str):
            raise TypeError(f"{size!r} is not a dimension")
    return None if shape is None else tuple(shape)


def _texts(items: Any) -> tuple[str, ...]:
    if isinstance(items, str):
        raise TypeError(f"{items!r} is a string, not a list of strings")
    return tuple(map(_text, items))


def _optional_text(item: Any) -> str | None:
    return None if item is None else _text(item)


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{item!r} is not a string")
    return item
