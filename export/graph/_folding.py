"""Folds a graph along the model's modules, so that a layer is one box until somebody opens it."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from ._graph import Graph
from ._nodes import Frame, Node, shared_calls

Path = tuple[Frame, ...]
Key = int | tuple[str, int]  # a node by its place, or a group by its path and call


@dataclass(frozen=True)
class Group:
    """What folds into one box: a call of a module, with all that it calls.

    Attributes:
        parent: the place of the group around it in `Folding.groups`; None at the top.
        path: the module's path.
        name: the module's path as the group around it knows it (`"layers.0"`).
        type: the module's class; `""` if not known.
        call: how many groups of the same module stand before it beside it: a module that is called again after others
            have used what it gave makes a box for each call.
    """

    parent: int | None
    path: str
    name: str
    type: str
    call: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.call + 1})" if self.call else self.name


@dataclass(frozen=True)
class Folding:
    """The groups of a graph's nodes.

    If each group is drawn as one box, whichever of them are opened, no box depends on what depends on it.

    Attributes:
        groups: each behind the group around it.
        places: for each node of the graph, the place in `groups` of the innermost group that it is in; None for none.
    """

    groups: tuple[Group, ...]
    places: tuple[int | None, ...]


def fold(graph: Graph) -> Folding:
    """Fold a graph along the calls that its nodes run in.

    A node that was made of others stands in the innermost call that is around all of these; one of which no call is
    known stands with those that it serves.
    """
    return _Folder(graph).folding()


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        index = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs if name}
        self._reads = [sorted({index[name] for name in node.reads if name in index}) for node in graph.nodes]
        made_of = _paths_before(graph)
        # A kernel that computes for several modules is of none of them, whichever it calls its own.
        paths = [_path(node) if (path := made_of[node.name]) is None else path for node in graph.nodes]
        self._paths = self._with_the_served(paths)
        self._groups: list[Group] = []
        self._places: list[int | None] = [None] * len(graph.nodes)

    def folding(self) -> Folding:
        pending: list[tuple[list[int], int, int | None]] = [([*range(len(self._nodes))], 0, None)]
        while pending:
            nodes, depth, parent = pending.pop()
            for key, members in self._items(nodes, depth).items():
                if isinstance(key, int):
                    self._places[key] = parent
                else:
                    pending.append((members, depth + 1, self._add(self._paths[members[0]], depth, parent, key[1])))
        return Folding(tuple(self._groups), tuple(self._places))

    def _add(self, path: Path, depth: int, parent: int | None, call: int) -> int:
        frame, around = path[depth], path[depth - 1].path if depth else ""
        name = frame.path.removeprefix(f"{around}.") if around else frame.path
        self._groups.append(Group(parent, frame.path, name, frame.type, call))
        return len(self._groups) - 1

    def _items(self, nodes: Sequence[int], depth: int) -> dict[Key, list[int]]:
        """What stands in a group: nodes by their places, groups by their paths and calls; without a ring."""
        keys: dict[int, Key] = {
            node: node if len(self._paths[node]) <= depth else (self._paths[node][depth].path, 0) for node in nodes
        }
        for split in (self._by_call, self._by_run):
            for ring in self._rings(keys):
                keys |= split([node for node in nodes if keys[node] in ring], keys)
        found: dict[Key, list[int]] = {}
        for node in nodes:
            found.setdefault(keys[node], []).append(node)
        return _numbered(found)

    def _rings(self, keys: Mapping[int, Hashable]) -> list[set[Hashable]]:
        boxes = nx.DiGraph()
        boxes.add_edges_from(
            (keys[read], keys[node])
            for node in keys
            for read in self._reads[node]
            if read in keys and keys[read] != keys[node]
        )
        return [ring for ring in nx.strongly_connected_components(boxes) if len(ring) > 1]

    def _by_call(self, nodes: Sequence[int], keys: Mapping[int, Key]) -> dict[int, tuple[str, int]]:
        """A new group where a module is called on what came of its last call and left it in between."""
        before: dict[int, dict[str, int]] = {}  # for each node, the last call of each module that it depends on
        found: dict[int, tuple[str, int]] = {}
        for node in nodes:
            seen: dict[str, int] = {}
            own = keys[node]
            path = own[0] if isinstance(own, tuple) else None
            call = 0
            for read in self._reads[node]:
                for other, number in before.get(read, {}).items():
                    seen[other] = max(seen.get(other, 0), number)
                if path is not None and read in before:
                    inside = read in found and found[read][0] == path
                    call = max(call, found[read][1] if inside else before[read].get(path, -1) + 1)
            if path is not None:
                found[node] = (path, call)
                seen[path] = max(seen.get(path, 0), call)
            before[node] = seen
        return found

    def _by_run(self, nodes: Sequence[int], keys: Mapping[int, Key]) -> dict[int, tuple[str, int]]:
        """A new group wherever another one's nodes stand in between, which can't make a ring."""
        found: dict[int, tuple[str, int]] = {}
        count = dict(sorted(key for key in keys.values() if isinstance(key, tuple)))  # the highest of each
        for last, node in pairwise((None, *nodes)):
            own = keys[node] if node is not None else 0
            if node is not None and isinstance(own, tuple):
                if last is None or keys[last] != own:
                    count[own[0]] += 1
                found[node] = (own[0], count[own[0]])
        return found

    def _with_the_served(self, paths: list[Path | None]) -> list[Path]:
        """A node whose calls are not known stands where all stand that read it, or else all that it reads."""
        users: dict[int, list[int]] = {}
        for node, reads in enumerate(self._reads):
            for read in reads:
                users.setdefault(read, []).append(node)
        found = list(paths)
        for node in reversed(range(len(found))):
            if found[node] is None:
                found[node] = _common([found[user] for user in users.get(node, ())])
        return [
            _common([paths[read] for read in self._reads[node]]) or () if path is None else path
            for node, path in enumerate(found)
        ]


def _numbered(found: Mapping[Key, list[int]]) -> dict[Key, list[int]]:
    """The same, with the groups of each module counted in the order in which they begin."""
    count: Counter[str] = Counter()
    numbered: dict[Key, list[int]] = {}
    for key, members in found.items():
        if isinstance(key, int):
            numbered[key] = members
        else:
            numbered[key[0], count[key[0]]] = members
            count[key[0]] += 1
    return numbered


def _path(node: Node) -> Path | None:
    """The calls of a node; the model's own is around all, and is left out."""
    if node.stack:
        return tuple(frame for frame in node.stack if frame.path)
    if node.module is None:
        return None
    parts = node.module.split(".") if node.module else []
    return tuple(Frame(".".join(parts[: count + 1])) for count in range(len(parts)))


def _paths_before(graph: Graph) -> dict[str, Path | None]:
    """For each node of a graph that was made of another one, the calls that all the nodes that it computes run in."""
    known = {node.name: _path(node) for node in graph.source_graph.nodes} if graph.source_graph is not None else {}
    return {node.name: _common([known.get(origin) for origin in node.origins]) for node in graph.nodes}


def _common(paths: Sequence[Path | None]) -> Path | None:
    """The calls that some nodes have in common; None where none has any that are known."""
    known = [path for path in paths if path is not None]
    return shared_calls(known) if known else None
