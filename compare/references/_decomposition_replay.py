"""Reference values for what the translation of an operation has inside.

An exporter translates one operation of the torch program into several ONNX nodes. Eager PyTorch has the value at the
end of them, not those between. These are had by running the untouched translation once, with every value that eager has
cut and fed from eager: each operation then starts from the truth, and is believed if it ends at it. Several operations
are run at once, as far as the buffer allows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from networkx.utils import UnionFind

from filch.export import AGAIN, BackendError, Cutter, Graph, Node, Original, Program
from filch.export.backends import Compiled, get_backend, limit_backend

from ..metrics._metrics import compare_tensors

_MOST = 4096  # nodes that are run at once: what ONNX Runtime takes to start grows with the square of their number


@dataclass(frozen=True, eq=False)
class Group:
    """Some translations that are run at once.

    Attributes:
        nodes: of the untouched graph, in order.
        inside: the names of the values that they make and eager does not have.
        needs: the names of eager's values that they start from, and end at.
    """

    nodes: tuple[Node, ...]
    inside: frozenset[str]
    needs: frozenset[str]


class DecompositionReplay:
    """The translations of one program that have values inside which are asked for.

    Args:
        original: what the program was translated from.
        wanted: the names of the values that may be asked for.
        sizes: the bytes of each value, by name.
        buffer: bytes of values that one run may make, if that can be.
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
        """The translations that make a value; None if it is none of these."""
        return self._by_name.get(name)

    def run(self, group: Group, known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values inside of translations, by name, where the translation is to be believed.

        Args:
            group: which translations.
            known: eager's values and the inputs, by name.
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
        ends = {name: tensor for name, tensor in known.items() if name not in self._drawn}  # no two draws agree
        believed = _believed(group, ends, found)
        return {name: tensor for name, tensor in found.items() if name in believed}

    def _compile(self, group: Group) -> Compiled | None:
        model = self._cutter.cut(group.nodes, group.inside)
        try:
            return self._backend.compile(Program(model), optimize=False)
        except BackendError:
            return None


def _lacks(compiled: Compiled, known: Mapping[str, torch.Tensor]) -> bool:
    return any(name not in known for name in compiled.graph.inputs)


def _groups(original: Original, wanted: Collection[str], sizes: Mapping[str, int], buffer: int) -> Iterator[Group]:
    """The translations that have wanted values inside, several at once as far as the buffer allows."""
    graph = original.graph
    outside = frozenset((*graph.inputs, *graph.constants))
    inside = graph.producer.keys() - outside.union(original.names)
    fixed = _fixed(graph, inside)
    missing = inside & {*wanted}
    taken: dict[str, Node] = {}
    held: set[str] = set()
    size = 0
    for nodes in _translations(graph, inside, fixed):
        whole = _with_fixed(graph, nodes, fixed, held)
        made = {name for node in whole for name in node.outputs if name}
        if missing.isdisjoint(made):
            continue
        missing -= made
        more = sum(sizes.get(name, 0) for name in made)
        if taken and (size + more > buffer or len(taken) >= _MOST):
            yield _group(graph, taken, inside, outside)
            taken, held, size = {}, set(), 0
            whole = _with_fixed(graph, nodes, fixed, held)
        taken |= {node.name: node for node in whole}
        held.update(name for node in whole for name in node.outputs)
        size += more
    if taken:
        yield _group(graph, taken, inside, outside)


def _group(graph: Graph, nodes: Mapping[str, Node], inside: Collection[str], outside: frozenset[str]) -> Group:
    ordered = tuple(sorted(nodes.values(), key=lambda node: graph.places[node.name]))
    made = frozenset(name for node in ordered for name in node.outputs if name in inside)
    touched = {name for node in ordered for name in (*node.reads, *node.outputs) if name}
    return Group(ordered, made, frozenset(touched - made - outside))


def _translations(graph: Graph, inside: Collection[str], fixed: frozenset[str]) -> list[list[Node]]:
    """The nodes that hang together by values inside, in the order of the last one of each.

    What is made of constants alone holds nothing together: an optimiser lets all layers share one constant. It goes
    with each that reads it, and stands alone if none does.
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


def _with_fixed(graph: Graph, nodes: Sequence[Node], fixed: Collection[str], held: Collection[str]) -> list[Node]:
    """Some nodes, with those that make what they read of constants alone, but for what is held."""
    read = (name for node in nodes for name in node.reads if name in fixed and name not in held)
    return [*nodes, *graph.cone(read, held)]


def _fixed(graph: Graph, inside: Collection[str]) -> frozenset[str]:
    """The values inside that are made of constants alone, by nodes that make nothing else."""
    found: set[str] = set()
    known = {*graph.constants}
    for node in graph.nodes:
        made = [name for name in node.outputs if name]
        if known.issuperset(node.reads) and all(name in inside for name in made):
            known.update(made)
            found.update(made)
    return frozenset(found)


def _believed(group: Group, eager: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> set[str]:
    """The values inside whose every way on ends at eager's value."""
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
