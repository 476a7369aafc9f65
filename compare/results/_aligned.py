"""The parts of an alignment: weights, values, arrays and departures; and graphs that show them."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from filch.export import Finding, Graph
from filch.steal.text import short_line

Evidence = Literal["proved", "anchored", "by value", "ambiguous", "given", "contradicted", "uncovered"]
SideName = Literal["A", "B"]
Findings = dict[str, Finding]
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


@dataclass(frozen=True)
class AlignedWeight:
    """A weight of implementation B, and the weights of A from which it was made.

    Attributes:
        name: its name in B.
        shape: its shape.
        sources: the names of the weights of A; empty if there are none.
        arrangement: how its elements are arranged, for people: `"same"`, `"transposed"`, `"rows 0 to 63"`.
        complete: whether all its numbers are those of A.
        others: further weights of A with the same numbers.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    arrangement: str
    complete: bool
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class AlignedValue:
    """A tensor that a module of implementation A returned, and where its numbers are in B.

    Attributes:
        module: the path of the module in A, with `@1` after a second call.
        path: the path of the tensor in what the module returned; `""` for the only one.
        what: its dtype and shape.
        evidence: what shows that the values are the same.
        places: the values of B: the path of the module that returned it, or the operator with its line.
        order: how the elements are arranged in the first place, `""` if in the same order.
        layout: the same as offset, sizes and strides, `"0+14:128·64:1"`: where each element is in the value of B; `""`
            if not all are there.
        modules: the modules of B that returned the first place, with the path of the tensor; empty if none did.
        value: its name in the graph of A, or that of the value from which it was moved.
    """

    module: str
    path: str
    what: str
    evidence: Evidence
    places: tuple[str, ...] = ()
    order: str = ""
    layout: str = ""
    modules: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True)
class LinkedValue:
    """A value of one implementation that can be recognized by its numbers, and those of the other one that have them.

    Attributes:
        value: its name in the graph of its implementation.
        evidence: what shows that they are the same; `"in part"` if only some of its numbers are values of A.
        places: the names of the other values in their graph; of an uncovered value, those that operations with the same
            weights compute.
        orders: how the elements are arranged in each place, `""` if in the same order.
    """

    value: str
    evidence: Evidence | Literal["in part"]
    places: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()


@dataclass(frozen=True)
class AlignedArray:
    """A named array of implementation B, and the values of A that it has the numbers of.

    Attributes:
        name: its name in B.
        what: its dtype and shape.
        places: the values of A: the path of the module that returned it, or the operator with its line; empty if its
            numbers are not all numbers of A.
        judged: whether it has enough different numbers to be recognized by them.
    """

    name: str
    what: str
    places: tuple[str, ...]
    judged: bool = True


@dataclass(frozen=True)
class Departure:
    """An operation of B that computes something else than A, from the numbers of A.

    Where B has no operations, it is the first named array that is no value of A; earlier steps may be the cause.

    Attributes:
        module: the path of the module of B in which it runs; `""` for the model itself. The name of an array.
        operator: its operator, or `array`.
        source: the line of the code of B, as `file.py:12`; None if not known.
        value: the name of the value that it computes in the graph of B.
        reference_module: the path of the module of A that computes the value otherwise; None if not known.
        reference_operator: the operator of A; None if not known.
        reference_source: the line of the code of A; None if not known.
        reference_value: the name of the value in the graph of A; None if not known.
        note: what is wrong with it, as far as that is known.
    """

    module: str
    operator: str
    source: str | None
    value: str
    reference_module: str | None = None
    reference_operator: str | None = None
    reference_source: str | None = None
    note: str = ""
    reference_value: str | None = None

    def __str__(self) -> str:
        place = f"{self.operator} in {self.module or 'the model'}"
        return short_line(", ".join(filter(None, (place, self.source, self.note))))


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
