"""Descriptions of nodes and values, shared by all views."""

import itertools
from collections.abc import Iterable, Mapping

from filch.steal import Statistics

from ._finding import Finding
from ._nodes import GraphFields, Node


class Facts:
    """Describes the nodes and values of a graph as pairs of a label and a text; numbers as `repr` writes them."""

    def __init__(self, graph: GraphFields) -> None:
        self._graph = graph
        self._before: Mapping[str, Node] = (
            {node.name: node for node in graph.source_graph.nodes} if graph.source_graph else {}
        )

    def of_node(self, node: Node) -> dict[str, str]:
        """Return the comparison's findings of a node's values, then where the node comes from."""
        classes = [frame.type.rpartition(".")[2] for frame in node.stack if frame.type]
        known = {
            "module": node.module,
            "classes": " > ".join(classes),
            "source": node.source,
            "code": node.code,
            "target": node.target,
            "origins": ", ".join(node.origins),
            "fusion": self.fusion(node),
            "gradient of": node.gradient_of,
        }
        return self._findings(node.outputs) | {key: text for key, text in known.items() if text}

    def of_value(self, name: str) -> dict[str, str]:
        """Return the comparison's findings of a value."""
        return self._findings((name,))

    def worst(self, node: Node) -> Finding | None:
        """Return the worst finding of a node's outputs; None if there is none."""
        findings = self._graph.findings
        return (
            worst(itertools.chain.from_iterable(findings.get(name, ()) for name in node.outputs)) if findings else None
        )

    def fusion(self, node: Node) -> str:
        """Return the operators that a node computes if there is more than one: `Reshape Transpose MatMul`."""
        operators = [self._before[name].op for name in node.origins if name in self._before]
        return " ".join(operators) if len(operators) > 1 else ""

    def _findings(self, names: Iterable[str]) -> dict[str, str]:
        """Return the worst finding in full; if there are several, also each of them in brief."""
        findings = [(name, finding) for name in names for finding in self._graph.findings.get(name, ())]
        facts = _in_full(worst(finding for _, finding in findings))
        if len(findings) > 1:
            facts |= {f"call {finding.call} of {name}": _in_brief(finding) for name, finding in findings}
        return facts


def worst(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding with the largest `weight`; None if there is none."""
    return max(findings, key=lambda finding: finding.weight, default=None)


def _in_full(finding: Finding | None) -> dict[str, str]:
    if finding is None:
        return {}
    known = {
        "error": None if finding.error is None else repr(finding.error),
        "status": finding.status,
        "finding": finding.text,
        "first divergence": "yes" if finding.first else "",
        "reference": finding.evidence,
        "seconds": None if finding.seconds is None else repr(finding.seconds),
        "expected": _statistics(finding.expected),
        "actual": _statistics(finding.actual),
    }
    measured = {name: repr(number) for name, number in finding.measures.items() if name not in known}
    return {key: text for key, text in known.items() if text} | measured


def _in_brief(finding: Finding) -> str:
    return finding.status if finding.error is None else f"{finding.status}, error {finding.error!r}"


def _statistics(tensor: Statistics | None) -> str:
    if tensor is None:
        return ""
    numbers = {"min": tensor.minimum, "max": tensor.maximum, "mean": tensor.mean, "std": tensor.std}
    measured = [f"{name} {number!r}" for name, number in numbers.items() if number is not None]
    return ", ".join([tensor.what, *measured, f"{tensor.nan} NaN", f"{tensor.inf} inf"])


def unicode(text: str) -> str:
    """Replace what UTF-8 cannot encode: file names may contain lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def cut(text: str, length: int) -> str:
    """Shorten a text to at most `length` characters, with an ellipsis in the middle."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[len(text) - half :]}"
