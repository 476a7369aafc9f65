"""Check that the graphs of an untrusted ONNX file define each value once and have no cycles.

Runtimes and shape inference rely on that; on other graphs, some crash or never end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import networkx as nx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto

_MOST_NODES = 250_000  # after inlining all function calls
_NEWEST = 1000  # version of ONNX's operator set; OpenVINO counts down from the version of the file
_DEEPEST_CALL = 50  # nested function calls
_SHOWN = 8  # nodes of a cycle in a message
_SIMPLE_TYPES = {AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING}
_SIMPLE_TYPES |= {AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS}

CheckTensor = Callable[..., None]
_Function = tuple[str, str]  # domain, name
_Nodes = MutableSequence[NodeProto]


class _GraphSummary(NamedTuple):
    """A summary of a graph or function, including its subgraphs.

    Attributes:
        free: names of outer values that it reads, in order.
        nodes: the number of its nodes.
        calls: the number of calls of each function.
    """

    free: tuple[str, ...]
    nodes: int
    calls: Mapping[_Function, int]


def check_graphs(model: ModelProto, check_tensor: CheckTensor) -> None:
    """Refuse a model that can't be run because of a cycle, an undefined value or a value that is defined twice.

    Args:
        model: the model, whose nesting depth `check_room` has checked. Its nodes are sorted in place if necessary:
            ONNX Runtime's float16 converter writes them in any order.
        check_tensor: called with each tensor, and with `load=True` for tensors of attributes.

    Raises:
        ValueError: the model is refused; the message has the reason.
    """
    functions = {}
    _check_versions(model.opset_import)
    for function in model.functions:
        _check_versions(function.opset_import)
        key = function.domain, function.name
        if key in functions:
            raise ValueError(f"it has the function {function.name!r:.80} twice")
        functions[key] = function
    check = _GraphChecker(frozenset(functions), check_tensor)
    main = check.graph(model.graph)
    if main.free:
        raise ValueError(f"no node computes {main.free[0]!r:.80}, which a node reads or the graph returns")
    _check_calls(main, {key: check.function(function) for key, function in functions.items()})


def _check_versions(imports: Iterable[OperatorSetIdProto]) -> None:
    """Refuse a version of ONNX's operators that does not exist."""
    for entry in imports:
        if entry.domain in ("", "ai.onnx") and entry.version > _NEWEST:
            raise ValueError(f"it imports version {entry.version:,} of ONNX's operators, which does not exist")


class _GraphChecker:
    """Checks graphs and functions; see `check_graphs`."""

    def __init__(self, functions: frozenset[_Function], check_tensor: CheckTensor) -> None:
        self._functions = functions
        self._check_tensor = check_tensor

    def graph(self, graph: GraphProto) -> _GraphSummary:
        """Check a graph and those in it; return a summary."""
        for tensor in graph.initializer:
            self._check_tensor(tensor)
        inputs = [value.name for value in graph.input]
        weights = {tensor.name for tensor in graph.initializer}
        if len(weights) < len(graph.initializer):
            raise ValueError("two of its initializers have the same name")
        return self._summary(inputs, weights, graph.node, [value.name for value in graph.output])

    def function(self, function: FunctionProto) -> _GraphSummary:
        """Check a function, which can't read values around it; return a summary."""
        summary = self._summary(list(function.input), set(), function.node, list(function.output))
        if summary.free:
            raise ValueError(f"no node of the function {function.name!r:.80} computes {summary.free[0]!r:.80}")
        return summary

    def _summary(
        self, inputs: Sequence[str], weights: set[str], nodes: _Nodes, outputs: Sequence[str]
    ) -> _GraphSummary:
        """Check that names are defined once and before their use, sorting the nodes if needed; return a summary.

        Args:
            inputs: the names of the inputs.
            weights: the names of the initializers.
            nodes: the nodes.
            outputs: the names of the outputs.
        """
        if len(set(inputs)) < len(inputs):
            raise ValueError("two of its inputs have the same name")
        known = weights.union(inputs)  # the names that are defined so far
        early: list[tuple[int, str]] = []  # values that nodes read before they are defined, by the nodes' indices
        captured: dict[int, list[str]] = {}
        count, calls = len(nodes), Counter[_Function]()
        for index, node in enumerate(nodes):
            early += [(index, name) for name in node.input if name and name not in known]
            for summary in self._attributes(node.attribute) if len(node.attribute) else ():
                captured.setdefault(index, []).extend(summary.free)
                early += [(index, name) for name in summary.free if name not in known]
                count += summary.nodes
                calls.update(summary.calls)
            _define(known, node)
            if self._functions and (called := (node.domain, node.op_type)) in self._functions:
                calls[called] += 1
        if unsorted := [(index, name) for index, name in early if name in known]:
            _sort(nodes, unsorted, captured)
        free = dict.fromkeys(name for name in (*(name for _, name in early), *outputs) if name not in known)
        return _GraphSummary(tuple(free), count, calls)

    def _attributes(self, attributes: Iterable[AttributeProto]) -> list[_GraphSummary]:
        """Check the tensors and subgraphs of a node; return a summary of each subgraph."""
        summaries = []
        for attribute in attributes:
            kind = attribute.type
            if kind in _SIMPLE_TYPES:
                continue
            if kind == AttributeProto.UNDEFINED:
                raise ValueError(f"the attribute {attribute.name!r:.80} has an unknown type")
            # `plain_model` has replaced the sparse tensors of Constant nodes.
            if attribute.HasField("sparse_tensor") or len(attribute.sparse_tensors):
                raise ValueError(
                    f"the attribute {attribute.name!r:.80} is a sparse tensor, which only a Constant node may have"
                )
            tensors: list[TensorProto] = [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else ())]
            for tensor in tensors:
                self._check_tensor(tensor, load=True)
            summaries += [self.graph(graph) for graph in _graphs(attribute)]
        return summaries


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among the attributes of a node, whatever the declared types of the attributes are."""
    return (graph for attribute in node.attribute for graph in _graphs(attribute))


def all_graphs(graphs: Iterable[GraphProto]) -> Iterator[GraphProto]:
    """Yield graphs and all graphs inside of them."""
    for graph in graphs:
        yield graph
        for node in graph.node:
            yield from all_graphs(subgraphs(node))


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    """Return the graphs of an attribute, whatever its declared type is."""
    return [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())]


def _define(known: set[str], node: NodeProto) -> None:
    """Add the outputs of a node to the defined names; refuse one that is defined twice."""
    for name in node.output:
        if name in known:
            raise ValueError(f"two nodes or inputs define {name!r:.80}")
        if name:
            known.add(name)


def _sort(nodes: _Nodes, early: Sequence[tuple[int, str]], captured: Mapping[int, Sequence[str]]) -> None:
    """Sort nodes topologically in place, moving as few as possible, or refuse a cycle.

    Args:
        nodes: the nodes of one graph.
        early: pairs of a node's index and a value that it reads before it is defined.
        captured: the outer values that the subgraphs of a node read, by the node's index.
    """
    producers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    # Every cycle contains one of these reads, and all of its nodes are within this range.
    span = range(min(index for index, _ in early), max(producers[name] for _, name in early) + 1)
    before = {
        index: {producers[name] for name in (*nodes[index].input, *captured.get(index, ())) if name in producers}
        for index in span
    }
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        names = [_name_of(nodes[index]) for index in _cycle(error)]
        raise ValueError(f"the graph has a cycle: {_chain(names)}") from None
    edges = nx.DiGraph()
    edges.add_edges_from((source, index) for index, sources in before.items() for source in sources if source in span)
    edges.add_nodes_from(span)
    order = [*range(span.start), *nx.lexicographical_topological_sort(edges), *range(span.stop, len(nodes))]
    ordered = [nodes[index] for index in order]
    del nodes[:]
    nodes.extend(ordered)


def _cycle(error: CycleError) -> list[Any]:
    """Return the members of the cycle, in order."""
    cycle: list[Any] = error.args[1]
    return cycle[:-1]  # the last member is the first again


def _chain(names: Iterable[str]) -> str:
    """Return the names of a cycle as text; the middle of a long one is left out."""
    listed = [name if name.isprintable() and len(name) <= 80 else f"{name!r:.80}" for name in names]
    shown = listed if len(listed) <= _SHOWN else [*listed[: _SHOWN - 1], "…", listed[-1]]
    return " → ".join([*shown, listed[0]])


def _name_of(node: NodeProto) -> str:
    """Return a text that identifies a node in a message."""
    return node.name or next((name for name in node.output if name), node.op_type)


def _check_calls(main: _GraphSummary, functions: Mapping[_Function, _GraphSummary]) -> None:
    """Refuse functions that call themselves, or that have too many nodes when inlined."""
    try:
        order = [*TopologicalSorter({key: summary.calls for key, summary in functions.items()}).static_order()]
    except CycleError as error:
        # `graphlib` lists callees before their callers.
        raise ValueError(f"a function calls itself: {_chain(name for _, name in reversed(_cycle(error)))}") from None
    depth: dict[_Function, int] = {}
    nodes: dict[_Function, int] = {}
    for key in order:  # callees before callers
        summary = functions[key]
        depth[key] = 1 + max((depth[called] for called in summary.calls), default=0)
        nodes[key] = summary.nodes + sum(count * nodes[called] for called, count in summary.calls.items())
        if depth[key] > _DEEPEST_CALL:
            raise ValueError(f"its functions call each other more than {_DEEPEST_CALL} deep")
    if sum(count * nodes[called] for called, count in main.calls.items()) > _MOST_NODES:
        raise ValueError(f"its functions have more than {_MOST_NODES:,} nodes when inlined")
