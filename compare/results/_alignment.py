"""Which weights and values of two implementations are the same, and where the second one leaves the first."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

from filch.export import Finding, Graph
from filch.steal.text._visible import short_line

from ..rendering._outcome import Gap, Proof
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Columns, Line, fit_paths, folded, section, table_of
from ..rendering._words import command_text, listed
from ._next_command import to_blame, to_repeat

_SHOWN = 8  # names of weights that are not used, and values that are not found, in a summary
Evidence = Literal["proved", "anchored", "by value", "ambiguous", "given", "contradicted", "uncovered"]
SideName = Literal["A", "B"]
# What each kind of evidence means: of module outputs of A, of values in the graph of A, and in that of B.
_EXPLAINED: Mapping[str, str] = {
    "proved": "the same operators compute it from values that are the same",
    "anchored": "an operation with the same weight computes it, and the numbers are equal",
    "by value": "all numbers are equal, on both inputs",
    "ambiguous": "several values have these numbers",
    "given": "the mapping file says so, and the numbers are equal",
    "contradicted": "the mapping file says so, but the numbers differ",
    "uncovered": "no value of B has these numbers",
}
_OF_A: Mapping[str, str] = {
    **_EXPLAINED,
    "inherited": "no value of B has these numbers, and it depends on one that is not in B",
}
_OF_B: Mapping[str, str] = {
    **_EXPLAINED,
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

    @property
    def is_missing_or_scaled(self) -> bool:
        """Whether A lacks some of its numbers, or has them times a factor or plus an offset."""
        return not self.complete or "times" in self.arrangement or "plus" in self.arrangement


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
        layout: the same as offset, sizes and strides, `"0+14:128·64:1"`: where each element is in what the first one of
            `modules` returned; `""` if not all are there.
        modules: the modules of B that returned the places, as a capture names them, with the path of the tensor.
        value: its name in the graph of A, or that of the value from which it was moved.
        record: the module and the path as a capture names them.
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
    record: str = ""


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
class AlignedOutput:
    """What implementation A leaves to its caller, and where it is in what B leaves to its caller.

    Attributes:
        name: what A returns, with its path (`output logits`), or an argument or a buffer that it changes.
        what: its dtype and shape.
        place: the same of B; `""` if B has no such output. B may also return a single tensor, and have inside what A
            returns beside it by name; then it is where B computes it.
        order: in which shape and order B has the numbers; `""` if in those of A.
        problem: what is wrong, `""` if nothing is.
        is_elsewhere: whether it is not in the same place among the outputs of B, or in another order.
    """

    name: str
    what: str
    place: str = ""
    order: str = ""
    problem: str = ""
    is_elsewhere: bool = False


@dataclass(frozen=True)
class Departure:
    """An operation of B that computes something else than A, from the numbers of A.

    Where B has no operations, it is the first named array that is no value of A; earlier steps may be the cause.

    Attributes:
        module: the path of the module of B in which it runs; `""` for the model itself. The name of an array.
        operator: its operator, or `array`.
        source: the line of the code of B, as `file.py:12`; None if not known, as in most ONNX files.
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
        return short_line(", ".join(filter(None, (place, self.source or self.value, self.note))))


@dataclass(frozen=True, repr=False)
class Alignment(Result):
    """Two implementations, side by side.

    Attributes:
        reference: the name of implementation A.
        actual: the name of implementation B.
        weights: one for each weight of B.
        unused_weights: the weights of A whose numbers are in no weight of B.
        values: one for each tensor that a module of A returned, in the order of the run.
        departures: the operations at which B leaves A, in the order of B.
        missing: operations of A whose results are not in B, although those from which they are computed are.
        wrong_outputs: the outputs of B that are not those of A, and why; likewise its arrays or weights, if those were
            compared.
        remarks: sentences about the whole comparison.
        compared: what the verdict is about: the outputs, the values of two ONNX programs, named arrays, or the weights
            alone.
        arrays: one for each named array of B that is no weight, in the order in which B has them.
        graphs: the operations of A and of B; of arrays and weights, the values alone.
        linked: one for each value of A, and of B, that can be recognized by its numbers.
        outputs: one for each tensor that A returns, or that it is given and changes; empty for weights.
        gaps: the outputs of A of which the arrays of B have nothing, or weights that only a run can judge.
        parts: what was declared that B has of outputs of A, by name; it has all others whole.
    """

    reference: str
    actual: str
    weights: tuple[AlignedWeight, ...]
    unused_weights: tuple[str, ...]
    values: tuple[AlignedValue, ...]
    departures: tuple[Departure, ...]
    missing: tuple[Departure, ...]
    wrong_outputs: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    compared: Literal["outputs", "programs", "arrays", "weights"] = "outputs"
    arrays: tuple[AlignedArray, ...] = ()
    graphs: Mapping[SideName, Graph] = field(default_factory=dict, repr=False)
    linked: Mapping[SideName, tuple[LinkedValue, ...]] = field(default_factory=dict, repr=False)
    outputs: tuple[AlignedOutput, ...] = ()
    gaps: tuple[Gap, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_align": 2}

    @property
    def proof(self) -> Proof:
        """What was judged: outputs of B, or its arrays or weights, may not be those of A."""
        judged = {item.name for item in (self.weights if self.compared == "weights" else self.outputs)}
        judged -= {gap.name for gap in self.gaps}
        return Proof(len(judged), bool(self.wrong_outputs or self.contradicted), self.gaps)

    @property
    def first_difference(self) -> str:
        """The first operation at which B leaves A, or else what is wrong with an output."""
        return str(next(iter((*self.departures, *self.wrong_outputs)), ""))

    @cached_property
    def contradicted(self) -> tuple[AlignedValue, ...]:
        """The values for which the mapping file names another place than their numbers."""
        return tuple(value for value in self.values if value.evidence == "contradicted")

    @cached_property
    def covered(self) -> tuple[AlignedValue, ...]:
        """The values of A that are in B."""
        return tuple(value for value in self.values if value.places and value.evidence != "contradicted")

    @property
    def title(self) -> str:
        """The names of both."""
        return f"{self.actual} (B) against {self.reference} (A)"

    @property
    def headline(self) -> str:
        """How many weights and values were found, and whether the outputs are the same."""
        weights = f"{sum(weight.complete for weight in self.weights)} of {len(self.weights)} weights of B"
        if self.compared == "weights":
            what = "weights that were judged" if self.gaps else "weights"
            return f"{weights} found, {len(self.unused_weights)} of A are not in B; the {what} {self._verdict}"
        if self.compared == "arrays":
            found = f"{len(self.covered)} of {len(self.values)} arrays of A found in B"
            if self.arrays:  # else A is what has arrays, and each of its values is one
                judged = [array for array in self.arrays if array.judged]
                found = f"{sum(bool(array.places) for array in judged)} of {len(judged)} arrays of B found in A"
            return f"{weights} and {found}; they {self._verdict}" if self.weights else f"{found}; they {self._verdict}"
        found = f"{len(self.covered)} of {len(self.values)} module outputs of A found"
        return f"{weights} and {found}; the {self.compared} {self._verdict}"

    @property
    def _verdict(self) -> str:
        """Whether the outputs are the same, as the end of a sentence, and which parts of them B need not have."""
        moved = sum(item.is_elsewhere for item in self.outputs)
        elsewhere = f", {moved} in another place or order" if moved else ""
        verdict = "differ" if self.wrong_outputs else f"are the same{elsewhere}"
        parts = ", ".join(f"{text} of the output {name}".rstrip() for name, text in self.parts.items())
        return f"{verdict}; B was declared to have only {parts}" if parts else verdict

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:
        """Return the verdict, where B leaves A, the weights that differ, and what was found.

        Args:
            wide: all names of weights that are not used.
            all_rows: a row for each weight and value.
        """
        yield from self.heading()
        yield from self.wrong_outputs
        yield from self.gap_sentences()
        remarks = [line for remark in self.remarks for line in ("", remark)]
        yield from remarks if self.wrong_outputs else ()  # which may explain all that follows
        yield from section("B leaves A here:", _DEPARTURES, self.departures)
        if self.wrong_outputs:
            yield from section("A computes this, B does not:", _MISSING, self.missing)
        title = "Weights:" if all_rows else "Weights that are missing or have factors:"
        weights = [weight for weight in self.weights if all_rows or weight.is_missing_or_scaled]
        yield from section(title, _WEIGHTS, weights, marked=lambda weight: not weight.complete)
        if self.unused_weights and self.compared != "weights":
            names = listed(self.unused_weights, None if wide else _SHOWN)
            yield from ("", f"no weight of B has the numbers of {names}")
        title = "Arrays of B:" if all_rows else "Arrays of B that are no values of A:"
        yield from section(title, _ARRAYS, [one for one in self.arrays if all_rows or (one.judged and not one.places)])
        if not self.wrong_outputs:
            outputs = [output for output in self.outputs if all_rows or output.is_elsewhere]
            yield from section("Outputs of A:", _OUTPUTS, outputs)
        if self.values and self.compared != "weights":
            yield from self._blocks_of_values(all_rows=all_rows)
        yield from () if self.wrong_outputs else remarks

    def _blocks_of_values(self, *, all_rows: bool) -> Iterable[Block]:
        """Yield how many module outputs of A were found by which evidence, and a table of those that were not."""
        yield from ("", Line("Module outputs of A:", "heading"))
        counts: Counter[str] = Counter(value.evidence for value in self.values)
        for evidence, text in _EXPLAINED.items():
            if counts[evidence]:
                shown = text if self.compared == "outputs" else text.removesuffix(", on both inputs")
                yield f"{counts[evidence]} {evidence}: {shown}"
        missing = [value for value in self.values if value.evidence == "uncovered"]
        if values := self.values if all_rows else (*self.contradicted, *missing[:_SHOWN]):
            yield from (
                "",
                table_of(_VALUES, values, marked=lambda value: value.evidence == "contradicted", skip_empty=True),
            )

    @cached_property
    def graph(self) -> Graph:
        """The operations of B, with those of A as its `reference_graph`, and what was found of each value."""
        drawn = _linked_graph(self)
        return replace(drawn, remarks=(self.headline, *self.wrong_outputs, *self.remarks), close=self.close)

    @property
    def next_command(self) -> NextCommand | None:
        """The command that finds the cause where two programs differ, as for `compare`, or shows each value."""
        repeated = to_repeat(self.reference, self.actual) if self.compared == "programs" and self.wrong_outputs else ""
        if repeated:  # both are files
            return to_blame(repeated)
        if not all(":" in name for name in (self.reference, self.actual)):  # not both are `module:factory`
            return None
        command = command_text("align", self.reference, self.actual, all=True)
        return NextCommand(command, "show a row for each weight and value")


def _linked_graph(result: Alignment) -> Graph:
    """Return the graph of B with findings, and that of A, likewise, as its `reference_graph`."""
    empty = Graph("", (), (), (), (), {})
    graph_a = replace(result.graphs.get("A", empty), name=result.reference)
    graph_b = replace(result.graphs.get("B", empty), name=result.actual)
    not_in_b = graph_a.computed_from([item.value for item in result.missing])
    findings_a = {item.value: _finding(item, _OF_A, not_in_b) for item in result.linked.get("A", ())}
    wrong = graph_b.computed_from([item.value for item in result.departures])
    findings_b = {item.value: _finding(item, _OF_B, wrong) for item in result.linked.get("B", ())}
    for value in result.values:
        if value.evidence in ("given", "contradicted") and value.value in findings_a:
            text = f"mapped to {value.places[0]}" if value.evidence == "contradicted" else ""
            findings_a[value.value] = Finding(
                value.evidence, evidence=_EXPLAINED[value.evidence], text=text, places=findings_a[value.value].places
            )
    for item in result.missing:
        findings_a[item.value] = Finding("not in B", evidence="B has what this is computed from, but not the result")
    for index, item in enumerate(result.departures):
        places = {} if item.reference_value is None else {item.reference_value: ""}
        evidence = "" if item.operator == "array" else "from the numbers of A, it computes what is no value of A"
        findings_b[item.value] = Finding("leaves A", first=index == 0, text=item.note, evidence=evidence, places=places)
    findings_b |= {weight.name: _finding_of_weight(weight) for weight in result.weights}
    findings_a |= {name: Finding("found", places=places) for name, places in _uses_of_weights(result.weights).items()}
    unused = Finding("unused", evidence="no weight of B has these numbers")
    findings_a |= dict.fromkeys(result.unused_weights, unused)
    return replace(_with_findings(graph_b, findings_b), reference_graph=_with_findings(graph_a, findings_a))


def _finding(item: LinkedValue, explained: Mapping[str, str], faulty: Container[str]) -> Finding:
    """Return what is shown of a value in the graph of its implementation.

    Args:
        item: the value, and where it is in the other implementation.
        explained: what each kind of evidence means: `_OF_A` or `_OF_B`.
        faulty: the values that depend on one that is missing or wrong, which explains why they are not found.
    """
    status = "inherited" if item.evidence == "uncovered" and item.value in faulty else item.evidence
    places = dict(zip(item.places, item.orders, strict=True))
    return Finding(status, evidence=explained[status], places=places)


def _finding_of_weight(weight: AlignedWeight) -> Finding:
    """Return what is shown of a weight of B: where its numbers are in A, and in which order."""
    status = "found" if weight.complete else "in part" if weight.sources else "not found"
    evidence = "" if weight.complete else "no weight of A has these numbers"
    text = _order_of(weight) if len(weight.sources) > 1 else ""  # which is not that of each source
    places = dict.fromkeys(weight.sources, "" if text else _order_of(weight))
    return Finding(status, text=text, evidence=evidence, places=places)


def _uses_of_weights(weights: Iterable[AlignedWeight]) -> dict[str, dict[str, str]]:
    """Return for each weight of A the weights of B with its numbers, and the order in which each has them."""
    uses = defaultdict[str, dict[str, str]](dict)
    for weight in weights:
        for source in (*weight.sources, *weight.others):
            uses[source][weight.name] = _order_of(weight)
    return uses


def _order_of(weight: AlignedWeight) -> str:
    """Return how the elements of a weight are arranged; `""` if as in A."""
    return "" if weight.arrangement == "same" else weight.arrangement


def _with_findings(graph: Graph, findings: Mapping[str, Finding]) -> Graph:
    return replace(graph, findings={name: (item,) for name, item in findings.items()})


_PLACE: Columns[Departure] = {
    "operator": lambda item: item.operator,
    Column("line", fit_paths, least=10, preferred=16): lambda item: item.source,
    Column("value", fit_paths, least=10, preferred=16): lambda item: None if item.source else item.value,
}
_DEPARTURES: Columns[Departure] = {
    Column("module of B", fit_paths, least=12, preferred=24): lambda item: item.module or "(the model)",
    **_PLACE,
    Column("module of A", fit_paths, least=12, preferred=24, optional=1): lambda item: item.reference_module,
    Column("what", folded, least=12, preferred=20): lambda item: item.note or None,
}
_MISSING: Columns[Departure] = {
    Column("module of A", fit_paths, least=12, preferred=24): lambda item: item.module or "(the model)",
    **_PLACE,
}
_ARRAYS: Columns[AlignedArray] = {
    Column("array of B", fit_paths, least=12, preferred=24): lambda item: item.name,
    Column("is", folded, optional=2): lambda item: item.what,
    Column("in A", folded, least=12, preferred=24): lambda item: ", ".join(item.places[:3]) or None,
    Column("judged", optional=1): lambda item: None if item.judged else "no",
}
_OUTPUTS: Columns[AlignedOutput] = {
    Column("of A", fit_paths, least=12, preferred=24): lambda item: item.name,
    Column("is", folded, optional=2): lambda item: item.what,
    Column("of B", fit_paths, least=12, preferred=24): lambda item: item.place or "(none)",
    Column("order", folded, least=12, preferred=20): lambda item: item.order or None,
}
_WEIGHTS: Columns[AlignedWeight] = {
    Column("weight of B", fit_paths, least=12, preferred=24): lambda item: item.name,
    Column("shape", optional=1): lambda item: str([*item.shape]),
    Column("weights of A", folded, least=12, preferred=30): lambda item: ", ".join(item.sources) or "(none)",
    Column("arrangement", folded, least=12, preferred=20): lambda item: item.arrangement,
}
_VALUES: Columns[AlignedValue] = {
    Column("module of A", fit_paths, least=12, preferred=24): lambda item: f"{item.module}{item.path}" or "(the model)",
    Column("is", folded, optional=2): lambda item: item.what,
    "evidence": lambda item: item.evidence,
    Column("in B", folded, least=12, preferred=24): lambda item: ", ".join(item.places[:3]) or None,
    Column("order", folded, optional=1): lambda item: item.order or None,
}
