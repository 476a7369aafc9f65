"""The graphs of two implementations, each value with those of the other one that have its numbers."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from filch.export import Finding, Graph

from ._aligned import AlignedValue, AlignedWeight, Departure, LinkedValue, SideName

EXPLAINED: Mapping[str, str] = {
    "proved": "the same operators compute it from values that are the same",
    "anchored": "an operation with the same weight computes it, and the numbers are equal",
    "by value": "all numbers are equal, on both inputs",
    "ambiguous": "several values have these numbers",
    "given": "the mapping file says so, and the numbers are equal",
    "contradicted": "the mapping file says so, but the numbers differ",
    "uncovered": "no value of B has these numbers",
}
_OF_A: Mapping[str, str] = {
    **EXPLAINED,
    "inherited": "no value of B has these numbers, and it depends on one that is not in B",
}
_OF_B: Mapping[str, str] = {
    **EXPLAINED,
    "in part": "only some of its numbers are in A",
    "uncovered": "no value of A has these numbers: B computes in other steps",
    "inherited": "no value of A has these numbers, and it depends on one that is wrong",
}
Findings = dict[str, Finding]


def linked_graph(
    own: Graph,
    other: Graph,
    *,
    values: Iterable[AlignedValue],
    linked: Mapping[SideName, Iterable[LinkedValue]],
    weights: Iterable[AlignedWeight],
    unused: Iterable[str],
    departures: Sequence[Departure],
    missing: Sequence[Departure],
) -> Graph:
    """Return the graph of B with findings, and that of A, likewise, as its `reference_graph`; see `Alignment`."""
    lacking = own.computed_from([item.value for item in missing])
    of_own = {item.value: _finding(item, _OF_A, lacking) for item in linked.get("A", ())}
    wrong = other.computed_from([item.value for item in departures])
    of_other = {item.value: _finding(item, _OF_B, wrong) for item in linked.get("B", ())}
    for value in values:
        if value.evidence in ("given", "contradicted") and value.value in of_own:
            text = f"mapped to {value.places[0]}" if value.evidence == "contradicted" else ""
            changed = replace(of_own[value.value], status=value.evidence, evidence=EXPLAINED[value.evidence], text=text)
            of_own[value.value] = changed
    for item in missing:
        of_own[item.value] = Finding("not in B", evidence="B has what this is computed from, but not the result")
    for index, item in enumerate(departures):
        places = {} if item.reference_value is None else {item.reference_value: ""}
        evidence = "" if item.operator == "array" else "from the numbers of A, it computes what is no value of A"
        of_other[item.value] = Finding("leaves A", first=index == 0, text=item.note, evidence=evidence, places=places)
    uses = _add_weights(of_other, weights)
    of_own |= {name: Finding("found", places=places) for name, places in uses.items()}
    of_own |= {name: Finding("unused", evidence="no weight of B has these numbers") for name in unused}
    return replace(_with(other, of_other), reference_graph=_with(own, of_own))


def _finding(item: LinkedValue, explained: Mapping[str, str], wrong: Container[str]) -> Finding:
    status = "inherited" if item.evidence == "uncovered" and item.value in wrong else item.evidence
    places = dict(zip(item.places, item.orders, strict=True))
    return Finding(status, evidence=explained[status], places=places)


def _add_weights(of_other: Findings, weights: Iterable[AlignedWeight]) -> dict[str, dict[str, str]]:
    """Add findings of the weights of B, and return the weights of A with those of B that have their numbers."""
    uses: dict[str, dict[str, str]] = {}
    for weight in weights:
        order = "" if weight.arrangement == "same" else weight.arrangement
        status = "found" if weight.complete else "in part" if weight.sources else "not found"
        evidence = "" if weight.complete else "no weight of A has these numbers"
        text = order if len(weight.sources) > 1 else ""
        places = dict.fromkeys(weight.sources, "" if text else order)
        of_other[weight.name] = Finding(status, text=text, evidence=evidence, places=places)
        for source in (*weight.sources, *weight.others):
            uses.setdefault(source, {})[weight.name] = order
    return uses


def _with(graph: Graph, findings: Findings) -> Graph:
    return replace(graph, findings={name: (item,) for name, item in findings.items()})
