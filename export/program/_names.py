"""Map node names of an exported program to values of its ONNX graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from ..evaluation._eager import weight_names
from ..graph._arguments import written_arguments
from ..graph._graph import Graph
from ..graph._module_calls import Port, Resolution
from ..operators._registry import operator_of


class Names:
    """Maps names through the decomposition of one exported program.

    Names can't be compared directly, because decomposing renumbers nodes (`view_3` may be another node afterwards).
    Instead, each decomposed node records the node that it comes from; the last one of a decomposition has its value.

    Args:
        exported: the program as torch.export returned it; module call signatures use its node names.
        decomposed: the program that was translated to ONNX; its node names are the names of the ONNX values.
        graph: the ONNX graph.
    """

    def __init__(self, exported: ExportedProgram, decomposed: ExportedProgram, graph: Graph) -> None:
        self._graph_values = graph.known
        self._weight_names = dict(weight_names(exported))
        self._live = _live(exported.graph_module)
        self._nodes: dict[str, fx.Node] = {}
        self._equivalents: dict[fx.Node, fx.Node] = {}  # nodes with the same value, inside or outside of a region
        self._value_names: dict[fx.Node, str] = {}  # the names of decomposed nodes, which are those of ONNX values
        self._stale = _written_through_views(exported.graph_module)
        self._map_nodes(exported.graph_module, _decompositions(exported, decomposed))

    def port(self, path: str, name: str) -> Port | None:
        """Return the port for a node of the exported program; None if its value, which is needed, can't be found.

        Args:
            path: the path of the tensor in a module call.
            name: the node's name.
        """
        resolution: Resolution = "exact"
        node = self._nodes.get(name)
        while node is not None and node not in self._stale:  # see `_written_through_views`
            value = self._value(node)
            if value is not None:
                return Port(path, value, resolution)
            node = self._source(node)
            resolution = "alias"
        return None if name in self._live else Port(path, None, "dead", "nothing uses it")

    def _value(self, node: fx.Node) -> str | None:
        """Return the name of the graph's value or weight that is the result of a node; None if it has none."""
        name = self._value_names.get(node, node.name if node.op == "placeholder" else None)
        if name in self._graph_values:
            return name
        weight = self._weight_names.get(node.name)
        return weight if weight in self._graph_values else None

    def _source(self, node: fx.Node) -> fx.Node | None:
        """Return the node whose value equals that of a removed node."""
        if (inner := self._equivalents.get(node)) is not None:
            return inner
        first = node.args[0] if node.op == "call_function" and node.args else None
        if not isinstance(first, fx.Node) or not _same_type(node, first):
            return None
        operator = operator_of(_operator(node))
        # What the decomposition has removed although its result is used returns its input, if that has the same shape.
        was_removed = operator.keeps and node.name in self._live
        is_copy = operator.movement in ("copy", "cast") and not operator.source
        return first if is_copy or operator.name == "dropout" or was_removed else None

    def _map_nodes(self, module: fx.GraphModule, decompositions: Mapping[str, list[fx.Node]]) -> None:
        """Map the nodes of `module`, and those of its regions (`with torch.no_grad():`, autocast)."""
        regions: dict[fx.Node, list[Any]] = {}
        for node in module.graph.nodes:
            self._nodes[node.name] = node
            if (region := _region(module, node)) is not None:
                regions[node] = self._map_region(region, decompositions.get(node.name, []))
            elif _operator(node) == "getitem":
                self._map_getitem(node, regions, decompositions)
            elif decomposition := decompositions.get(node.name):
                self._value_names[node] = decomposition[-1].name

    def _map_getitem(
        self, node: fx.Node, regions: Mapping[fx.Node, list[Any]], decompositions: Mapping[str, list[fx.Node]]
    ) -> None:
        """Map a `getitem` node to the result of a region, or to the `getitem` node of its decomposition."""
        source: Any
        index: Any
        source, index = node.args
        if source in regions:
            self._equivalents[node] = regions[source][index]
            return
        # The decomposed `getitem` node may come from this node or from the one whose results it reads.
        nodes = [*decompositions.get(node.name, ()), *decompositions.get(source.name, ())]
        for item in nodes:
            if _operator(item) == "getitem" and item.args[1] == index and _is_result(item, nodes):
                self._value_names[node] = item.name
                return

    def _map_region(self, region: tuple[fx.GraphModule, list[Any]], inlined: list[fx.Node]) -> list[Any]:
        """Map a region's nodes and return its results.

        Inlining records only that a node comes from the region, but keeps the order. If an operator occurs equally
        often in the region and among the inlined nodes, its occurrences correspond in order.

        Args:
            region: the graph of the region, and the arguments of its parameters.
            inlined: the nodes of the decomposed program that come from the region.
        """
        body, operands = region
        self._map_nodes(body, {})  # which decompositions its nodes have is not recorded
        nodes = list(body.graph.nodes)
        parameters = [node for node in nodes if node.op == "placeholder"]
        pairs = zip(parameters, operands, strict=False)
        self._equivalents |= {parameter: node for parameter, node in pairs if isinstance(node, fx.Node)}
        for target in {node.target for node in nodes if node.op == "call_function"}:
            before = [node for node in nodes if node.target == target]
            after = [node for node in inlined if node.target == target]
            if len(before) == len(after):
                self._value_names |= {node: successor.name for node, successor in zip(before, after, strict=True)}
        results = nodes[-1].args[0]
        return list(results) if isinstance(results, tuple | list) else [results]


def _is_result(item: fx.Node, decomposition: Sequence[fx.Node]) -> bool:
    """Whether a `getitem` node reads the result of a decomposition, not an intermediate value that others read, too."""
    inside = set(decomposition)
    (source,) = item.all_input_nodes
    items = [user for user in source.users if user in inside]
    return all(_operator(other) == "getitem" and inside.isdisjoint(other.users) for other in items)


def _written_through_views(module: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes whose memory is written to through another node (`y = x[0]; y.add_(1)` changes x).

    After a write, the written node's value has the name of the writing operation. The other nodes that share its memory
    keep their names, so that one name refers to the values before and after the write.
    """
    views: dict[fx.Node, list[fx.Node]] = {}  # the nodes that share the memory of a root
    root: dict[fx.Node, fx.Node] = {}  # the first node with the memory of a node
    stale: set[fx.Node] = set()
    for node in module.graph.nodes:
        arguments = written_arguments(node.target, node.args, node.kwargs) if node.op == "call_function" else ()
        written = [argument for argument in arguments if isinstance(argument, fx.Node)]
        first = node.args[0] if node.op == "call_function" and node.args else None
        shares = isinstance(first, fx.Node) and (first in written or _is_view(node))
        root[node] = root[first] if shares and isinstance(first, fx.Node) else node
        for target in written:
            stale |= {other for other in views[root[target]] if other is not target}
        views.setdefault(root[node], []).append(node)
    return stale


def _is_view(node: fx.Node) -> bool:
    """Whether the result of a node shares memory with its input."""
    schema = getattr(node.target, "_schema", None)
    results = schema.returns if schema is not None else ()
    # Schemas do not declare that for lists of results.
    return operator_of(_operator(node)).splits or any(item.alias_info is not None for item in results)


def _decompositions(exported: ExportedProgram, decomposed: ExportedProgram) -> dict[str, list[fx.Node]]:
    """Return the decomposed nodes of each exported node, by its name."""
    graph_id = id(exported.graph)
    decompositions: dict[str, list[fx.Node]] = {}
    for node in decomposed.graph.nodes:
        pending = list(node.meta.get("from_node") or ())
        names = set()
        while pending:
            source = pending.pop()
            if source.graph_id == graph_id:
                names.add(source.name)
            pending += source.from_node
        for name in names:
            decompositions.setdefault(name, []).append(node)
    return decompositions


def _same_type(node: fx.Node, other: fx.Node) -> bool:
    """Whether the results of two nodes have the same dtype and shape."""
    a, b = node.meta.get("val"), other.meta.get("val")
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape


def _operator(node: fx.Node) -> str:
    """Return an operator's name without its overload: `to` for `aten.to.dtype`."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _region(module: fx.GraphModule, node: fx.Node) -> tuple[fx.GraphModule, list[Any]] | None:
    """Return body and operands of a node that runs a subgraph in another mode (no_grad, autocast); else None."""
    if not _operator(node).startswith("wrap_with_"):
        return None
    for index, argument in enumerate(node.args):
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            body = getattr(module, str(argument.target), None)
            if isinstance(body, fx.GraphModule):
                return body, list(node.args[index + 1 :])
    return None


def _live(module: fx.GraphModule) -> frozenset[str]:
    """Return the names of the nodes that the module's output or a side effect depends on, also in its regions."""
    pending = [node for node in module.graph.nodes if node.op == "output" or node.is_impure()]
    seen: set[fx.Node] = set()
    names: set[str] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        names.add(node.name)
        pending += node.all_input_nodes
        region = _region(module, node)
        if region is not None:
            names |= _live(region[0])
    return frozenset(names)
