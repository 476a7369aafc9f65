"""Group the nodes of a graph by module call, so that a view can draw each module as one box that can be opened."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from ._graph import Graph
from ._nodes import Frame, Node, shared_calls

Path = tuple[Frame, ...]
Key = int | tuple[str, int]  # a node by its index, or a group by its path and call


@dataclass(frozen=True)
class Group:
    """The nodes of one box: those of a module call, and of the calls in it.

    Attributes:
        parent: the index of the enclosing group in `Folding.groups`; None at the top.
        path: the module's path.
        name: the module's path relative to the enclosing group (`"layers.0"`).
        type: the module's class; `""` if not known.
        call: the number of earlier groups of the same module in the same parent. A module has one group per call if it
            is called again on values computed from its previous output.
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

    With each group drawn as one box, the graph has no cycle, whichever boxes are open.

    Attributes:
        groups: the groups, parents before children.
        node_groups: for each node of the graph, the index in `groups` of its innermost group; None for no group.
    """

    groups: tuple[Group, ...]
    node_groups: tuple[int | None, ...]


def fold(graph: Graph) -> Folding:
    """Group the nodes of a graph by the module calls that they run in.

    A node that computes several nodes of `Graph.source_graph` belongs to the innermost call that contains all of them.
    A node without a known call belongs to the innermost call that contains its users, or else its producers.
    """
    return _Folder(graph).folding()


class _Folder:
    """Groups the nodes of one graph, which it refers to by their indices."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        producer = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
        # For each node, the nodes that compute what it reads.
        self._producers = [sorted({producer[name] for name in node.reads if name in producer}) for node in graph.nodes]
        origin_paths = _origin_paths(graph)
        # A kernel that computes several modules belongs to none of them, whatever its own `module` is.
        paths = [_path(node) if (path := origin_paths[node.name]) is None else path for node in graph.nodes]
        self._paths = self._fill(paths)
        self._groups: list[Group] = []
        self._node_groups: list[int | None] = [None] * len(graph.nodes)

    def folding(self) -> Folding:
        """Group the nodes, outermost calls first."""
        # The nodes of a group, the depth of the calls in it, and its index.
        pending: list[tuple[list[int], int, int | None]] = [([*range(len(self._nodes))], 0, None)]
        while pending:
            nodes, depth, parent = pending.pop()
            for key, members in self._items(nodes, depth).items():
                if isinstance(key, int):
                    self._node_groups[key] = parent
                else:
                    pending.append((members, depth + 1, self._add(self._paths[members[0]], depth, parent, key[1])))
        return Folding(tuple(self._groups), tuple(self._node_groups))

    def _add(self, path: Path, depth: int, parent: int | None, call: int) -> int:
        """Add a group for the call at `depth` of a path, and return its index."""
        frame, enclosing = path[depth], path[depth - 1].path if depth else ""
        name = frame.path.removeprefix(f"{enclosing}.") if enclosing else frame.path
        self._groups.append(Group(parent, frame.path, name, frame.type, call))
        return len(self._groups) - 1

    def _items(self, nodes: Sequence[int], depth: int) -> dict[Key, list[int]]:
        """Return the members of a group: nodes by index, groups by path and call, split until there is no cycle."""
        keys: dict[int, Key] = {
            # A node without a deeper call is an item itself.
            node: node if len(self._paths[node]) <= depth else (self._paths[node][depth].path, 0)
            for node in nodes
        }
        for split in (self._by_call, self._by_run):
            for cycle in self._cycles(keys):
                keys |= split([node for node in nodes if keys[node] in cycle], keys)
        items: dict[Key, list[int]] = {}
        for node in nodes:
            items.setdefault(keys[node], []).append(node)
        return _numbered(items)

    def _cycles(self, keys: Mapping[int, Hashable]) -> list[set[Hashable]]:
        """Return the sets of boxes that depend on each other; `keys` has the box of each node."""
        boxes = nx.DiGraph()
        boxes.add_edges_from(
            (keys[producer], keys[node])
            for node in keys
            for producer in self._producers[node]
            if producer in keys and keys[producer] != keys[node]
        )
        return [cycle for cycle in nx.strongly_connected_components(boxes) if len(cycle) > 1]

    def _by_call(self, nodes: Sequence[int], keys: Mapping[int, Key]) -> dict[int, tuple[str, int]]:
        """Start a new group where a module reads a value that was computed outside of it from its previous output.

        Args:
            nodes: the nodes of a cycle, in order.
            keys: the box of each node.

        Returns:
            the new key of each node that is in a module's box: the path, and the number of the call.
        """
        last_calls: dict[int, dict[str, int]] = {}  # for each node, the last call of each module that it depends on
        groups: dict[int, tuple[str, int]] = {}
        for node in nodes:
            own_last_calls: dict[str, int] = {}
            key = keys[node]
            path = key[0] if isinstance(key, tuple) else None
            call = 0
            for producer in self._producers[node]:
                for module, number in last_calls.get(producer, {}).items():
                    own_last_calls[module] = max(own_last_calls.get(module, 0), number)
                if path is not None and producer in last_calls:
                    is_inside = producer in groups and groups[producer][0] == path
                    call = max(call, groups[producer][1] if is_inside else last_calls[producer].get(path, -1) + 1)
            if path is not None:
                groups[node] = (path, call)
                own_last_calls[path] = max(own_last_calls.get(path, 0), call)
            last_calls[node] = own_last_calls
        return groups

    def _by_run(self, nodes: Sequence[int], keys: Mapping[int, Key]) -> dict[int, tuple[str, int]]:
        """Start a new group wherever nodes of another group stand in between, which leaves no cycle; see `_by_call`."""
        groups: dict[int, tuple[str, int]] = {}
        count = dict(sorted(key for key in keys.values() if isinstance(key, tuple)))  # the highest call of each module
        previous: Key | None = None
        for node in nodes:
            key = keys[node]
            if isinstance(key, tuple):
                path = key[0]
                count[path] += key != previous  # True is 1: a new group begins
                groups[node] = (path, count[path])
            previous = key
        return groups

    def _fill(self, paths: list[Path | None]) -> list[Path]:
        """Fill in missing paths: the calls shared by all users of the node, or else by all nodes that it reads."""
        users: dict[int, list[int]] = {}
        for node, producers in enumerate(self._producers):
            for producer in producers:
                users.setdefault(producer, []).append(node)
        filled = list(paths)
        for node in reversed(range(len(filled))):
            if filled[node] is None:
                filled[node] = _common([filled[user] for user in users.get(node, ())])
        return [
            _common([paths[producer] for producer in self._producers[node]]) or () if path is None else path
            for node, path in enumerate(filled)
        ]


def _numbered(items: Mapping[Key, list[int]]) -> dict[Key, list[int]]:
    """Renumber the groups of each module in the order in which they begin."""
    count: Counter[str] = Counter()
    numbered: dict[Key, list[int]] = {}
    for key, members in items.items():
        if isinstance(key, int):
            numbered[key] = members
        else:
            numbered[key[0], count[key[0]]] = members
            count[key[0]] += 1
    return numbered


def _path(node: Node) -> Path | None:
    """Return the calls of a node without the model's own, which contains all of them; None if not known."""
    if node.stack:
        return tuple(frame for frame in node.stack if frame.path)
    if node.module is None:
        return None
    parts = node.module.split(".") if node.module else []
    return tuple(Frame(".".join(parts[: count + 1])) for count in range(len(parts)))


def _origin_paths(graph: Graph) -> dict[str, Path | None]:
    """Return, for each node, the calls shared by its origins in `Graph.source_graph`; None if it has none."""
    known = {node.name: _path(node) for node in graph.source_graph.nodes} if graph.source_graph is not None else {}
    return {node.name: _common([known.get(origin) for origin in node.origins]) for node in graph.nodes}


def _common(paths: Sequence[Path | None]) -> Path | None:
    """Return the calls that the known paths have in common; None if no path is known."""
    known = [path for path in paths if path is not None]
    return shared_calls(known) if known else None
