"""What views say of a node or a value: the same names and words in all of them."""

import itertools
from collections.abc import Iterable, Mapping

from filch.steal import Statistics

from ._finding import Finding
from ._nodes import GraphFields, Node


class Facts:
    """What is known of a graph's nodes and values, each by its name, as text; a number as Python writes it."""

    def __init__(self, graph: GraphFields) -> None:
        self._graph = graph
        self._before: Mapping[str, Node] = (
            {node.name: node for node in graph.source_graph.nodes} if graph.source_graph else {}
        )

    def of_node(self, node: Node) -> dict[str, str]:
        """What a comparison found first, then where the node is from."""
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
        return self._found(node.outputs) | {key: text for key, text in known.items() if text}

    def of_value(self, name: str) -> dict[str, str]:
        """What a comparison found."""
        return self._found((name,))

    def worst(self, node: Node) -> Finding | None:
        """The worst finding of all values that a node makes."""
        findings = self._graph.findings
        return (
            worst(itertools.chain.from_iterable(findings.get(name, ()) for name in node.outputs)) if findings else None
        )

    def fusion(self, node: Node) -> str:
        """The operators that a node computes, where these are several: `Reshape Transpose MatMul`."""
        operators = [self._before[name].op for name in node.origins if name in self._before]
        return " ".join(operators) if len(operators) > 1 else ""

    def _found(self, names: Iterable[str]) -> dict[str, str]:
        """The worst finding in full, and each of them in brief where there are several."""
        found = [(name, finding) for name in names for finding in self._graph.findings.get(name, ())]
        facts = _in_full(worst(finding for _, finding in found))
        if len(found) > 1:
            facts |= {f"call {finding.call} of {name}": _in_brief(finding) for name, finding in found}
        return facts


def worst(findings: Iterable[Finding]) -> Finding | None:
    """The one that matters most."""
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


def _statistics(held: Statistics | None) -> str:
    if held is None:
        return ""
    numbers = {"min": held.minimum, "max": held.maximum, "mean": held.mean, "std": held.std}
    told = [f"{name} {number!r}" for name, number in numbers.items() if number is not None]
    return ", ".join([held.what, *told, f"{held.nan} NaN", f"{held.inf} inf"])


def unicode(text: str) -> str:
    """Text as any file can hold it: names of files may have halves of characters in them."""
    return text.encode("utf-8", "backslashreplace").decode()


def cut(text: str, length: int) -> str:
    """Text of at most this length, with an ellipsis in the middle of what was longer."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[len(text) - half :]}"
