"""Checks the graphs of an ONNX file of unknown origin: that each value is made once, and can be before it is needed.

Runtimes and shape inference take that for granted, and some crash or never end where it does not hold.
"""

from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import networkx as nx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto

_MOST_NODES = 250_000  # once every call of a function is replaced by its nodes
_NEWEST = 1000  # version of ONNX's operators; OpenVINO counts down from what a file says
_DEEPEST_CALL = 50  # a function that calls a function …
_SHOWN = 8  # nodes of a cycle

CheckTensor = Callable[..., None]
_Function = tuple[str, str]  # domain, name
_Nodes = MutableSequence[NodeProto]


class _Unit(NamedTuple):
    """What a graph or function has, those inside its nodes included.

    Attributes:
        free: names that it reads from outside, in order.
        nodes: how many it has.
        calls: how often it calls each function.
    """

    free: tuple[str, ...]
    nodes: int
    calls: Mapping[_Function, int]


def check_graphs(model: ModelProto, check_tensor: CheckTensor) -> None:
    """Refuse a model with a graph that can't be run: a cycle, a value that nothing makes, one that is made twice.

    Args:
        model: it; its graphs are nested so deep that recursion ends. Nodes that stand before what they read are put
            behind it: ONNX Runtime's float16 converter leaves them in any order.
        check_tensor: is called with each tensor, and `load=True` if that is an attribute's.

    Raises:
        ValueError: what is wrong with it.
    """
    functions = {}
    _check_versions(model.opset_import)
    for function in model.functions:
        _check_versions(function.opset_import)
        key = function.domain, function.name
        if key in functions:
            raise ValueError(f"it has the function {function.name!r:.80} twice")
        functions[key] = function
    check = _Checker(frozenset(functions), check_tensor)
    main = check.graph(model.graph)
    if main.free:
        raise ValueError(f"nothing makes {main.free[0]!r:.80}, which a node reads or the graph gives")
    _check_calls(main, {key: check.function(function) for key, function in functions.items()})


def _check_versions(imports: Iterable[OperatorSetIdProto]) -> None:
    for entry in imports:
        if entry.domain in ("", "ai.onnx") and entry.version > _NEWEST:
            raise ValueError(f"it wants version {entry.version:,} of ONNX's operators, which is none")


class _Checker:
    def __init__(self, functions: frozenset[_Function], check_tensor: CheckTensor) -> None:
        self._functions = functions
        self._check_tensor = check_tensor

    def graph(self, graph: GraphProto) -> _Unit:
        if len(graph.sparse_initializer):
            raise ValueError("it has sparse initialisers, which no backend here runs")
        for tensor in graph.initializer:
            self._check_tensor(tensor)
        taken = [value.name for value in graph.input]
        held = {tensor.name for tensor in graph.initializer}
        if len(held) < len(graph.initializer):
            raise ValueError("two of its initialisers have the same name")
        return self._unit(taken, held, graph.node, [value.name for value in graph.output])

    def function(self, function: FunctionProto) -> _Unit:
        unit = self._unit(list(function.input), set(), function.node, list(function.output))
        if unit.free:
            raise ValueError(f"nothing in the function {function.name!r:.80} makes {unit.free[0]!r:.80}")
        return unit

    def _unit(self, taken: Sequence[str], held: set[str], nodes: _Nodes, given: Sequence[str]) -> _Unit:
        if len(set(taken)) < len(taken):
            raise ValueError("two of its inputs have the same name")
        known = held.union(taken)
        early: list[tuple[int, str]] = []  # what nodes read that is not there yet
        captured: dict[int, list[str]] = {}
        count, calls = len(nodes), dict[_Function, int]()
        for index, node in enumerate(nodes):
            early += [(index, name) for name in node.input if name and name not in known]
            for unit in self._attributes(node.attribute) if len(node.attribute) else ():
                captured.setdefault(index, []).extend(unit.free)
                early += [(index, name) for name in unit.free if name not in known]
                count += unit.nodes
                _add(calls, unit.calls)
            _make(known, node)
            if self._functions and (called := (node.domain, node.op_type)) in self._functions:
                _add(calls, {called: 1})
        if back := [(index, name) for index, name in early if name in known]:
            _sort(nodes, back, captured)
        free = dict.fromkeys(name for name in (*(name for _, name in early), *given) if name not in known)
        return _Unit(tuple(free), count, calls)

    def _attributes(self, attributes: Iterable[AttributeProto]) -> list[_Unit]:
        """Check the tensors of a node, and what is in its graphs."""
        units = []
        for attribute in attributes:
            kind = attribute.type
            if kind in _PLAIN:
                continue
            if kind == AttributeProto.UNDEFINED:
                raise ValueError(f"the attribute {attribute.name!r:.80} has no type that is known")
            if attribute.HasField("sparse_tensor") or len(attribute.sparse_tensors):
                raise ValueError(f"the attribute {attribute.name!r:.80} is a sparse tensor, which no backend here runs")
            tensors: list[TensorProto] = [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else ())]
            for tensor in tensors:
                self._check_tensor(tensor, load=True)
            graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())]
            units += [self.graph(graph) for graph in graphs]
        return units


_PLAIN = frozenset(
    {
        AttributeProto.FLOAT,
        AttributeProto.INT,
        AttributeProto.STRING,
        AttributeProto.FLOATS,
        AttributeProto.INTS,
        AttributeProto.STRINGS,
    }
)


def _make(known: set[str], node: NodeProto) -> None:
    """Add what a node makes to the names that are known."""
    for name in node.output:
        if name in known:
            raise ValueError(f"two nodes or inputs make {name!r:.80}")
        if name:
            known.add(name)


def _add(counts: dict[_Function, int], more: Mapping[_Function, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count


def _sort(nodes: _Nodes, early: Iterable[tuple[int, str]], captured: Mapping[int, Sequence[str]]) -> None:
    """Put nodes behind what they read, as few as have to be, or refuse a cycle.

    Args:
        nodes: of one graph.
        early: the index of each node that reads what is not made before, and the name of that.
        captured: what the graphs inside a node read, by the node's index.
    """
    made_by = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    back = [(made_by[name], index) for index, name in early]
    # Every cycle has such an edge, and none of its nodes is outside of what these span.
    span = range(min(reader for _, reader in back), max(maker for maker, _ in back) + 1)
    before = {
        index: {made_by[name] for name in (*nodes[index].input, *captured.get(index, ())) if name in made_by}
        for index in span
    }
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        names = [_name_of(nodes[index]) for index in _cycle(error)]
        raise ValueError(f"the graph has a cycle: {_chain(names)}") from None
    edges = nx.DiGraph((maker, index) for index, makers in before.items() for maker in makers if maker in span)
    edges.add_nodes_from(span)
    order = [*range(span.start), *nx.lexicographical_topological_sort(edges), *range(span.stop, len(nodes))]
    ordered = [nodes[index] for index in order]
    del nodes[:]
    nodes.extend(ordered)


def _cycle(error: CycleError) -> list[Any]:
    """What is on a cycle, each before what follows from it."""
    cycle: list[Any] = error.args[1]
    return cycle[:-1]  # it ends with the first again


def _chain(names: Iterable[str]) -> str:
    listed = [name if name.isprintable() and len(name) <= 80 else f"{name!r:.80}" for name in names]
    shown = listed if len(listed) <= _SHOWN else [*listed[: _SHOWN - 1], "…", listed[-1]]
    return " → ".join([*shown, listed[0]])


def _name_of(node: NodeProto) -> str:
    return node.name or next((name for name in node.output if name), node.op_type)


def _check_calls(main: _Unit, functions: Mapping[_Function, _Unit]) -> None:
    """Refuse functions that call themselves, or become too many nodes."""
    try:
        order = [*TopologicalSorter({key: unit.calls for key, unit in functions.items()}).static_order()]
    except CycleError as error:
        raise ValueError(f"a function calls itself: {_chain(name for _, name in reversed(_cycle(error)))}") from None
    depth: dict[_Function, int] = {}
    nodes: dict[_Function, int] = {}
    for key in order:  # first those that call none
        unit = functions[key]
        depth[key] = 1 + max((depth[called] for called in unit.calls), default=0)
        nodes[key] = unit.nodes + sum(count * nodes[called] for called, count in unit.calls.items())
        if depth[key] > _DEEPEST_CALL:
            raise ValueError(f"its functions call each other more than {_DEEPEST_CALL} deep")
    if sum(count * nodes[called] for called, count in main.calls.items()) > _MOST_NODES:
        raise ValueError(f"its functions become more than {_MOST_NODES:,} nodes")
