"""Write graphs as text, one line per node, in the format of hidet's flow graphs."""

import json
import re
from collections.abc import Iterator
from typing import Any

from filch.steal.text import named, shortened, visible

from ..common._garbage_collection import no_collection
from ._facts import Facts, worst
from ._finding import Finding
from ._nodes import Dim, GraphFields, Node, Value

_PLAIN = re.compile(r"""[^\s"'(),=;#{}\\]+""")  # a name that needs no quotes
_DIM = re.compile(r"[\w +*/()-]+")  # an expression of symbols
_SHORT = re.compile(r"<(graph of \d+ nodes|graphs|\w+\[[\d, ]*\])>")  # tensors and subgraphs in `Node.attributes`
_LONGEST = 20_000  # characters of a name or an attribute
_ARROW = "<------"  # hidet's mark of lines that need attention


@no_collection()
def format_graph(graph: GraphFields, *, modules: bool = False, sources: bool = False, title: str = "Graph") -> str:
    """Write a graph as text; see `Graph.text`.

    The grammar is that of hidet's `print(graph)`. Names that do not fit the grammar are quoted and escaped as in JSON.
    """
    blocks = [
        "\n".join(
            [
                *(f"# {visible(remark)}" for remark in graph.remarks),
                *_Lines(graph, modules=modules, sources=sources)(title),
            ]
        )
    ]
    for name, function in graph.functions.items():
        blocks.append("\n".join(_Lines(function, modules=modules, sources=sources)(f"Function {_name(name)}")))
    return "\n\n".join(blocks)


class _Lines:
    """Writes one graph."""

    def __init__(self, graph: GraphFields, *, modules: bool, sources: bool) -> None:
        self._graph = graph
        self._facts = Facts(graph)
        self._modules = modules
        self._sources = sources

    def __call__(self, title: str) -> Iterator[str]:
        graph = self._graph
        yield f"{title}({', '.join(map(self._typed, graph.inputs))}){{"
        constants = {*graph.constants}
        used = dict.fromkeys([*(name for node in graph.nodes for name in node.reads), *graph.outputs])
        for name in (name for name in used if name in constants):
            finding = worst(graph.findings.get(name, ()))
            yield f"  {_name(name)} = Constant({_type(graph.values.get(name))}){_comment(_result(finding))}"
        for node in graph.nodes:
            yield f"  {self._line(node)}{self._notes(node)}"
        yield f"  return {', '.join(map(_name, graph.outputs))}"
        yield "}"

    def _typed(self, name: str) -> str:
        return f"{_name(name)}: {_type(self._graph.values.get(name))}"

    def _line(self, node: Node) -> str:
        outputs = ", ".join(self._typed(name) for name in node.outputs if name)
        arguments = [_name(name) if name else "_" for name in node.inputs]
        arguments += [f"{_name(name)}={_literal(value)}" for name, value in node.attributes.items()]
        if fusion := self._facts.fusion(node):
            arguments.append(f"fusion={_quoted(fusion)}")
        return f"{outputs} = {_name(node.op)}({', '.join(arguments)})"

    def _notes(self, node: Node) -> str:
        module = node.module if self._modules else None
        source = node.source if self._sources else None
        return _comment(module, source, _result(self._facts.worst(node)))


def _comment(*notes: str | None) -> str:
    shown = [named(note, _LONGEST) for note in notes if note]
    return f"  # {', '.join(shown)}" if shown else ""


def _result(finding: Finding | None) -> str:
    if finding is None:
        return ""
    result = f"error {finding.error:.1e}" if finding.error is not None and finding.judged else finding.status
    return f"{result} {_ARROW}" if finding.diverged else result


def _name(name: str) -> str:
    plain = len(name) <= _LONGEST and _PLAIN.fullmatch(name) and name.isprintable()
    return name if plain else _quoted(name)


def _quoted(text: str) -> str:
    """Quote a text as JSON does, but leave printable characters unescaped."""
    return f'"{visible(json.dumps(shortened(text, _LONGEST), ensure_ascii=False)[1:-1])}"'


def _type(value: Value | None) -> str:
    if value is None:
        return "?[?]"
    dims = "?" if value.shape is None else ", ".join(map(_dim, value.shape))
    return f"{_name(value.dtype or '?')}[{dims}]"


def _dim(dim: Dim) -> str:
    if isinstance(dim, str):
        return dim if _DIM.fullmatch(dim) else _quoted(dim)
    return "?" if dim is None else str(dim)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return value[1:-1] if _SHORT.fullmatch(value) else _quoted(value)
    if isinstance(value, list | tuple):
        items = ", ".join(map(_literal, value))
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    return visible(str(value))
