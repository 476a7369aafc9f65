"""`Graph`: one representation for FX, ONNX and compiled graphs, and its text in the format of hidet's flow graphs."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx_ir as ir

from filch.steal.text._markup import for_html, html_table
from filch.steal.text._visible import short_line, shortened, visible

from ..common._garbage_collection import no_collection
from ._finding import Finding
from ._nodes import Dim, Node, Value

_PLAIN = re.compile(r"""[^\s"'(),=;#{}\\]+""")  # a name that needs no quotes
_DIM = re.compile(r"[\w +*/()-]+")  # an expression of symbols
_SHORT = re.compile(r"<(graph of \d+ nodes|graphs|\w+\[[\d, ]*\])>")  # tensors and subgraphs in `Node.attributes`
_LONGEST = 20_000  # characters of a name or an attribute
_SHOWN = 50  # nodes in a notebook
_ARROW = "<------"  # hidet's mark of lines that need attention


@dataclass(frozen=True, repr=False)
class Graph:
    """Nodes in topological order, and the values between them.

    Attributes:
        name: the name to display.
        inputs: names of the graph's inputs.
        outputs: names of the values that it returns.
        constants: names of its weights.
        nodes: the operations.
        values: dtype and shape of each value, by name.
        functions: the model's local functions, by the operator that calls them.
        source_graph: the graph that this one was compiled from, whose nodes `Node.origins` names; or None.
        reference_graph: the graph of another implementation, whose values `Finding.places` names; or None.
        findings: the results of a comparison, by value name; one for each call in which the value was compared.
        remarks: sentences of a comparison about the whole graph.
        close: whether a comparison found the graph close to its reference; None if there was none.
        onnx: the ONNX model that the graph was read from; None if it was read from something else.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    functions: Mapping[str, "Graph"] = field(default_factory=dict)
    source_graph: "Graph | None" = field(default=None, repr=False)
    reference_graph: "Graph | None" = field(default=None, repr=False)
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict, repr=False)
    remarks: tuple[str, ...] = ()
    close: bool | None = None
    onnx: ir.Model | None = field(default=None, repr=False, compare=False)

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that computes each value, by the value's name."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each value, by the value's name."""
        consumers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                consumers.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in consumers.items()}

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of all values."""
        return frozenset((*self.inputs, *self.constants, *self.producer))

    @cached_property
    def constant_values(self) -> frozenset[str]:
        """The values that do not depend on the graph's inputs."""
        constant = set(self.constants)
        for node in self.nodes:
            if all(name in constant for name in node.reads) and not node.op.startswith("Random"):
                constant.update(node.outputs)
        return frozenset(constant)

    def computed_from(self, names: Iterable[str]) -> frozenset[str]:
        """Return these values and all values that depend on any of them."""
        dependent = {*names}
        for node in self.nodes:
            if not dependent.isdisjoint(node.reads):
                dependent.update(filter(None, node.outputs))
        return frozenset(dependent)

    def cone(self, outputs: Iterable[str], stop: Container[str]) -> tuple[Node, ...]:
        """Return the nodes that compute `outputs` from the values in `stop`, the inputs and the weights, in order.

        Args:
            outputs: names of values.
            stop: names of values whose producers are left out, unless they are also in `outputs`.
        """
        wanted: dict[int, Node] = {}
        pending = list(outputs)
        while pending:
            node = self.producer.get(pending.pop())
            if node is not None and self.node_indices[node.name] not in wanted:
                wanted[self.node_indices[node.name]] = node
                pending += [name for name in node.reads if name not in stop]
        return tuple(wanted[index] for index in sorted(wanted))

    @cached_property
    def node_indices(self) -> Mapping[str, int]:
        """The index of each node in `nodes`, by its name."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    @cached_property
    def _source_operators(self) -> Mapping[str, str]:
        return {node.name: node.op for node in self.source_graph.nodes} if self.source_graph is not None else {}

    def fusion(self, node: Node) -> str:
        """Return the operators of `source_graph` that a node computes if there is more than one: `Reshape MatMul`."""
        operators = [self._source_operators[name] for name in node.origins if name in self._source_operators]
        return " ".join(operators) if len(operators) > 1 else ""

    def worst_finding(self, *names: str) -> Finding | None:
        """Return the finding of these values with the largest `weight`; None if there is none."""
        findings = (finding for name in names for finding in self.findings.get(name, ()))
        return max(findings, key=lambda finding: finding.weight, default=None)

    @no_collection()
    def text(self, *, modules: bool = False, sources: bool = False, title: str = "Graph") -> str:
        """Return the graph as text, one line per node: `x: float32[1, 128, 768] = MatMul(a, b)`.

        The grammar is that of hidet's `print(graph)`. Names that do not fit it are quoted and escaped as in JSON.

        Args:
            modules: add each node's module path.
            sources: add each node's line of model code.
            title: the word before the graph's inputs. The graph's local functions follow, each under its own name.
        """
        blocks = [
            [
                *(f"# {visible(remark)}" for remark in self.remarks),
                *_lines(self, title, modules=modules, sources=sources),
            ]
        ]
        for name, function in self.functions.items():
            blocks.append([*_lines(function, f"Function {_name(name)}", modules=modules, sources=sources)])
        return "\n\n".join("\n".join(lines) for lines in blocks)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        counts = f"{len(self.nodes)} nodes, {len(self.inputs)} inputs, {len(self.outputs)} outputs"
        return short_line(f"<Graph {self.name}: {counts}>")

    def _repr_html_(self) -> str:
        """Return the first nodes as a table, for a notebook; `filch.export.views` draws the whole graph."""
        rows = [(node.op, node.module or "", ", ".join(node.outputs)) for node in self.nodes[:_SHOWN]]
        rest = f"<p>and {len(self.nodes) - _SHOWN} more nodes</p>" if len(self.nodes) > _SHOWN else ""
        return f"<p>{for_html(repr(self))}</p>{html_table(('operator', 'module', 'values'), rows)}{rest}"


def _lines(graph: Graph, title: str, *, modules: bool, sources: bool) -> Iterator[str]:
    """Yield the lines of a graph without its functions; see `Graph.text`."""

    def typed(name: str) -> str:
        return f"{_name(name)}: {_type(graph.values.get(name))}"

    yield f"{title}({', '.join(map(typed, graph.inputs))}){{"
    constants = {*graph.constants}
    used = dict.fromkeys([*(name for node in graph.nodes for name in node.reads), *graph.outputs])
    for name in (name for name in used if name in constants):
        result = _result(graph.worst_finding(name))
        yield f"  {_name(name)} = Constant({_type(graph.values.get(name))}){_comment(result)}"
    for node in graph.nodes:
        outputs = ", ".join(typed(name) for name in node.outputs if name)
        arguments = [_name(name) if name else "_" for name in node.inputs]
        arguments += [f"{_name(name)}={_literal(value)}" for name, value in node.attributes.items()]
        if fusion := graph.fusion(node):
            arguments.append(f"fusion={_quoted(fusion)}")
        result = _result(graph.worst_finding(*node.outputs))
        comment = _comment(node.module if modules else None, node.source if sources else None, result)
        yield f"  {outputs} = {_name(node.op)}({', '.join(arguments)}){comment}"
    yield f"  return {', '.join(map(_name, graph.outputs))}"
    yield "}"


def _comment(*notes: str | None) -> str:
    shown = [short_line(note, _LONGEST) for note in notes if note]
    return f"  # {', '.join(shown)}" if shown else ""


def _result(finding: Finding | None) -> str:
    """Return a finding in brief, with a mark if the value diverged; `""` for None."""
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
