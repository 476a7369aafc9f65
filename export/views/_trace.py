"""Write graphs as Jittor's trace dictionary: operators, variables and executions."""

import json
import pickle
import re
from collections.abc import Collection, Mapping
from typing import Any

from ..graph._graph import Graph
from ..graph._nodes import Frame, Node, Value, split_call
from ._view import Drawing

Trace = dict[str, dict[int, dict[str, Any]]]
_ROOT = "model"  # the name of the model itself, for which Jittor uses the name of the caller's variable
_BITS = re.compile(r"\d+")
_PROTOCOL = 4  # of Python 3.4 and later
_EMPTY: Mapping[str, str] = {}


class TraceView:
    """See `View`. The pickle and the JSON contain only dictionaries, lists, strings and integers."""

    suffixes: tuple[str, ...] = (".pkl", ".json")

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return Drawing(serialize(trace_of(graph), suffix), suffix)


def serialize(trace: Trace, suffix: str) -> bytes:
    """Serialize a trace as `.pkl` or `.json`; JSON's keys are strings."""
    if suffix == ".json":
        return json.dumps(trace, indent=1).encode("utf-8", "backslashreplace")
    return pickle.dumps(trace, _PROTOCOL)


def trace_of(
    graph: Graph,
    *,
    labels: Mapping[str, str] = _EMPTY,
    data: Mapping[str, str] = _EMPTY,
    unexecuted: Collection[str] = (),
) -> Trace:
    """Return the trace dictionary of a graph.

    Args:
        graph: a graph of operations, each of which is one execution; or a compiled graph whose `source_graph` is the
            graph of operations and whose nodes have `origins` there: then each of its nodes is one execution.
        labels: the names of variables by the names of values; others have the names of constants, or none.
        data: the numbers of values as text, by name.
        unexecuted: names of nodes without an execution.

    Returns:
        `node_data` and `execute_op_info` as in Jittor 1.3's `dump_trace_data()` (its document "Computational graph
        visualization" names the keys; `check_trace` has the rules).
    """
    compiled = graph.source_graph is not None and any(node.origins for node in graph.nodes)
    operations = graph.source_graph if compiled and graph.source_graph is not None else graph
    numbered = _NumberedGraph(operations, labels, data)
    executed = (node for node in graph.nodes if node.name not in unexecuted)
    executions = (_execution(graph, node, numbered.ids, compiled=compiled) for node in executed)
    return {"node_data": numbered.data, "execute_op_info": dict(enumerate(executions))}


class _NumberedGraph:
    """The operators and variables of a graph, numbered.

    Attributes:
        data: the entry `node_data`.
        ids: the numbers of operators by the names of their nodes.
    """

    def __init__(self, graph: Graph, labels: Mapping[str, str], data: Mapping[str, str]) -> None:
        self._graph = graph
        self._labels = labels
        self._data_texts = data
        self._constants = set(graph.constants)
        self._variables: dict[str, int] = {}
        self.data: dict[int, dict[str, Any]] = {}
        self.ids: dict[str, int] = {}
        for name in (*graph.inputs, *graph.constants):  # a constant has the stacks of its first reader
            reader = next(iter(graph.consumers.get(name, ())), None) if name in graph.constants else None
            self._variables[name] = self._variable(name, _stacks(reader) if reader else [])
        for node in graph.nodes:
            self._operator(node)
        for node in graph.nodes:
            if node.gradient_of in self.ids:
                self._derivative(node, self.ids[node.gradient_of])

    def _operator(self, node: Node) -> None:
        number = self.ids[node.name] = self._add(is_var="0", name=node.op, stacks=_stacks(node))
        for name in dict.fromkeys(node.reads):
            if name not in self._variables:  # the outer graph may compute what a subgraph reads
                self._variables[name] = self._variable(name, [])
            self._connect(self._variables[name], number)
        # An operator without outputs gets a variable without a type: JittorVis reads an operator's type from variables.
        for name in tuple(filter(None, node.outputs)) or (f"{node.name}:none",):
            self._variables[name] = self._variable(name, _stacks(node))
            self._connect(number, self._variables[name])

    def _derivative(self, node: Node, source: int) -> None:
        """Record the number of the operator whose derivative a node and its outputs are, as Jittor does."""
        for number in (self.ids[node.name], *self.data[self.ids[node.name]]["outputs"]):
            self.data[number]["attrs"]["grad_op_id"] = str(source)

    def _variable(self, name: str, stacks: list[dict[str, Any]]) -> int:
        value = self._graph.values.get(name, Value(name))
        # Jittor has no scalars: they get one dimension of size 1. `[]` is an unknown shape.
        dims = [] if value.shape is None else [str(dim) for dim in value.shape] or ["1"]
        constant, _ = split_call(name)  # `weight@1` is the weight after a step
        return self._add(
            is_var="1",
            name=self._labels.get(name, constant if constant in self._constants else ""),
            stacks=stacks,
            shape="[" + "".join(f"{dim}," for dim in dims) + "]",
            ndim=str(len(dims)),
            dtype=value.dtype or "",
            dsize=str(_size(value.dtype)),
            **({"data": self._data_texts[name]} if name in self._data_texts else {}),
        )

    def _add(self, *, stacks: list[dict[str, Any]], **attrs: str) -> int:
        number = len(self.data)
        attrs["__id"] = str(number)
        self.data[number] = {"id": number, "inputs": [], "outputs": [], "stacks": stacks, "attrs": attrs}
        return number

    def _connect(self, source: int, target: int) -> None:
        self.data[source]["outputs"].append(target)
        self.data[target]["inputs"].append(source)


def _execution(graph: Graph, node: Node, ids: Mapping[str, int], *, compiled: bool) -> dict[str, Any]:
    """Return the entry of `execute_op_info` for one execution."""
    names = node.origins if compiled else (node.name,)
    wrapper = str(node.attributes.get("wrapper", "")) if compiled else ""  # where Inductor's code calls a kernel
    return {
        "fused_ops": [ids[name] for name in dict.fromkeys(names) if name in ids],
        "jit_key": _key(graph, node, wrapper),
        "file_path": _file_and_line(node.code)[0],
        "attrs": {"wrapper": wrapper} if wrapper else {},
    }


def _key(graph: Graph, node: Node, wrapper: str) -> str:
    """Return the key of the executed code: the name and file of a generated function, or types and shapes."""
    if node.code is not None:
        return f"{node.op}/{_file_and_line(wrapper or node.code)[0].replace(chr(92), '/').rpartition('/')[2]}"
    return node.op + "".join(f"«{graph.values.get(name, Value(name))}" for name in node.reads)


def _stacks(node: Node) -> list[dict[str, Any]]:
    """Return the calls in which a node ran, outermost first, as the entry `stacks`."""
    return [_stack(frame) for frame in node.stack or _inferred_frames(node)]


def _stack(frame: Frame) -> dict[str, Any]:
    file, line = _file_and_line(frame.source)
    name = frame.name if frame.path else _ROOT
    return {"name": name, "type": frame.type.rpartition(".")[2], "file_path": file, "lineno": line}


def _inferred_frames(node: Node) -> tuple[Frame, ...]:
    """Return the frames of a node of which only the module or only the line is known."""
    if node.module is None:
        return (Frame(node.source, "", node.source),) if node.source else ()
    parts = split_call(node.module)[0].split(".") if node.module else []
    return (Frame(""), *(Frame(".".join(parts[: index + 1])) for index in range(len(parts))))


def _file_and_line(source: str | None) -> tuple[str, int]:
    """Split `file:line`; the line is 0 if there is none."""
    file, _, line = (source or "").rpartition(":")
    return (file, int(line)) if line.isdecimal() else (source or "", 0)


def _size(dtype: str | None) -> int:
    """Return the bytes of one element, or 0 if the dtype is unknown."""
    bits = _BITS.search(dtype or "")
    return max(int(bits[0]) // 8, 1) if bits else int(dtype == "bool")
