"""Graphs as text for Graphviz."""

from collections.abc import Iterator

from .._finding import Finding
from .._folding import Folding, fold
from .._graph import Graph, Node
from ._colours import colour, is_dark
from ._facts import Facts, cut, one_line, worst
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

    Its nodes are numbered: operations first, then inputs, constants and outputs. What a comparison found colours them.
    """
    return "\n".join(_Dot(graph).lines()) + "\n"


class _Dot:
    """Writes one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._facts = Facts(graph)
        self._folding: Folding = fold(graph)
        read = {name for node in graph.nodes for name in node.reads}
        self._given = [*graph.inputs, *(name for name in graph.constants if name in read)]
        self._source = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs if name}
        self._source |= {name: place for place, name in enumerate(self._given, len(graph.nodes))}

    def lines(self) -> Iterator[str]:
        yield f"digraph {_quoted(cut(self._graph.name or 'graph', _LABEL))} {{"
        yield from (f"  {line}" for line in _STYLE)
        if self._graph.remarks:
            yield f"  label={_quoted(*(cut(remark, 2 * _LABEL) for remark in self._graph.remarks))};"
        yield from self._boxes()
        yield from self._edges()
        yield "}"

    def _boxes(self) -> Iterator[str]:
        """All that is drawn, and the frames around it: of these, Netron reads nothing, and so they only name it."""
        graph, folding = self._graph, self._folding
        inside: list[list[str]] = [[] for _ in folding.groups]
        for place, node in enumerate(graph.nodes):
            yield f"  {self._operation(place, node)}"
            self._put(inside, folding.places[place], place)
        for name in self._given:
            yield f"  {self._held(name)}"
            self._put(inside, self._home(name), self._source[name])
        for place, name in enumerate(graph.outputs, len(graph.nodes) + len(self._given)):
            yield f"  {self._box(place, 'output', name)}"
        yield from self._frames(inside)

    def _put(self, inside: list[list[str]], group: int | None, place: int) -> None:
        if group is not None:
            inside[group].append(f"{place};")

    def _frames(self, inside: list[list[str]]) -> Iterator[str]:
        """The frames, one in the other; without recursion, as modules nest as they like."""
        groups = self._folding.groups
        for place in reversed(range(len(groups))):  # those inside stand behind those around
            group = groups[place]
            title = f"{group} ({group.type.rpartition('.')[2]})" if group.type else str(group)
            framed = f"subgraph cluster_{place} {{ label={_quoted(cut(title, _LABEL))}; {' '.join(inside[place])} }}"
            if group.parent is None:
                yield f"  {framed}"
            else:
                inside[group.parent].append(framed)

    def _home(self, name: str) -> int | None:
        """The group of all that read a constant; None for what is read in several, and for an input."""
        if name in self._graph.inputs:
            return None
        groups = {self._folding.places[self._source[self._made(node)]] for node in self._graph.consumers[name]}
        return groups.pop() if len(groups) == 1 else None

    def _made(self, node: Node) -> str:
        return next((name for name in node.outputs if name), "")

    def _operation(self, place: int, node: Node) -> str:
        found = self._facts.worst(node)
        title = [node.op, *([_told(found)] if found else [])]
        facts = [f"{name}: {text}" for name, text in self._facts.of_node(node).items()]
        role = "operation" if node.reads else "constant"
        return _statement(place, title, [node.name, *facts], role, found)

    def _held(self, name: str) -> str:
        return self._box(self._source[name], "input" if name in self._graph.inputs else "constant", name)

    def _box(self, place: int, role: str, name: str) -> str:
        found = worst(self._graph.findings.get(name, ()))
        title = [name, *([_told(found)] if found else []), *self._type(name)]
        return _statement(place, title, [f"{role} {name}"], role, found)

    def _type(self, name: str) -> list[str]:
        value = self._graph.values.get(name)
        return [str(value)] if value and value.dtype else []

    def _edges(self) -> Iterator[str]:
        """A line from what makes a value to what reads it; what is read and made by nothing is left out."""
        for place, node in enumerate(self._graph.nodes):
            for name in dict.fromkeys(node.reads):
                if name in self._source:
                    label = [] if name in self._given else self._type(name)
                    yield f"  {self._source[name]} -> {place}{_attributes(label=label, tooltip=[name])};"
        for place, name in enumerate(self._graph.outputs, len(self._graph.nodes) + len(self._given)):
            if name in self._source:
                yield f"  {self._source[name]} -> {place}{_attributes(tooltip=[name])};"


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
    return '"' + r"\n".join(map(_escaped, lines)) + '"'


def _escaped(line: str) -> str:
    # Netron ends a string at `\"`, too; in what is shown, Graphviz reads `&quot;` as HTML does.
    return one_line(line).replace("\\", "\\\\").replace("&", "&amp;").replace('"', "&quot;")
