"""Reference values for what the translation of an operation has inside.

An exporter translates one operation of the torch program into several ONNX nodes. Eager PyTorch has the value at the
end of them, not those between. These are had by running the untouched translation once, with every value that eager has
cut and fed from eager: each operation then starts from the truth, and is believed if it ends at it. Several operations
are run at once, as far as the buffer allows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from filch.export import BackendError, Graph, Node, Original, Program
from filch.export.backends import Compiled, get_backend

from ._metrics import compare_tensors

_AGAIN = "//again"


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
        self._original = original
        self._backend = get_backend("onnxruntime-cpu")
        self._compiled: dict[Group, Compiled | None] = {}
        self._by_name = {name: group for group in _groups(original, wanted, sizes, buffer) for name in group.inside}

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
        believed = _believed(group, known, found)
        return {name: tensor for name, tensor in found.items() if name in believed}

    def _compile(self, group: Group) -> Compiled | None:
        original = self._original
        model = _cut(original.model.clone(), original.graph, list(group.nodes), group.inside)
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
    taken: list[Node] = []
    size = 0
    for nodes in _translations(graph, inside):
        if any(name in wanted for node in nodes for name in node.outputs if name in inside):
            more = sum(sizes.get(name, 0) for node in nodes for name in node.outputs)
            if taken and size + more > buffer:
                yield _group(graph, taken, inside)
                taken, size = [], 0
            taken += nodes
            size += more
    if taken:
        yield _group(graph, taken, inside)


def _group(graph: Graph, nodes: Sequence[Node], inside: Collection[str]) -> Group:
    names = {node.name for node in nodes}
    ordered = tuple(node for node in graph.nodes if node.name in names)
    made = frozenset(name for node in ordered for name in node.outputs if name in inside)
    touched = {name for node in ordered for name in (*node.reads, *node.outputs) if name}
    return Group(ordered, made, frozenset(touched - made - {*graph.inputs, *graph.constants}))


def _translations(graph: Graph, inside: Collection[str]) -> Iterator[list[Node]]:
    """The nodes that hang together by values inside, in the order of the last one of each."""
    group: dict[str, list[Node]] = {}  # by the names of values inside
    for node in graph.nodes:
        joined = [group[name] for name in node.reads if name in group]
        made = [name for name in node.outputs if name in inside]
        if not joined and not made:
            continue
        whole = [*{id(item): item for part in joined for item in part}.values(), node]
        for name in {name for part in whole for name in part.outputs if name in inside}:
            group[name] = whole
    last = {id(nodes): nodes for nodes in group.values()}
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    yield from sorted(last.values(), key=lambda nodes: places[nodes[-1].name])


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
            else _reproduced(eager.get(name), found.get(name + _AGAIN, found.get(name)))
            for name in node.outputs
            if name
        )
    return {name for node in group.nodes if sound[node.name] for name in node.outputs if name in group.inside}


def _reproduced(eager: torch.Tensor | None, again: torch.Tensor | None) -> bool:
    return eager is None or compare_tensors(eager, again).close


def _cut(model: ir.Model, graph: Graph, nodes: list[Node], inside: Collection[str]) -> ir.Model:
    """Only `nodes`; what they read of eager's becomes an input, what they make of it an output of another name."""
    kept = {node.name for node in nodes}
    names = [node.name for node in graph.nodes]
    read = {name for node in nodes for name in node.reads if name not in inside and name not in graph.constants}
    whole = model.graph
    values = {value.name: value for value in (*whole.inputs, *(out for node in whole for out in node.outputs))}
    whole.outputs.clear()
    feeds = {}
    for name in sorted(read):
        old = values[name]
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        old.replace_all_uses_with(new)
        old.name = name + _AGAIN
        feeds[name] = new
    for node, name in zip(list(whole), names, strict=True):
        if name in kept:
            whole.outputs.extend(out for out in node.outputs if out.name)
    whole.inputs.clear()
    whole.inputs.extend(feeds.values())
    for node, name in reversed(list(zip(list(whole), names, strict=True))):
        if name not in kept:
            whole.remove(node, safe=True)
    for name in [name for name, value in whole.initializers.items() if not value.uses()]:
        del whole.initializers[name]
    return model
