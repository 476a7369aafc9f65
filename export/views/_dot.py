"""Graphs as text for Graphviz."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from filch.steal.text import for_dot

from ..graph._facts import Facts, cut, worst
from ..graph._finding import Finding
from ..graph._folding import Folding, fold
from ..graph._graph import Graph
from ..graph._nodes import Node
from ._colours import colour, is_dark
from ._view import Drawing

_ROLES = {"input": "#f3b5ad", "output": "#b7dcae", "constant": "#e4e4e4", "operation": "#fbd9a5", "value": "#5d96c9"}
_LABEL, _TOOLTIP = 60, 400  # characters of a line
_STYLE = (
    'graph [fontname="Helvetica", fontsize=12, labeljust=l, color="#9a9a9a", style=rounded, ranksep=0.4];',
    'node [fontname="Helvetica", fontsize=11, shape=box, style="filled,rounded", color="#6b6b6b", height=0.3];',
    f'edge [fontname="Helvetica", fontsize=9, color="{_ROLES["value"]}", fontcolor="#555555", arrowsize=0.6];',
)


class DotView:
    """See `View`."""

    suffixes: tuple[str, ...] = (".dot",)

    def draw(self, graph: Graph, suffix: str) -> Drawing:
        """See `View.draw`."""
        return Drawing.of(dot_text(graph), suffix)


def dot_text(graph: Graph) -> str:
    """A graph in Graphviz's language: a box for each operation, input, output and constant, in a frame for each module.

    Its nodes are numbered: operations first, then inputs, constants and outputs; those of the functions that it calls
    follow, in a frame for each. What a comparison found colours them.
    """
    whole = _Dot(graph)
    lines = [*_STYLE, f"label={_quoted(*(cut(remark, 2 * _LABEL) for remark in graph.remarks))};", *whole.boxes()]
    lines += [*whole.frames(), *whole.edges()]
    first = whole.end
    for name, function in graph.functions.items():
        part = _Dot(function, first)
        framed = " ".join([f"label={_quoted(cut(f'Function {name}', _LABEL))};", *part.frames(), *part.outside()])
        lines += [*part.boxes(), f"subgraph cluster_function_{first} {{ {framed} }}", *part.edges()]
        first = part.end
    return "\n  ".join([f"digraph {_quoted(cut(graph.name or 'graph', _LABEL))} {{", *lines]) + "\n}\n"


class _Dot:
    """Writes one graph, whose boxes have the numbers from `first` to before `end`."""

    def __init__(self, graph: Graph, first: int = 0) -> None:
        self._graph = graph
        self._facts = Facts(graph)
        self._first = first
        self._folding: Folding = fold(graph)
        self._group = {node.name: group for node, group in zip(graph.nodes, self._folding.places, strict=True)}
        read = {name for node in graph.nodes for name in node.reads}
        self._given = [*graph.inputs, *(name for name in graph.constants if name in read)]
        self._source = {name: place for place, node in enumerate(graph.nodes, first) for name in node.outputs if name}
        self._source |= {name: place for place, name in enumerate(self._given, first + len(graph.nodes))}
        self._last = first + len(graph.nodes) + len(self._given)
        self.end = self._last + len(graph.outputs)

    def boxes(self) -> Iterator[str]:
        """All that is drawn."""
        for place, node in enumerate(self._graph.nodes, self._first):
            yield self._operation(place, node)
        for name in self._given:
            yield self._box(self._source[name], "input" if name in self._graph.inputs else "constant", name)
        for place, name in enumerate(self._graph.outputs, self._last):
            yield self._box(place, "output", name)

    def frames(self) -> Iterator[str]:
        """The frames around it: of these Netron reads nothing, and so they only name what is in them.

        They stand one in the other, without recursion, as modules nest as they like.
        """
        groups = self._folding.groups
        inside = [[f"{place};" for place in self._members.get(group, ())] for group in range(len(groups))]
        for place in reversed(range(len(groups))):  # those inside stand behind those around
            group = groups[place]
            title = f"{group} ({group.type.rpartition('.')[2]})" if group.type else str(group)
            held = f"label={_quoted(cut(title, _LABEL))}; {' '.join(inside[place])}"
            framed = f"subgraph cluster_{self._first + place} {{ {held} }}"
            if group.parent is None:
                yield framed
            else:
                inside[group.parent].append(framed)

    def outside(self) -> Iterator[str]:
        """What is in no frame."""
        return (f"{place};" for place in (*self._members.get(None, ()), *range(self._last, self.end)))

    @cached_property
    def _members(self) -> Mapping[int | None, Sequence[int]]:
        """The numbers of what stands in each group; None is for what stands in none."""
        found: dict[int | None, list[int]] = {}
        for place, group in enumerate(self._folding.places, self._first):
            found.setdefault(group, []).append(place)
        for name in self._given:
            found.setdefault(self._home(name), []).append(self._source[name])
        return found

    def _home(self, name: str) -> int | None:
        """The group of all that read a constant; None for what is read in several, and for an input."""
        if name in self._graph.inputs:
            return None
        groups = {self._group[node.name] for node in self._graph.consumers[name]}
        return groups.pop() if len(groups) == 1 else None

    def _operation(self, place: int, node: Node) -> str:
        found = self._facts.worst(node)
        title = [node.op, *([_told(found)] if found else [])]
        facts = [f"{name}: {text}" for name, text in self._facts.of_node(node).items()]
        role = "operation" if node.reads else "constant"
        return _statement(place, title, [node.name, *facts], role, found)

    def _box(self, place: int, role: str, name: str) -> str:
        found = worst(self._graph.findings.get(name, ()))
        title = [name, *([_told(found)] if found else []), *self._type(name)]
        return _statement(place, title, [f"{role} {name}"], role, found)

    def _type(self, name: str) -> list[str]:
        value = self._graph.values.get(name)
        if value is None or not value.dtype:
            return []
        return [str(value) if value.content is None else f"{value} = {_literal(value.content)}"]

    def edges(self) -> Iterator[str]:
        """A line from what makes a value to what reads it; what is read and made by nothing is left out."""
        for place, node in enumerate(self._graph.nodes, self._first):
            for name in dict.fromkeys(node.reads):
                if name in self._source:
                    label = [] if name in self._given else self._type(name)
                    yield f"{self._source[name]} -> {place}{_attributes(label=label, tooltip=[name])};"
        for place, name in enumerate(self._graph.outputs, self._last):
            if name in self._source:
                yield f"{self._source[name]} -> {place}{_attributes(tooltip=[name])};"


def _literal(content: Any) -> str:
    """The numbers of a constant with the digits that a reader needs: `8`, `[0.5, 1]`."""
    if isinstance(content, list):
        return f"[{', '.join(map(_literal, content))}]"
    return f"{content:g}" if isinstance(content, float) else str(content)


def _statement(place: int, title: list[str], facts: list[str], role: str, found: Finding | None) -> str:
    fill = colour(found) if found else _ROLES[role]
    return f"{place}{_attributes(label=title, tooltip=facts)[:-1]}, fillcolor={_quoted(fill)}{_ink(fill)}];"


def _ink(fill: str) -> str:
    return ', fontcolor="#ffffff"' if is_dark(fill) else ""


def _told(found: Finding) -> str:
    return f"error {found.error:.1e}" if found.error is not None and found.judged else found.status


def _attributes(*, tooltip: list[str], label: list[str] | None = None) -> str:
    told = [f"label={_quoted(*(cut(line, _LABEL) for line in label))}"] if label else []
    told.append(f"tooltip={_quoted(*(cut(line, _TOOLTIP) for line in tooltip))}")
    return f" [{', '.join(told)}]"


def _quoted(*lines: str) -> str:
    r"""A string of some lines: `"` would end it, `\N` and the like would be replaced, `&lt;` would become `<`."""
    return '"' + r"\n".join(map(for_dot, lines)) + '"'
