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

from filch.export import AGAIN, BackendError, Cutter, Graph, Node, Original, Program
from filch.export.backends import Compiled, get_backend, limit_backend

from ..metrics._metrics import compare_tensors

_MOST = 4096  # nodes per run: ONNX Runtime's startup time grows with the square of their number


@dataclass(frozen=True, eq=False)
class Group:
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
        buffer: bytes of values that one run should not exceed.
    """

    def __init__(self, original: Original, wanted: Collection[str], sizes: Mapping[str, int], buffer: int) -> None:
        self._cutter = Cutter(original.model, original.graph)
        self._backend = limit_backend(get_backend("onnxruntime-cpu"))
        self._drawn = original.unpredictable.replaced
        self._compiled: dict[Group, Compiled | None] = {}
        self._by_name: dict[str, Group] = {}
        for group in _groups(original, wanted, sizes, buffer):
            for name in group.inside:
                self._by_name.setdefault(name, group)

    def group_of(self, name: str) -> Group | None:
        """Return the group that computes a value, or None if it is not inside a decomposition."""
        return self._by_name.get(name)

    def run(self, group: Group, known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values inside decompositions whose outputs match eager PyTorch, by name.

        Args:
            group: the decompositions to run.
            known: eager values and inputs, by name.
        """
        if group not in self._compiled:
            self._compiled[group] = self._compile(group)
        compiled = self._compiled[group]
        if compiled is None or _lacks(compiled, known):
            return {}
        try:
            found = self._backend.run(compiled, {name: known[name] for name in compiled.graph.inputs})
        except BackendError:
            return {}
        ends = {
            name: tensor for name, tensor in known.items() if name not in self._drawn
        }  # random values differ between runs
        matching = _matching_values(group, ends, found)
        return {name: tensor for name, tensor in found.items() if name in matching}

    def _compile(self, group: Group) -> Compiled | None:
        model = self._cutter.cut(group.nodes, group.inside)
        try:
            return self._backend.compile(Program(model), optimize=False)
        except BackendError:
            return None


def _lacks(compiled: Compiled, known: Mapping[str, torch.Tensor]) -> bool:
    return any(name not in known for name in compiled.graph.inputs)


def _groups(original: Original, wanted: Collection[str], sizes: Mapping[str, int], buffer: int) -> Iterator[Group]:
    """Yield groups of decompositions that contain wanted values, each as large as the buffer allows."""
    graph = original.graph
    outside = frozenset((*graph.inputs, *graph.constants))
    inside = graph.producer.keys() - outside.union(original.names)
    fixed = _fixed(graph, inside)
    missing = inside & {*wanted}
    taken: dict[str, Node] = {}
    available: set[str] = set()
    size = 0
    for nodes in _decompositions(graph, inside, fixed):
        whole = _with_fixed(graph, nodes, fixed, available)
        made = {name for node in whole for name in node.outputs if name}
        if missing.isdisjoint(made):
            continue
        missing -= made
        more = sum(sizes.get(name, 0) for name in made)
        if taken and (size + more > buffer or len(taken) >= _MOST):
            yield _group(graph, taken, inside, outside)
            taken, available, size = {}, set(), 0
            whole = _with_fixed(graph, nodes, fixed, available)
        taken |= {node.name: node for node in whole}
        available.update(name for node in whole for name in node.outputs)
        size += more
    if taken:
        yield _group(graph, taken, inside, outside)


def _group(graph: Graph, nodes: Mapping[str, Node], inside: Collection[str], outside: frozenset[str]) -> Group:
    ordered = tuple(sorted(nodes.values(), key=lambda node: graph.places[node.name]))
    made = frozenset(name for node in ordered for name in node.outputs if name in inside)
    touched = {name for node in ordered for name in (*node.reads, *node.outputs) if name}
    return Group(ordered, made, frozenset(touched - made - outside))


def _decompositions(graph: Graph, inside: Collection[str], fixed: frozenset[str]) -> list[list[Node]]:
    """Return the sets of nodes connected by inside values, in the order of the last node of each.

    Values computed from constants alone connect nothing, because optimizers share one constant between all layers. They
    belong to each decomposition that reads them, or form their own if none does.
    """
    joined: Any = UnionFind()  # of the places of nodes and the names of values
    read: set[str] = set()
    for place, node in enumerate(graph.nodes):
        if not fixed.isdisjoint(node.outputs):
            continue
        names = [name for name in (*node.reads, *node.outputs) if name in inside]
        read.update(fixed.intersection(names))
        if names:
            joined.union(place, *(name for name in names if name not in fixed))
    parts = [sorted(item for item in part if isinstance(item, int)) for part in joined.to_sets()]
    used = graph.cone(read, ())
    alone = {graph.producer[name].name for name in fixed}.difference(node.name for node in used)
    parts += [[graph.places[name]] for name in alone]
    return [[graph.nodes[place] for place in part] for part in sorted(parts, key=lambda part: part[-1])]


def _with_fixed(graph: Graph, nodes: Sequence[Node], fixed: Collection[str], available: Collection[str]) -> list[Node]:
    """Return nodes plus those that compute their constant inputs, except for values in `available`."""
    read = (name for node in nodes for name in node.reads if name in fixed and name not in available)
    return [*nodes, *graph.cone(read, available)]


def _fixed(graph: Graph, inside: Collection[str]) -> frozenset[str]:
    """Return the inside values that are computed from constants alone, by nodes with no other outputs."""
    found: set[str] = set()
    known = {*graph.constants}
    for node in graph.nodes:
        made = [name for name in node.outputs if name]
        if known.issuperset(node.reads) and all(name in inside for name in made):
            known.update(made)
            found.update(made)
    return frozenset(found)


def _matching_values(group: Group, eager: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the inside values from which every path ends at a value that matches eager PyTorch."""
    users: dict[str, list[Node]] = {}
    for node in group.nodes:
        for name in node.reads:
            users.setdefault(name, []).append(node)
    sound: dict[str, bool] = {}
    for node in reversed(group.nodes):
        sound[node.name] = all(
            all(sound[user.name] for user in users.get(name, ()))
            if name in group.inside
            else _reproduced(eager.get(name), found.get(name + AGAIN, found.get(name)))
            for name in node.outputs
            if name
        )
    return {name for node in group.nodes if sound[node.name] for name in node.outputs if name in group.inside}


def _reproduced(eager: torch.Tensor | None, again: torch.Tensor | None) -> bool:
    return eager is None or compare_tensors(eager, again).close
