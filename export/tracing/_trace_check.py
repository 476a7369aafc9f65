"""Check the format of a trace.

In the functions that yield problems, `place` is where an object is in the trace, as messages write it; `nodes` are all
nodes by id, and `valid` those of them that have no problem by themselves.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

_Dict = Mapping[Any, Any]
_NODE = {"id": int, "inputs": list, "outputs": list, "stacks": list, "attrs": dict}
_STACK = {"name": str, "type": str, "file_path": str, "lineno": int}
_EXECUTION = {"fused_ops": list, "jit_key": str, "file_path": str, "attrs": dict}
_OPERATOR = ("name", "__id")
_VARIABLE = (*_OPERATOR, "shape", "ndim", "dtype", "dsize")
_SHAPE = re.compile(r"\[(?:[^,\[\]]+,)*\]")
NUMBER = re.compile(r"[0-9]{1,18}")
_GRAD = {"name": "grad", "type": "Grad", "file_path": "", "lineno": 0}
_MAX_DEPTH = 5  # the trace, its nodes by id, a node, its stacks, one of them
_MAX_VALUES = 10_000_000
_MAX_PROBLEMS = 1000
_MAX_ID = 2**60  # largest id: smaller integers have distinct hashes
_RANGE = ", from 0 to 2**60"
_FEW_EDGES = 16  # up to this many, counting is faster than a table


def check_trace(trace: Any) -> list[str]:
    """Return the problems of a trace; an empty list if it is valid.

    Args:
        trace: the result of `trace` or `load_trace`, or any other object.

    Returns:
        a sentence for each problem with its place and value, up to a thousand. Checked are: the keys and types of
        Jittor's document; that operators and variables alternate, both ends of an edge agree, and a variable has at
        most one producer; that `grad_op_id` and `fused_ops` are ids of existing operators; and that the stacks of
        nodes with `grad_op_id` begin with `grad`. A trace that is nested too deeply, or has more than ten million
        values, is not checked further.
    """
    if type(trace) is not dict:
        return [f"a trace is a dict, not {_short(trace)}"]
    size = unreadable(trace)
    if size is not None:
        return [f"the trace {size}"]
    all_problems = _problems(trace)
    problems = list(islice(all_problems, _MAX_PROBLEMS))
    if next(all_problems, None) is not None:
        problems.append(f"there are more than these {_MAX_PROBLEMS:,} problems")
    return problems


def unreadable(trace: Any, most: int = _MAX_VALUES) -> str | None:
    """Return why an object is too large or too deep for a trace, or None.

    The values are visited without recursion: `opened` has an iterator over the rest of each container around a value.

    Args:
        trace: any object. A value in two places counts twice, because printing or copying visits it twice.
        most: the maximum number of values.
    """
    count = 0
    opened: list[Iterator[Any]] = [iter((trace,))]
    while opened:
        for item in opened[-1]:
            count += 1
            kind = type(item)
            if kind is dict or kind is list:
                if len(opened) > _MAX_DEPTH:
                    return f"is nested more than {_MAX_DEPTH} deep, which no trace is"
                opened.append(iter(item.values() if kind is dict else item))
                break
            if count > most:
                break
        else:
            opened.pop()
        if count > most:
            return f"has more than {most:,} values, those counted twice that stand in two places"
    return None


def _problems(trace: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a trace that is a dictionary."""
    problems = list(_dict_problems("the trace", trace, {"node_data": dict, "execute_op_info": dict}))
    yield from problems
    if problems:
        return
    nodes, executions = trace["node_data"], trace["execute_op_info"]
    valid = {}  # nodes that have no problem by themselves
    for key, node in nodes.items():
        problems = list(islice(_node_problems(f"node_data[{_short(key)}]", key, node), _MAX_PROBLEMS))
        yield from problems
        if not problems:
            valid[key] = node
    for key, execution in executions.items():
        yield from _execution_problems(f"execute_op_info[{_short(key)}]", key, execution)
    edges = _Edges(nodes, valid)
    for key, node in valid.items():
        yield from edges.problems(f"node_data[{key}]", key, node)
        yield from _gradient_problems(f"node_data[{key}]", node, nodes, valid)
    for key, execution in executions.items():
        yield from _fusion_problems(f"execute_op_info[{_short(key)}]", execution, nodes, valid)


def _node_problems(place: str, key: Any, node: Any) -> Iterator[str]:
    """Yield the problems of a node by itself."""
    yield from _key_problems(place, key)
    problems = list(_dict_problems(place, node, _NODE))
    yield from problems
    if problems:
        return
    if node["id"] != key:
        yield f"{place}.id is {_short(node['id'])}, and has to be its key"
    for end in ("inputs", "outputs"):
        yield from _id_problems(f"{place}.{end}", node[end])
    for index, stack in enumerate(node["stacks"]):
        yield from _dict_problems(f"{place}.stacks[{index}]", stack, _STACK)
    yield from _attribute_problems(f"{place}.attrs", node["attrs"])


def _attribute_problems(place: str, attrs: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the problems of the attributes of a node."""
    problems = list(_text_problems(place, attrs))
    yield from problems
    kind = attrs.get("is_var")
    if kind not in ("0", "1"):
        yield f"{place}['is_var'] is {_short(kind)}, and has to be '0', of an operator, or '1', of a variable"
    if problems or kind not in ("0", "1"):
        return
    yield from (f"{place} has no {key!r}" for key in (_VARIABLE if kind == "1" else _OPERATOR) if key not in attrs)
    for key in ("__id", "ndim", "dsize", "grad_op_id"):
        if key in attrs and not NUMBER.fullmatch(attrs[key]):
            yield f"{place}[{key!r}] is {_short(attrs[key])}, and has to be a number of at most 18 digits, as text"
    shape = attrs.get("shape", "[]")
    if not _SHAPE.fullmatch(shape):
        yield f"{place}['shape'] is {_short(shape)}, and has to be like '[10,1,]', with a comma after each size"
    elif "shape" in attrs and NUMBER.fullmatch(attrs.get("ndim", "")) and shape.count(",") != int(attrs["ndim"]):
        yield f"{place}['ndim'] is {_short(attrs['ndim'])}, and the shape is {_short(shape)}"


def _execution_problems(place: str, key: Any, execution: Any) -> Iterator[str]:
    """Yield the problems of an execution by itself."""
    yield from _key_problems(place, key)
    problems = list(_dict_problems(place, execution, _EXECUTION))
    yield from problems
    if not problems:
        yield from _id_problems(f"{place}.fused_ops", execution["fused_ops"])
        yield from _text_problems(f"{place}.attrs", execution["attrs"])


class _Edges:
    """The edges of a trace, which both ends list; an end with a problem by itself is not compared with the other."""

    def __init__(self, nodes: Mapping[Any, Any], valid: Mapping[int, Any]) -> None:
        self._nodes, self._valid = nodes, valid
        self._counted: dict[tuple[int, str], Counter[int]] = {}  # by node and end

    def problems(self, place: str, key: int, node: Mapping[str, Any]) -> Iterator[str]:
        """Yield the problems of the edges of a node."""
        kind = node["attrs"]["is_var"]
        for end, back in (("inputs", "outputs"), ("outputs", "inputs")):
            for number, times in Counter(node[end]).items():
                if number not in self._nodes:
                    yield f"{place}.{end} has {number}, which is not a node"
                elif number in self._valid and self._valid[number]["attrs"]["is_var"] == kind:
                    yield f"{place}.{end} has {number}, which is {_KINDS[kind]}, too: operators and variables alternate"
                elif number in self._valid and self._count(number, back, key) != times:
                    yield f"{place}.{end} has {number}, but node_data[{number}].{back} has not {key} as many times"
        if kind == "1" and len(node["inputs"]) > 1:
            yield f"{place}.inputs is {_short(node['inputs'])}: a variable has one producer at most"

    def _count(self, number: int, end: str, key: int) -> int:
        """Return how many times an end of a node lists another node."""
        listed: list[int] = self._valid[number][end]
        if len(listed) <= _FEW_EDGES:
            return listed.count(key)
        if (number, end) not in self._counted:
            self._counted[number, end] = Counter(listed)
        return self._counted[number, end][key]


_KINDS = {"0": "an operator", "1": "a variable"}


def _gradient_problems(
    place: str, node: Mapping[str, Any], nodes: Mapping[Any, Any], valid: Mapping[Any, Any]
) -> Iterator[str]:
    """Yield the problems of a node's `grad_op_id`."""
    operator = node["attrs"].get("grad_op_id")
    if operator is None:
        return
    where = f"{place}.attrs['grad_op_id'] is {operator!r}"
    yield from _operator_id_problems(where, int(operator), nodes, valid)
    if int(operator) == node["id"] and node["attrs"]["is_var"] == "0":
        yield f"{where}, which is itself"
    if node["stacks"][:1] != [_GRAD]:
        yield f"{place}.stacks begins with {_short(node['stacks'][:1])}, and with a grad_op_id it has to with {_GRAD}"


def _fusion_problems(place: str, execution: Any, nodes: _Dict, valid: _Dict) -> Iterator[str]:
    """Yield the problems of the ids in an execution's `fused_ops`; `_execution_problems` reports what is not an id."""
    fused = execution.get("fused_ops") if type(execution) is dict else None
    for number in filter(_is_id, fused if type(fused) is list else ()):
        yield from _operator_id_problems(f"{place}.fused_ops has {number}", number, nodes, valid)


def _operator_id_problems(where: str, number: int, nodes: _Dict, valid: _Dict) -> Iterator[str]:
    """Yield a problem if an id is not that of an operator."""
    if number not in nodes:
        yield f"{where}, which is not a node"
    elif number in valid and valid[number]["attrs"]["is_var"] != "0":
        yield f"{where}, which is a variable, and has to be an operator"


def _dict_problems(place: str, item: Any, wanted: Mapping[str, type]) -> Iterator[str]:
    """Yield the problems of the keys of a dictionary and the types of its values; subclasses are not allowed."""
    if type(item) is not dict:
        yield f"{place} is {_short(item)}, and has to be a dict"
        return
    yield from (f"{place} has no {key!r}" for key in wanted if key not in item)
    yield from (f"{place} has {_short(key)}, which means nothing" for key in item if key not in wanted)
    for key, kind in wanted.items():
        if key in item and type(item[key]) is not kind:
            yield f"{place}.{key} is {_short(item[key])}, and has to be of type {kind.__name__}"


def _key_problems(place: str, key: Any) -> Iterator[str]:
    """Yield a problem if the key of a node or an execution is not an id."""
    if not _is_id(key):
        yield f"{place}: the key is {_short(key)}, and has to be an int{_RANGE}"


def _id_problems(place: str, items: list[Any]) -> Iterator[str]:
    """Yield a problem for each item of a list that is not an id."""
    for index, item in enumerate(items):
        if not _is_id(item):
            yield f"{place}[{index}] is {_short(item)}, and has to be of type int{_RANGE}"


def _is_id(item: Any) -> bool:
    """Return whether an object is an id: an int in the range of ids."""
    return type(item) is int and 0 <= item < _MAX_ID


def _text_problems(place: str, attrs: Mapping[Any, Any]) -> Iterator[str]:
    """Yield a problem for each attribute whose key or value is not a string."""
    for key, value in attrs.items():
        if type(key) is not str or type(value) is not str:
            yield f"{place}[{_short(key)}] is {_short(value)}: keys and values of attributes are text"


def _short(value: Any) -> str:
    """Return the beginning of a value's `repr`, without computing the rest."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _SHOWN:
            return f"{text[: _SHOWN - 3]}..."
    return text


_SHOWN = 60


def _pieces(value: Any) -> Iterator[str]:
    """Yield the `repr` of a value piece by piece."""
    kind = type(value)
    if kind is list or kind is dict:
        yield "[{"[kind is dict]
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(item)
            if kind is dict:
                yield ": "
                yield from _pieces(value[item])
        yield "]}"[kind is dict]
    elif kind is str:
        yield repr(value[: _SHOWN + 1])
    elif kind is int and not -_MAX_ID < value < _MAX_ID:
        yield f"an int of {value.bit_length()} bits"
    else:
        yield repr(value)
