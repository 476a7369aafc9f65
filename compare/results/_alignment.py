"""Which weights and values of two implementations are the same, and where the second one leaves the first."""

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from filch.steal.text import short_line

from ..rendering._html import as_page
from ..rendering._result import NextCommand, Result, written
from ..rendering._show import show_page
from ..rendering._table import Block, Column, Line, Style, fit_paths, folded, table_of

_SHOWN = 8  # missing weights and values in a summary
Evidence = Literal["proved", "anchored", "by value", "ambiguous", "given", "contradicted", "uncovered"]
_EXPLAINED: Mapping[Evidence, str] = {
    "proved": "the same operators compute it from values that are the same",
    "anchored": "an operation with the same weight computes it, and the numbers are equal",
    "by value": "all numbers are equal, on both inputs",
    "ambiguous": "several values have these numbers",
    "given": "the mapping file says so, and the numbers are equal",
    "contradicted": "the mapping file says so, but the numbers differ",
    "uncovered": "no value of B has these numbers",
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
    """

    module: str
    path: str
    what: str
    evidence: Evidence
    places: tuple[str, ...] = ()
    order: str = ""
    layout: str = ""
    modules: tuple[str, ...] = ()


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
        source: the line of the code of B, as `file.py:12`; None if not known, as in most ONNX files.
        value: the name of the value that it computes in the graph of B.
        reference_module: the path of the module of A that computes the value otherwise; None if not known.
        reference_operator: the operator of A; None if not known.
        reference_source: the line of the code of A; None if not known.
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

    def __str__(self) -> str:
        place = f"{self.operator} in {self.module or 'the model'}"
        return short_line(", ".join(filter(None, (place, self.source or self.value, self.note))))


@dataclass(frozen=True, repr=False)
class Alignment(Result):
    """Two implementations, side by side.

    Attributes:
        reference: the name of implementation A.
        other: the name of implementation B.
        weights: one for each weight of B.
        unused_weights: the weights of A whose numbers are in no weight of B.
        values: one for each tensor that a module of A returned, in the order of the run.
        departures: the operations at which B leaves A, in the order of B.
        missing: operations of A whose results are not in B, although those from which they are computed are.
        wrong_outputs: the outputs of B that are not those of A, and why; likewise its arrays or weights, if those were
            compared.
        remarks: sentences about the whole comparison.
        compared: what the verdict is about: the outputs, named arrays, or the weights alone.
        arrays: one for each named array of B that is no weight, in the order in which B has them.
    """

    reference: str
    other: str
    weights: tuple[AlignedWeight, ...]
    unused_weights: tuple[str, ...]
    values: tuple[AlignedValue, ...]
    departures: tuple[Departure, ...]
    missing: tuple[Departure, ...]
    wrong_outputs: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    compared: Literal["outputs", "arrays", "weights"] = "outputs"
    arrays: tuple[AlignedArray, ...] = ()

    @property
    def close(self) -> bool:
        """Whether the outputs of B are those of A; or its arrays or weights, if those were compared."""
        return not self.wrong_outputs and not self.contradicted

    @cached_property
    def contradicted(self) -> tuple[AlignedValue, ...]:
        """The values for which the mapping file names another place than their numbers."""
        return tuple(value for value in self.values if value.evidence == "contradicted")

    @cached_property
    def covered(self) -> tuple[AlignedValue, ...]:
        """The values of A that are in B."""
        return tuple(value for value in self.values if value.places and value.evidence != "contradicted")

    @property
    def headline(self) -> str:
        """How many weights and values were found, and whether the outputs are the same."""
        complete = sum(weight.complete for weight in self.weights)
        verdict = "differ" if self.wrong_outputs else "are the same"
        weights = f"{complete} of {len(self.weights)} weights of B"
        if self.compared == "weights":
            return f"{weights} found, {len(self.unused_weights)} of A are not in B; the weights {verdict}"
        if self.compared == "arrays":
            found = f"{len(self.covered)} of {len(self.values)} arrays of A found in B"
            if self.arrays:
                judged = [array for array in self.arrays if array.judged]
                found = f"{sum(bool(array.places) for array in judged)} of {len(judged)} arrays of B found in A"
            return f"{weights} and {found}; they {verdict}" if self.weights else f"{found}; they {verdict}"
        return (
            f"{weights} and {len(self.covered)} of {len(self.values)} module outputs of A found; the outputs {verdict}"
        )

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:
        """Return the verdict, where B leaves A, the weights that differ, and what was found.

        Args:
            wide: all rows, with nothing cut.
            all_rows: a row for each weight and value.
        """
        outcome: Style = "close" if self.close else "different"
        yield Line(f"{outcome.upper()}: {self.other} (B) against {self.reference} (A)", outcome)
        yield self.headline
        yield from self.wrong_outputs
        if self.departures:
            yield from (
                "",
                Line("B leaves A here:", "heading"),
                table_of(_DEPARTURES, self.departures, skip_empty=True),
            )
        if self.missing and self.wrong_outputs:
            yield from (
                "",
                Line("A computes this, B does not:", "heading"),
                table_of(_MISSING, self.missing, skip_empty=True),
            )
        weights = self.weights if wide or all_rows else [item for item in self.weights if _is_notable(item)]
        if weights:
            title = "Weights:" if wide or all_rows else "Weights that are missing or have factors:"
            yield from ("", Line(title, "heading"))
            yield table_of(_WEIGHTS, weights, marked=lambda weight: not weight.complete, skip_empty=True)
        if self.unused_weights and self.compared != "weights":
            names = self.unused_weights if wide else self.unused_weights[:_SHOWN]
            more = len(self.unused_weights) - len(names)
            rest = f" and {more} more" if more else ""
            yield from ("", f"no weight of B has the numbers of {', '.join(names)}{rest}")
        arrays = self.arrays if wide or all_rows else [item for item in self.arrays if item.judged and not item.places]
        if arrays:
            title = "Arrays of B:" if wide or all_rows else "Arrays of B that are no values of A:"
            yield from ("", Line(title, "heading"), table_of(_ARRAYS, arrays, skip_empty=True))
        if self.values and self.compared != "weights":
            yield from self._blocks_of_values(all_rows=wide or all_rows)
        for remark in self.remarks:
            yield from ("", remark)

    def _blocks_of_values(self, *, all_rows: bool) -> Iterable[Block]:
        yield from ("", Line("Module outputs of A:", "heading"))
        counts = Counter(value.evidence for value in self.values)
        for evidence, text in _EXPLAINED.items():
            if counts[evidence]:
                shown = text if self.compared == "outputs" else text.removesuffix(", on both inputs")
                yield f"{counts[evidence]} {evidence}: {shown}"
        values = self.values if all_rows else self._notable_values()
        if values:
            yield from ("", table_of(_VALUES, values, marked=_is_contradicted, skip_empty=True))

    def _notable_values(self) -> list[AlignedValue]:
        """Return the values that need a look: contradicted ones, and the first that are missing."""
        missing = [value for value in self.values if value.evidence == "uncovered"]
        return [*self.contradicted, *missing[:_SHOWN]]

    def table(
        self, *, wide: bool = False, all_rows: bool = False, width: int | None = None, color: bool = False
    ) -> str:
        """Return the result as text; see `blocks` and `Report.table`."""
        return self._text(self.blocks(wide=wide, all_rows=all_rows), wide=wide, width=width, color=color)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result with all rows as a page of its own, also written to `path` if one is given."""
        title = f"{self.other} (B) against {self.reference} (A)"
        return written(as_page(title, [*self.blocks(wide=True)]), path)

    def show(self) -> None:
        """Show the page: inside a notebook, or in the browser."""
        show_page(self.to_html())

    @property
    def next_command(self) -> NextCommand | None:
        """The command that shows each weight and value."""
        if not all(":" in name for name in (self.reference, self.other)):
            return None
        command = shlex.join(["filch", "align", self.reference, self.other, "--all"])
        return NextCommand(command, "show a row for each weight and value")

    def derived(self) -> Mapping[str, Any]:
        """Return whether the outputs are the same, and the headline."""
        return {"filch_align": 1, "close": self.close, "headline": self.headline}


def _is_notable(weight: AlignedWeight) -> bool:
    return not weight.complete or "times" in weight.arrangement or "plus" in weight.arrangement


def _is_contradicted(value: AlignedValue) -> bool:
    return value.evidence == "contradicted"


_DEPARTURES: dict[str | Column, Callable[[Departure], object]] = {
    Column("module of B", fit_paths, least=12, preferred=24): lambda item: item.module or "(the model)",
    "operator": lambda item: item.operator,
    Column("line", fit_paths, least=10, preferred=16): lambda item: item.source,
    Column("value", fit_paths, least=10, preferred=16): lambda item: None if item.source else item.value,
    Column("module of A", fit_paths, least=12, preferred=24, optional=1): lambda item: item.reference_module,
    Column("what", folded, least=12, preferred=20): lambda item: item.note or None,
}
_MISSING: dict[str | Column, Callable[[Departure], object]] = {
    Column("module of A", fit_paths, least=12, preferred=24): lambda item: item.module or "(the model)",
    "operator": lambda item: item.operator,
    Column("line", fit_paths, least=10, preferred=16): lambda item: item.source,
    Column("value", fit_paths, least=10, preferred=16): lambda item: None if item.source else item.value,
}
_ARRAYS: dict[str | Column, Callable[[AlignedArray], object]] = {
    Column("array of B", fit_paths, least=12, preferred=24): lambda item: item.name,
    Column("is", folded, optional=2): lambda item: item.what,
    Column("in A", folded, least=12, preferred=24): lambda item: ", ".join(item.places[:3]) or None,
    Column("judged", optional=1): lambda item: None if item.judged else "no",
}
_WEIGHTS: dict[str | Column, Callable[[AlignedWeight], object]] = {
    Column("weight of B", fit_paths, least=12, preferred=24): lambda item: item.name,
    Column("shape", optional=1): lambda item: list(item.shape),
    Column("weights of A", folded, least=12, preferred=30): lambda item: ", ".join(item.sources) or "(none)",
    Column("arrangement", folded, least=12, preferred=20): lambda item: item.arrangement,
}
_VALUES: dict[str | Column, Callable[[AlignedValue], object]] = {
    Column("module of A", fit_paths, least=12, preferred=24): lambda item: f"{item.module}{item.path}" or "(the model)",
    Column("is", folded, optional=2): lambda item: item.what,
    "evidence": lambda item: item.evidence,
    Column("in B", folded, least=12, preferred=24): lambda item: ", ".join(item.places[:3]) or None,
    Column("order", folded, optional=1): lambda item: item.order or None,
}
