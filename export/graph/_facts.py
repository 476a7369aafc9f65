"""Descriptions of nodes and values, shared by all views: pairs of a label and a text, with numbers as in `repr`."""

from filch.steal import Statistics

from ._finding import Finding
from ._graph import Graph
from ._nodes import Node


def node_facts(graph: Graph, node: Node) -> dict[str, str]:
    """Return the comparison's findings of a node's values, then where the node comes from."""
    classes = [frame.type.rpartition(".")[2] for frame in node.stack if frame.type]
    known = {
        "module": node.module,
        "classes": " > ".join(classes),
        "source": node.source,
        "code": node.code,
        "target": node.target,
        "origins": ", ".join(node.origins),
        "fusion": graph.fusion(node),
        "gradient of": node.gradient_of,
    }
    return value_facts(graph, *node.outputs) | {key: text for key, text in known.items() if text}


def value_facts(graph: Graph, *names: str) -> dict[str, str]:
    """Return the worst finding of these values in full; if there are several findings, also each of them in brief."""
    findings = [(name, finding) for name in names for finding in graph.findings.get(name, ())]
    facts = _in_full(graph.worst_finding(*names))
    if len(findings) > 1:
        facts |= {f"call {finding.call} of {name}": _in_brief(finding) for name, finding in findings}
    return facts


def _in_full(finding: Finding | None) -> dict[str, str]:
    """Return everything that a finding says."""
    if finding is None:
        return {}
    known = {
        "error": None if finding.error is None else repr(finding.error),
        "status": finding.status,
        "finding": finding.text,
        "first divergence": "yes" if finding.first else "",
        "reference": finding.evidence,
        "seconds": None if finding.seconds is None else repr(finding.seconds),
        "expected": _statistics(finding.reference),
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
