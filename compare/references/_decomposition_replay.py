"""Compute reference values inside of operator decompositions.

An exporter translates one PyTorch operator into several ONNX nodes. Eager PyTorch has the value of the last one only.
The others are computed by running the unmodified ONNX nodes with every eager value as an input, so that each operator
starts from its references. The values are used only if the operator's output matches the eager value. Several operators
run at once, within the size of the buffer.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from networkx.utils import UnionFind

from filch.export import BackendError, Graph, Node, Original, Program
from filch.export.backends import Backend, Compiled, get_backend
from filch.export.backends._limited import limit_backend
from filch.export.graph._cutting import AGAIN, Cutter

from ..metrics._metrics import compare_tensors

_MAX_NODES = 4096  # nodes per run: ONNX Runtime's startup time grows with the square of their number


@dataclass(frozen=True, eq=False)
class DecompositionGroup:
    """Operator decompositions that run at once.

    Attributes:
        nodes: nodes of the unmodified graph, in order.
        inside: the names of their outputs that eager PyTorch does not have.
        needs: the names of the eager values that are their inputs and final outputs.
    """

    nodes: tuple[Node, ...]
    inside: frozenset[str]
    needs: frozenset[str]


class DecompositionReplay:
    """Compute the requested values inside the operator decompositions of a program.

    Args:
        original: the exported PyTorch program.
        wanted: the names of the values that may be requested.
        sizes: the bytes of each value, by name.
        buffer: bytes of values that one run should not exceed; compiled decompositions are kept if all weights fit.
    """

    def __init__(self, original: Original, wanted: Collection[str], sizes: Mapping[str, int], buffer: int) -> None:
        self._cutter = Cutter(original.model, original.graph)
        self._backend = limit_backend(_evaluator())
        self._drawn = original.unpredictable.replaced
        weights = (value.const_value for value in original.model.graph.initializers.values())
        self._keeps_compiled = sum(tensor.nbytes for tensor in weights if tensor is not None) <= buffer
        self._compiled: dict[DecompositionGroup, Compiled | None] = {}
        self._by_name: dict[str, DecompositionGroup] = {}
        for group in _groups(original, wanted, sizes, buffer):
            for name in group.inside:
                self._by_name.setdefault(name, group)

    def group_of(self, name: str) -> DecompositionGroup | None:
        """Return the group that computes a value, or None if it is not inside a decomposition."""
        return self._by_name.get(name)

    def run(self, group: DecompositionGroup, known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values inside decompositions whose outputs match eager PyTorch, by name.

        Args:
            group: the decompositions to run.
            known: eager values and inputs, by name.
        """
        compiled = self._compiled[group] if group in self._compiled else self._compile(group)
        if self._keeps_compiled:
            self._compiled[group] = compiled
        if compiled is None or not known.keys() >= {*compiled.graph.inputs}:
            return {}
        try:
            values = self._backend.run(compiled, {name: known[name] for name in compiled.graph.inputs})
        except BackendError:
            return {}
        eager = {name: tensor for name, tensor in known.items() if name not in self._drawn}  # random numbers differ
        matching = _matching_values(group, eager, values)
        return {name: tensor for name, tensor in values.items() if name in matching}

    def _compile(self, group: DecompositionGroup) -> Compiled | None:
        """Compile the nodes of a group as a program of their own; None if the backend can't."""
        model = self._cutter.cut(group.nodes, group.inside)
        try:
            return self._backend.compile(Program(model), optimize=False)
        except BackendError:
            return None


def _evaluator() -> Backend:
    """Return ONNX Runtime, or onnx.reference, which is slower, where it is not installed."""
    try:
        return get_backend("onnxruntime-cpu")
    except BackendError:
        return get_backend("reference")


def _groups(
    original: Original, wanted: Collection[str], sizes: Mapping[str, int], buffer: int
) -> Iterator[DecompositionGroup]:
    """Yield groups of decompositions that contain wanted values, each as large as the buffer allows."""
    graph = original.graph
    outside = frozenset((*graph.inputs, *graph.constants))
    inside = graph.producer.keys() - outside.union(original.names)
    constant = _constant_values(graph, inside)
    missing = inside & {*wanted}
    collected: dict[str, Node] = {}
    available: set[str] = set()
    size = 0
    for nodes in _decompositions(graph, inside, constant):
        complete = _with_constants(graph, nodes, constant, available)
        computed = {name for node in complete for name in node.outputs if name}
        if missing.isdisjoint(computed):
            continue
        missing -= computed
        more_bytes = sum(sizes.get(name, 0) for name in computed)
        if collected and (size + more_bytes > buffer or len(collected) >= _MAX_NODES):
            yield _group(graph, collected, inside, outside)
            collected, available, size = {}, set(), 0
            complete = _with_constants(graph, nodes, constant, available)
        collected |= {node.name: node for node in complete}
        available.update(name for node in complete for name in node.outputs)
        size += more_bytes
    if collected:
        yield _group(graph, collected, inside, outside)


def _group(
    graph: Graph, nodes: Mapping[str, Node], inside: Collection[str], outside: frozenset[str]
) -> DecompositionGroup:
    """Return some decompositions as one group.

    Args:
        graph: the graph.
        nodes: their nodes, by name.
        inside: the names of all values that eager PyTorch does not have.
        outside: the names of the inputs and constants of the graph.
    """
    ordered = tuple(sorted(nodes.values(), key=lambda node: graph.node_indices[node.name]))
    computed = frozenset(name for node in ordered for name in node.outputs if name in inside)
    used_names = {name for node in ordered for name in (*node.reads, *node.outputs) if name}
    return DecompositionGroup(ordered, computed, frozenset(used_names - computed - outside))


def _decompositions(graph: Graph, inside: Collection[str], constant: frozenset[str]) -> list[list[Node]]:
    """Return the sets of nodes connected by inside values, in the order of the last node of each.

    Values computed from constants alone connect nothing, because optimizers share one constant between all layers. They
    belong to each decomposition that reads them, or form their own if none does.
    """
    connected: Any = UnionFind()  # of the indices of nodes and the names of values
    read: set[str] = set()
    for index, node in enumerate(graph.nodes):
        if not constant.isdisjoint(node.outputs):
            continue
        names = [name for name in (*node.reads, *node.outputs) if name in inside]
        read.update(constant.intersection(names))
        if names:
            connected.union(index, *(name for name in names if name not in constant))
    groups = [sorted(item for item in group if isinstance(item, int)) for group in connected.to_sets()]
    used = graph.cone(read, ())
    alone = {graph.producer[name].name for name in constant}.difference(node.name for node in used)
    groups += [[graph.node_indices[name]] for name in alone]
    return [[graph.nodes[index] for index in group] for group in sorted(groups, key=lambda group: group[-1])]


def _with_constants(
    graph: Graph, nodes: Sequence[Node], constant: Collection[str], available: Collection[str]
) -> list[Node]:
    """Return nodes plus those that compute their constant inputs, except for values in `available`."""
    read = (name for node in nodes for name in node.reads if name in constant and name not in available)
    return [*nodes, *graph.cone(read, available)]


def _constant_values(graph: Graph, inside: Collection[str]) -> frozenset[str]:
    """Return the inside values that are computed from constants alone, by nodes with no other outputs."""
    constant: set[str] = set()
    known = {*graph.constants}
    for node in graph.nodes:
        computed = [name for name in node.outputs if name]
        if known.issuperset(node.reads) and all(name in inside for name in computed):
            known.update(computed)
            constant.update(computed)
    return frozenset(constant)


def _matching_values(
    group: DecompositionGroup, eager: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]
) -> set[str]:
    """Return the inside values from which every path ends at a value that matches eager PyTorch."""
    users: dict[str, list[Node]] = {}
    for node in group.nodes:
        for name in node.reads:
            users.setdefault(name, []).append(node)
    matching: dict[str, bool] = {}  # by node name: whether all paths from the node do

    def matches(name: str) -> bool:
        """Return whether a value leads to eager values that match, or is itself one."""
        if name in group.inside:
            return all(matching[user.name] for user in users.get(name, ()))
        # An eager value that is also an input of the group is computed under its name plus `AGAIN`.
        computed = values.get(name + AGAIN, values.get(name))
        return name not in eager or compare_tensors(computed, eager[name]).close

    for node in reversed(group.nodes):
        matching[node.name] = all(matches(name) for name in node.outputs if name)
    return {name for node in group.nodes if matching[node.name] for name in node.outputs if name in group.inside}
