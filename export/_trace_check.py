"""Finds what is wrong with a trace."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NODE = {"id": int, "inputs": list, "outputs": list, "stacks": list, "attrs": dict}
_STACK = {"name": str, "type": str, "file_path": str, "lineno": int}
_EXECUTION = {"fused_ops": list, "jit_key": str, "file_path": str, "attrs": dict}
_OPERATOR = ("name", "__id")
_VARIABLE = (*_OPERATOR, "shape", "ndim", "dtype", "dsize")
_SHAPE = re.compile(r"\[(?:[^,\[\]]+,)*\]")
_GRAD = {"name": "grad", "type": "Grad", "file_path": "", "lineno": 0}


def check_trace(trace: Any) -> list[str]:
    """All that is wrong with a trace; an empty list if nothing is.

    Args:
        trace: what `trace` or `load_trace` returned, or anything else.

    Returns:
        a sentence for each problem, with its place and the value that is there. What is checked: the keys and types of
        Jittor's document; that operators and variables alternate, edges are told by both ends, and a variable has one
        producer at most; that `grad_op_id` and `fused_ops` are ids of operators that are there; and that the stacks of
        what has a `grad_op_id` begin with `grad`.
    """
    if type(trace) is not dict:
        return [f"a trace is a dict, not {_short(trace)}"]
    problems = list(_keys("the trace", trace, {"node_data": dict, "execute_op_info": dict}))
    if problems:
        return problems
    nodes = trace["node_data"]
    for key, node in nodes.items():
        problems += _of_node(f"node_data[{_short(key)}]", key, node)
    for key, execution in trace["execute_op_info"].items():
        problems += _of_execution(f"execute_op_info[{_short(key)}]", key, execution)
    sound = {key: node for key, node in nodes.items() if not list(_of_node("", key, node))}
    for key, node in sound.items():
        problems += _of_edges(f"node_data[{key}]", key, node, nodes, sound)
        problems += _of_gradient(f"node_data[{key}]", node, nodes, sound)
    for key, execution in trace["execute_op_info"].items():
        problems += _of_fusion(f"execute_op_info[{_short(key)}]", execution, nodes, sound)
    return problems


def _of_node(place: str, key: Any, node: Any) -> Iterator[str]:
    """What is wrong with a node by itself."""
    if type(key) is not int:
        yield f"{place}: the key is {_short(key)}, and has to be an int"
    wrong = list(_keys(place, node, _NODE))
    yield from wrong
    if wrong:
        return
    if node["id"] != key:
        yield f"{place}.id is {node['id']}, and has to be its key"
    for end in ("inputs", "outputs"):
        yield from _all_of(f"{place}.{end}", node[end], int)
    for index, stack in enumerate(node["stacks"]):
        yield from _keys(f"{place}.stacks[{index}]", stack, _STACK)
    yield from _of_attributes(f"{place}.attrs", node["attrs"])


def _of_attributes(place: str, attrs: Mapping[Any, Any]) -> Iterator[str]:
    wrong = list(_text(place, attrs))
    yield from wrong
    kind = attrs.get("is_var")
    if kind not in ("0", "1"):
        yield f"{place}['is_var'] is {_short(kind)}, and has to be '0', of an operator, or '1', of a variable"
    if wrong or kind not in ("0", "1"):
        return
    yield from (f"{place} has no {key!r}" for key in (_VARIABLE if kind == "1" else _OPERATOR) if key not in attrs)
    for key in {"__id", "ndim", "dsize", "grad_op_id"} & attrs.keys():
        if not attrs[key].isdecimal():
            yield f"{place}[{key!r}] is {_short(attrs[key])}, and has to be a number, as text"
    shape = attrs.get("shape", "[]")
    if not _SHAPE.fullmatch(shape):
        yield f"{place}['shape'] is {_short(shape)}, and has to be like '[10,1,]', with a comma after each size"
    elif attrs.get("ndim", "0").isdecimal() and "shape" in attrs and shape.count(",") != int(attrs.get("ndim", "0")):
        yield f"{place}['ndim'] is {_short(attrs.get('ndim'))}, and the shape is {shape}"


def _of_execution(place: str, key: Any, execution: Any) -> Iterator[str]:
    if type(key) is not int:
        yield f"{place}: the key is {_short(key)}, and has to be an int"
    wrong = list(_keys(place, execution, _EXECUTION))
    yield from wrong
    if not wrong:
        yield from _all_of(f"{place}.fused_ops", execution["fused_ops"], int)
        yield from _text(f"{place}.attrs", execution["attrs"])


def _of_edges(
    place: str, key: int, node: Mapping[str, Any], nodes: Mapping[Any, Any], sound: Mapping[Any, Any]
) -> Iterator[str]:
    """What is wrong with a node's edges, of which both ends tell."""
    kind = node["attrs"]["is_var"]
    for end, back in (("inputs", "outputs"), ("outputs", "inputs")):
        for number in dict.fromkeys(node[end]):
            if number not in nodes:
                yield f"{place}.{end} has {number}, which is no node"
            elif number in sound and sound[number]["attrs"]["is_var"] == kind:
                yield f"{place}.{end} has {number}, which is {_KINDS[kind]}, too: operators and variables alternate"
            elif number in sound and sound[number][back].count(key) != node[end].count(number):
                yield f"{place}.{end} has {number}, but node_data[{number}].{back} has not {key} as many times"
    if kind == "1" and len(node["inputs"]) > 1:
        yield f"{place}.inputs is {_short(node['inputs'])}: a variable has one producer at most"


_KINDS = {"0": "an operator", "1": "a variable"}


def _of_gradient(
    place: str, node: Mapping[str, Any], nodes: Mapping[Any, Any], sound: Mapping[Any, Any]
) -> Iterator[str]:
    told = node["attrs"].get("grad_op_id")
    if told is None:
        return
    source = int(told)
    if source not in nodes:
        yield f"{place}.attrs['grad_op_id'] is {told!r}, which is no node"
    elif source in sound and sound[source]["attrs"]["is_var"] != "0":
        yield f"{place}.attrs['grad_op_id'] is {told!r}, which is a variable, and has to be an operator"
    elif source == node["id"]:
        yield f"{place}.attrs['grad_op_id'] is {told!r}, which is itself"
    if node["stacks"][:1] != [_GRAD]:
        yield f"{place}.stacks begins with {_short(node['stacks'][:1])}, and with a grad_op_id it has to with {_GRAD}"


def _of_fusion(place: str, execution: Any, nodes: Mapping[Any, Any], sound: Mapping[Any, Any]) -> Iterator[str]:
    fused = execution.get("fused_ops") if type(execution) is dict else None
    for number in fused if type(fused) is list else ():
        if type(number) is int and number not in nodes:
            yield f"{place}.fused_ops has {number}, which is no node"
        elif type(number) is int and number in sound and sound[number]["attrs"]["is_var"] != "0":
            yield f"{place}.fused_ops has {number}, which is a variable, and has to be an operator"


def _keys(place: str, item: Any, wanted: Mapping[str, type]) -> Iterator[str]:
    """What is wrong with the keys of a dictionary, and the types of its values; subclasses are no plain values."""
    if type(item) is not dict:
        yield f"{place} is {_short(item)}, and has to be a dict"
        return
    yield from (f"{place} has no {key!r}" for key in wanted if key not in item)
    yield from (f"{place} has {_short(key)}, which means nothing" for key in item if key not in wanted)
    for key, kind in wanted.items():
        if key in item and type(item[key]) is not kind:
            yield f"{place}.{key} is {_short(item[key])}, and has to be of type {kind.__name__}"


def _all_of(place: str, items: list[Any], kind: type) -> Iterator[str]:
    for index, item in enumerate(items):
        if type(item) is not kind:
            yield f"{place}[{index}] is {_short(item)}, and has to be of type {kind.__name__}"


def _text(place: str, attrs: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in attrs.items():
        if type(key) is not str or type(value) is not str:
            yield f"{place}[{_short(key)}] is {_short(value)}: keys and values of attributes are text"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
