"""Reference values for what the translation of an operation has inside.

An exporter translates one operation of the torch program into several ONNX nodes. Eager PyTorch has the value at the
end of them, not those between. These are had by running the untouched translation once, with every value that eager has
cut and fed from eager: each operation then starts from the truth, and is believed if it ends at it. Several operations
are run at once, as far as the buffer allows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from filch.export import AGAIN, BackendError, Cutter, Graph, Node, Original, Program
from filch.export.backends import Compiled, get_backend, limit_backend

from ._metrics import compare_tensors


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


class Derivation:
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
        self._drawn = original.unpredictable.drawn
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
    fed = {*original.names, *graph.inputs, *graph.constants}
    inside = {name for name in graph.producer if name not in fed}
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    missing = inside & {*wanted}
    taken: dict[int, Node] = {}
    size = 0
    for nodes in _translations(graph, inside, places):
        made = {name for node in nodes for name in node.outputs if name}
        if missing & made:
            missing -= made
            more = sum(sizes.get(name, 0) for name in made)
            if taken and size + more > buffer:
                yield _group(graph, taken, inside)
                taken, size = {}, 0
            taken |= {places[node.name]: node for node in nodes}
            size += more
    if taken:
        yield _group(graph, taken, inside)


def _group(graph: Graph, nodes: Mapping[int, Node], inside: Collection[str]) -> Group:
    ordered = tuple(nodes[place] for place in sorted(nodes))
    made = frozenset(name for node in ordered for name in node.outputs if name in inside)
    touched = {name for node in ordered for name in (*node.reads, *node.outputs) if name}
    return Group(ordered, made, frozenset(touched - made - {*graph.inputs, *graph.constants}))


def _translations(graph: Graph, inside: Collection[str], places: Mapping[str, int]) -> list[list[Node]]:
    """The nodes that hang together by values inside, in the order of the last one of each.

    What is made of constants alone goes with each that reads it, and holds nothing together: an optimiser lets all
    layers share one constant.
    """
    fixed = _fixed(graph, inside)
    group: dict[str, list[Node]] = {}  # by the names of values inside
    found: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if any(name in fixed for name in node.outputs):
            continue
        parts = [group[name] for name in node.reads if name in group]
        parts += [fixed[name] for name in node.reads if name in fixed]
        if not parts and not any(name in inside for name in node.outputs):
            continue
        whole = _together(*parts, [node])
        for part in parts:
            found.pop(id(part), None)
        found[id(whole)] = whole
        group |= {name: whole for item in whole for name in item.outputs if name in inside and name not in fixed}
    read = {item.name for whole in found.values() for item in whole}
    alone = [nodes for nodes in fixed.values() if nodes[-1].name not in read]
    return sorted([*found.values(), *alone], key=lambda nodes: places[nodes[-1].name])


def _fixed(graph: Graph, inside: Collection[str]) -> dict[str, list[Node]]:
    """For each value inside that is made of constants alone, the nodes that make it, in order."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        made = [name for name in node.outputs if name]
        if all(name in inside for name in made) and all(
            name in found or name in graph.constants for name in node.reads
        ):
            nodes = _together(*(found[name] for name in node.reads if name in found), [node])
            found |= dict.fromkeys(made, nodes)
    return found


def _together(*parts: Sequence[Node]) -> list[Node]:
    """All their nodes, each once."""
    return list({node.name: node for part in parts for node in part}.values())


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
