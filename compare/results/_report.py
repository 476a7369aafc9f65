"""`Report`: a comparison of a program with what the model did."""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from filch.export import Graph
from filch.export.backends import Stage
from filch.export.views import draw, save
from filch.steal.text import for_csv, named

from ..metrics._metrics import MEASURES, Difference
from ..metrics._tolerance import Tolerance
from ..rendering._console import WIDE, as_text
from ..rendering._json import plain
from ..rendering._markdown import as_markdown
from ..rendering._result import Result, written
from ..rendering._table import Block, table_of
from ._explanation import Explanation, explain
from ._picture import picture
from ._row_tables import (
    compiled_tables,
    module_table,
    neighbourhood,
    node_tables,
    operator_tables,
    outcome_table,
    precision_tables,
)
from ._rows import SENTENCE, ModuleRow, NodeOutcome, Operator, Row

VERSION = 4  # of the JSON
TABLES = ("nodes", "operators", "modules", "outcomes", "dynamo", "precision")
_MOST = 5  # names in a sentence
_NESTED = ("difference", "spread", "float64", "isolated")  # what a row has that is no cell of a table
_COLUMNS = tuple(item.name for item in fields(Row) if item.name not in _NESTED)
_MARKDOWN_COLUMNS = {
    "stage": lambda row: row.stage,
    "index": lambda row: row.index,
    "kind": lambda row: row.kind,
    "operator": lambda row: row.op,
    "module": lambda row: row.module,
    "dtype": lambda row: row.dtype,
    "error": lambda row: row.error,
    "status": lambda row: row.status,
}


@dataclass(frozen=True)
class Report(Result):
    """A comparison of a program on a backend with what the model did.

    Attributes:
        backend: the backend's name.
        reference: where the reference is from.
        program: where the program is from.
        rows: one for each value of the exported graph and of the compiled one, in the order in which they run.
        modules: one for each tensor that a stolen module call took or gave.
        observer_effect: the largest difference between the outputs of the instrumented and of the plain run; None if
            they are bitwise equal.
        notes: what else a reader has to know.
        calls: how many calls of the model were compared, and how many there are.
        failed: what is missing from the comparison: the compiled graph, if the backend could run the exported one only;
            results of the model that the graph does not have.
        interface: how the inputs and outputs of the program, or of the compiled graph, are not those of the model: in
            another order, missing, added, listed twice. Only where the file says what was exported.
        operators: the model's own operations, for each call; empty if the program does not know them.
        outcomes: what became of each exported node in the compiled graph; empty if there is none.
        options: what the backend was made with, where it was given by its name.
        tolerance: what was asked for; None is by dtype.
        lower_precision: whether it was allowed.
        graphs: the graphs that were compared, by stage; the nodes of the compiled one have their origins. Empty if the
            rows are of several graphs.
        culprits: what makes the error go when it is switched off, where that was looked for (see `blame`).
        switches: how many transformations could be switched off; None if none was tried.
        repro: the folder in which the error is shown by itself, where that was written; `""` elsewhere.
    """

    backend: str
    reference: str
    program: str
    rows: tuple[Row, ...]
    modules: tuple[ModuleRow, ...] = ()
    observer_effect: Difference | None = None
    notes: tuple[str, ...] = ()
    calls: tuple[int, int] = (1, 1)
    failed: tuple[str, ...] = ()
    operators: tuple[tuple[Operator, ...], ...] = field(default=(), repr=False)
    outcomes: tuple[NodeOutcome, ...] = field(default=(), repr=False)
    graphs: Mapping[Stage, Graph] = field(default_factory=dict, repr=False)
    culprits: tuple[str, ...] = ()
    switches: int | None = None
    repro: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: Tolerance | None = None
    lower_precision: bool = False
    interface: tuple[str, ...] = ()

    @property
    def undisturbed(self) -> bool:
        """Whether the observed run's outputs are bit for bit those of the undisturbed one."""
        return self.observer_effect is None

    @cached_property
    def diverged(self) -> tuple[Row, ...]:
        """The rows that are not what they should be, in order."""
        return tuple(row for row in self.rows if row.diverged)

    @cached_property
    def first_divergence(self) -> Row | None:
        """The first row that differs, in the exported graph if one differs there, else in the compiled graph.

        Every value that it depends on and that could be judged is what it should be. Where each node was run by itself
        (`truth`), it is the first whose own node makes it wrong, if there is one.
        """
        if self.introduced:
            return self.introduced[0]
        return next((row for row in self.diverged if row.kind != "output"), next(iter(self.diverged), None))

    @cached_property
    def introduced(self) -> tuple[Row, ...]:
        """The rows, in order, whose own node is wrong or differs from run to run (see `Row.isolated`)."""
        return tuple(row for row in self.rows if row.introduced)

    @cached_property
    def random(self) -> tuple[str, ...]:
        """The names of the nodes that draw random numbers, in order.

        What is computed from them is judged on the numbers that the reference has drawn, where the backend can be given
        these; elsewhere it is not judged.
        """
        return tuple(dict.fromkeys(row.node for row in self.rows if row.random and row.kind != "output"))

    @cached_property
    def close(self) -> bool:
        """Whether nothing differs, no node makes a value wrong, and every result of the model was judged."""
        outputs = [row for row in self.rows if row.kind == "output"]
        sound = not (self.failed or self.interface or self.diverged or self.introduced)
        return sound and bool(outputs) and all(row.judged for row in outputs)

    @cached_property
    def explanation(self) -> Explanation | None:
        """What a comparison by float64 comes to, in words and as facts; None if it was made without (`truth`)."""
        found = explain(self.rows, self.introduced, self.graphs)
        if found is None:
            return None
        return replace(
            found, culprits=self.culprits, switches=self.switches, repro=self.repro, interface=self.interface
        )

    @property
    def worst(self) -> Row | None:
        """The row with the largest error."""
        return max((row for row in self.rows if row.error is not None), key=lambda row: row.error or 0.0, default=None)

    @cached_property
    def graph(self) -> Graph:
        """The graph that was compared, with the findings that views draw.

        The compiled graph, if there is one, with the exported one as the graph that it was made of.
        """
        explained = [] if self.explanation is None else [str(self.explanation)]
        remarks = (self.headline(), *explained, *self._notes(), " ".join(map(str.strip, self.summary())))
        drawn = picture(self.rows, self.graphs, self.first_divergence)
        return replace(drawn, name=self._title(), remarks=remarks)

    def view(self, name: str, path: str | os.PathLike[str]) -> Path:
        """Draw `graph` into a file (see `filch.export.views.save`)."""
        return save(self.graph, name, path)

    def headline(self) -> str:
        """What was judged, what was not and why, and whether observing changed anything, in one line."""
        compared, there = self.calls
        parts = [f"compared {compared} of {there} calls"] if there > compared else []
        stages = [stage for stage in ("exported", "compiled") if _of(self.rows, stage)]
        parts += [f"judged {_share(self.rows, stage)}" for stage in stages]
        parts += [f"INCOMPLETE: {reason}" for reason in self.failed]
        parts += [f"WRONG INTERFACE: {problem}" for problem in self.interface]
        return named("; ".join([*parts, f"the observed run {_told(self.observer_effect)}"]), SENTENCE)

    def assert_close(self) -> None:
        """Raise if anything differs or no result could be judged.

        Raises:
            AssertionError: with all differences, the first one in front.
        """
        if self.close:
            return
        outputs = [row for row in self.rows if row.kind == "output" and not row.judged]
        lines = [f"{self.program} on {self.backend} is not close to {self.reference}!", "", self.headline(), ""]
        if self.first_divergence:
            lines += [f"First: {self.first_divergence}", "", f"All {len(self.diverged)} that differ:"]
            lines += [f"  {row}" for row in self.diverged]
        lines += list(self.failed)
        lines += [f"  output {row.value} was not judged: {row.reason}" for row in outputs]
        raise AssertionError("\n".join(named(line, SENTENCE) for line in lines))

    def summary(self) -> list[str]:
        """Return the verdict in a few lines, without what float64 explains."""
        return [*self.interface, *self._of_values()]

    def verdict(self) -> list[str]:
        """Return the verdict in a few lines, with what float64 explains, if it was asked for."""
        return [*self.summary(), *(["", str(self.explanation)] if self.explanation is not None else [])]

    def blocks(self, *, wide: bool = False, view: str = "nodes") -> Iterable[Block]:
        """Return the tables of a view and the sentences around them; see `table`."""
        yield self.headline()
        yield self._title()
        yield from self._notes()
        for block in self._tables(view, wide=wide):
            yield from ("", block)
        yield from ("", *self.verdict())

    def table(self, view: str = "nodes", *, wide: bool = False, width: int | None = None) -> str:
        """Return the report as text.

        Args:
            view: `nodes` (a row for each value of each graph), `operators` (a row for each operation of the model, in
                hidet's manner), `modules` (a row for each tensor that a module took or gave), `outcomes` (a row for
                each exported node: what became of it in the compiled graph), `dynamo` (the operators, then the kernels
                that a compiler made of them) or `precision` (a row for each value: its signal-to-noise ratio, and how
                many elements overflowed or were clipped).
            wide: all rows and columns, nothing cut.
            width: characters in a line; None is the terminal's.
        """
        if view not in TABLES:
            raise ValueError(f"there is no view {view!r}; there are {', '.join(TABLES)}")
        return as_text(self.blocks(view=view, wide=wide), width=WIDE if wide else width)

    def excerpt(self, *, around: int = 3, width: int = 80) -> str:
        """Return the first row that differs, and `around` rows before and after it, as text; `""` if none differs."""
        first = self.first_divergence
        return "" if first is None else as_text(neighbourhood(self.rows, first, around), width=width)

    def record(self) -> dict[str, Any]:
        """Return the fields and what follows from them, as JSON has it; an operator names its row by its index."""
        places = {id(row): place for place, row in enumerate(self.rows)}
        operators = [
            [{**plain(replace(item, row=None)), "row": places.get(id(item.row))} for item in call]
            for call in self.operators
        ]
        return {**plain(self.derived()), **plain(replace(self, operators=())), "operators": operators}

    def derived(self) -> Mapping[str, Any]:
        """Return what follows from the fields, by name, for programs that read JSON."""
        return {
            "filch_report": VERSION,
            "close": self.close,
            "undisturbed": self.undisturbed,
            "headline": self.headline(),
            "random": self.random,
            "first_divergence": self.first_divergence,
            "explanation": None if self.explanation is None else self.explanation.facts(),
        }

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV, with the measures of their differences; also written to `path` if one is given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*_COLUMNS, *MEASURES])
        for row in self.rows:
            measured = row.difference.measures if row.difference is not None and row.error is not None else {}
            values = *(getattr(row, name) for name in _COLUMNS), *(measured.get(name) for name in MEASURES)
            writer.writerow([for_csv(_csv_cell(value)) for value in values])
        return written(text.getvalue(), path)

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as a Markdown table, also written to `path` if one is given."""
        heading = f"{self.program} on {self.backend} against {self.reference}: {self.headline()}."
        return written(as_markdown([heading, table_of(_MARKDOWN_COLUMNS, self.rows)]), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the report as an HTML page that needs nothing else, also written to `path` if one is given.

        It is the view `html` of `graph`: see `filch.export.views`.
        """
        return written(draw(self.graph, "html").content.decode("utf-8"), path)

    def _title(self) -> str:
        return f"{self.program} on {self.backend}, against {self.reference}"

    def _notes(self) -> list[str]:
        return [*(f"note: {note}" for note in self.notes), *_random_numbers(self.random)]

    def _tables(self, view: str, *, wide: bool) -> Iterable[Block]:
        if view == "modules":
            yield module_table(self.modules, wide=wide)
        elif view == "outcomes" and not self.outcomes:
            yield f"{self.backend} made no graph of its own of the program"
        elif view == "outcomes":
            yield from outcome_table(self.outcomes, wide=wide)
        elif view == "nodes":
            yield from node_tables(self.rows, self.outcomes, wide=wide)
        elif view == "precision":
            yield from precision_tables(self.rows, wide=wide)
        else:
            yield from operator_tables(self.operators, wide=wide)
            if view == "dynamo":
                yield from compiled_tables(self.rows, wide=wide)

    def _of_values(self) -> list[str]:
        if self.first_divergence is not None:
            count = len(self.diverged)
            return [
                "1 row differs; it is" if count == 1 else f"{count} rows differ; the first is",
                f"  {self.first_divergence}",
            ]
        if self.failed:
            return [f"what was judged is close, but the comparison is not complete: {self.failed[0]}"]
        outputs = [row for row in self.rows if row.kind == "output"]
        unjudged = [row for row in outputs if not row.judged]
        if unjudged or not outputs:
            return [
                f"nothing was found to differ, but output {row.value!r} could not be judged: {row.reason}"
                for row in unjudged
            ] or ["nothing could be judged"]
        worst = self.worst
        largest = f"; the largest error is {worst.error:.1e}, at {worst.value} ({worst.op})" if worst else ""
        return [("otherwise, " if self.interface else "") + _all_close(self.rows) + largest]


def _random_numbers(names: Sequence[str]) -> list[str]:
    """A line about the nodes that draw random numbers, if there are such."""
    if not names:
        return []
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    listed = ", ".join(names[:_MOST])
    return [f"random numbers are drawn by {listed}{more}: their distribution is compared, not the numbers"]


def _all_close(rows: Sequence[Row]) -> str:
    """Not more than was found: what had no reference is not among what is close."""
    missing = []
    for stage in dict.fromkeys(row.stage for row in rows):
        values = _of(rows, stage)
        without = sum(not row.judged for row in values)
        missing += [f"{without} of {len(values)} {stage} values"] if without else []
    return f"all that could be judged is close, {' and '.join(missing)} could not" if missing else "all close"


def _csv_cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else value


def _told(effect: Difference | None) -> str:
    if effect is None:
        return "equals the undisturbed one"
    amount = f": {effect.problem}" if effect.problem else f" by up to {effect.error_max:.1e}"
    return f"DIFFERS FROM the undisturbed one{amount}"


def _of(rows: Sequence[Row], stage: str) -> list[Row]:
    return [row for row in rows if row.stage == stage and row.kind != "output"]


def _share(rows: Sequence[Row], stage: str) -> str:
    """`166 of 169` and what became of the rest."""
    chosen = _of(rows, stage)
    rest = Counter(row.status for row in chosen if not row.judged)
    missing = ", ".join(f"{count} {status}" for status, count in rest.items())
    share = f"{sum(row.judged for row in chosen)} of {len(chosen)} {stage} values"
    return f"{share} ({missing})" if missing else share
