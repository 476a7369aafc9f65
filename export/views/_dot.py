"""Write graphs in Graphviz's DOT language."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from filch.steal.text._markup import for_dot

from ..graph._facts import cut, node_facts
from ..graph._finding import Finding
from ..graph._folding import Folding, fold
from ..graph._graph import Graph
from ..graph._nodes import Node
from ._colors import color, is_dark
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
    """Return a graph in DOT: a node for each operation, input, output and constant, and a cluster for each module.

    Nodes are numbered: operations first, then inputs, constants and outputs; the nodes of the functions that it calls
    follow, with a cluster for each function. Findings of a comparison set the colors.
    """
    writer = _Dot(graph)
    # Nodes outside of all clusters need no list here; those of a function do, to be inside of its cluster.
    lines = [*_STYLE, f"label={_quoted(*(cut(remark, 2 * _LABEL) for remark in graph.remarks))};", *writer.nodes()]
    lines += [*writer.clusters(), *writer.edges()]
    first = writer.end
    for name, function in graph.functions.items():
        body = _Dot(function, first)
        cluster = " ".join([f"label={_quoted(cut(f'Function {name}', _LABEL))};", *body.clusters(), *body.ungrouped()])
        lines += [*body.nodes(), f"subgraph cluster_function_{first} {{ {cluster} }}", *body.edges()]
        first = body.end
    return "\n  ".join([f"digraph {_quoted(cut(graph.name or 'graph', _LABEL))} {{", *lines]) + "\n}\n"


class _Dot:
    """Writes one graph, whose nodes have the numbers from `first` to before `end`."""

    def __init__(self, graph: Graph, first: int = 0) -> None:
        self._graph = graph
        self._first = first
        self._folding: Folding = fold(graph)
        read = {name for node in graph.nodes for name in node.reads}
        # The inputs and the constants that are read, which no node computes.
        self._uncomputed = [*graph.inputs, *(name for name in graph.constants if name in read)]
        # By value, the number of the DOT node that its edges start from.
        self._source = {name: number for number, node in enumerate(graph.nodes, first) for name in node.outputs if name}
        self._source |= {name: number for number, name in enumerate(self._uncomputed, first + len(graph.nodes))}
        self._first_output = first + len(graph.nodes) + len(self._uncomputed)
        self.end = self._first_output + len(graph.outputs)

    def nodes(self) -> Iterator[str]:
        """Yield the statements of all nodes."""
        for number, node in enumerate(self._graph.nodes, self._first):
            yield self._operation(number, node)
        for name in self._uncomputed:
            yield self._boundary_node(self._source[name], "input" if name in self._graph.inputs else "constant", name)
        for number, name in enumerate(self._graph.outputs, self._first_output):
            yield self._boundary_node(number, "output", name)

    def clusters(self) -> Iterator[str]:
        """Yield the outermost clusters. They contain only the numbers of nodes, because Netron ignores clusters.

        They are built without recursion, because modules may be nested deeply.
        """
        groups = self._folding.groups
        contents = [[f"{number};" for number in self._members.get(index, ())] for index in range(len(groups))]
        for index, group in reversed([*enumerate(groups)]):  # inner groups come after outer ones
            title = f"{group} ({group.type.rpartition('.')[2]})" if group.type else str(group)
            content = f"label={_quoted(cut(title, _LABEL))}; {' '.join(contents[index])}"
            cluster = f"subgraph cluster_{self._first + index} {{ {content} }}"
            if group.parent is None:
                yield cluster
            else:
                contents[group.parent].append(cluster)

    def ungrouped(self) -> Iterator[str]:
        """Yield the nodes outside of all clusters."""
        return (f"{number};" for number in (*self._members.get(None, ()), *range(self._first_output, self.end)))

    @cached_property
    def _members(self) -> Mapping[int | None, Sequence[int]]:
        """The numbers of the nodes in each group; None is for nodes without a group."""
        members: dict[int | None, list[int]] = {}
        for number, group in enumerate(self._folding.node_groups, self._first):
            members.setdefault(group, []).append(number)
        for name in self._uncomputed:
            members.setdefault(self._uncomputed_group(name), []).append(self._source[name])
        return members

    def _uncomputed_group(self, name: str) -> int | None:
        """Return the group to draw a constant in: that of its consumers if they share one. Inputs are in no group."""
        if name in self._graph.inputs:
            return None
        indices = (self._graph.node_indices[node.name] for node in self._graph.consumers[name])
        groups = {self._folding.node_groups[index] for index in indices}
        return groups.pop() if len(groups) == 1 else None

    def _operation(self, number: int, node: Node) -> str:
        finding = self._graph.worst_finding(*node.outputs)
        title = [node.op, *([_finding_text(finding)] if finding else [])]
        facts = [f"{name}: {text}" for name, text in node_facts(self._graph, node).items()]
        role = "operation" if node.reads else "constant"  # a node that reads nothing computes a constant
        return _statement(number, title, [node.name, *facts], role, finding)

    def _boundary_node(self, number: int, role: str, name: str) -> str:
        finding = self._graph.worst_finding(name)
        title = [name, *([_finding_text(finding)] if finding else []), *self._type_lines(name)]
        return _statement(number, title, [f"{role} {name}"], role, finding)

    def _type_lines(self, name: str) -> list[str]:
        """Return a value's type, and its numbers if they are stored, as a line of a label; empty without a dtype."""
        value = self._graph.values.get(name)
        if value is None or not value.dtype:
            return []
        return [str(value) if value.content is None else f"{value} = {_literal(value.content)}"]

    def edges(self) -> Iterator[str]:
        """Yield an edge from the producer of a value to each consumer; values without a producer have none."""
        for number, node in enumerate(self._graph.nodes, self._first):
            for name in dict.fromkeys(node.reads):
                if name in self._source:
                    label = [] if name in self._uncomputed else self._type_lines(name)  # else in the node itself
                    yield f"{self._source[name]} -> {number}{_attributes(label=label, tooltip=[name])};"
        for number, name in enumerate(self._graph.outputs, self._first_output):
            if name in self._source:
                yield f"{self._source[name]} -> {number}{_attributes(tooltip=[name])};"


def _literal(content: Any) -> str:
    """Format the numbers of a constant with few digits: `8`, `[0.5, 1]`."""
    if isinstance(content, list):
        return f"[{', '.join(map(_literal, content))}]"
    return f"{content:g}" if isinstance(content, float) else str(content)


def _statement(number: int, title: list[str], facts: list[str], role: str, finding: Finding | None) -> str:
    """Return the statement of a node; a finding determines its color, else its role (see `_ROLES`)."""
    fill = color(finding) if finding else _ROLES[role]
    font = ', fontcolor="#ffffff"' if is_dark(fill) else ""
    return f"{number}{_attributes(label=title, tooltip=facts)[:-1]}, fillcolor={_quoted(fill)}{font}];"


def _finding_text(finding: Finding) -> str:
    """Return the error of a finding, else its status, for the title of a node."""
    return f"error {finding.error:.1e}" if finding.error is not None and finding.judged else finding.status


def _attributes(*, tooltip: list[str], label: list[str] | None = None) -> str:
    """Return a list of DOT attributes in brackets."""
    attributes = [f"label={_quoted(*(cut(line, _LABEL) for line in label))}"] if label else []
    attributes.append(f"tooltip={_quoted(*(cut(line, _TOOLTIP) for line in tooltip))}")
    return f" [{', '.join(attributes)}]"


def _quoted(*lines: str) -> str:
    r"""Quote lines as a DOT string, escaping `"`, sequences such as `\N`, and entities such as `&lt;`."""
    return '"' + r"\n".join(map(for_dot, lines)) + '"'
