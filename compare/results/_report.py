"""`Report`: the result of comparing a program with a model, and its file."""

import csv
import io
import os
import reprlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from filch.export import Graph
from filch.export.backends import Stage
from filch.export.views import save
from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import parse_json, read_untrusted
from filch.steal.text._csv import for_csv
from filch.steal.text._visible import short_line, shortened

from ..common._errors import CompareError
from ..locating._first_wrong import inherited
from ..metrics._metrics import MEASURES, Difference
from ..metrics._tolerance import Tolerance
from ..rendering._console import as_text
from ..rendering._json import NOT_IN_JSON, plain, typed
from ..rendering._markdown import as_markdown
from ..rendering._outcome import Gap, Proof
from ..rendering._result import NextCommand, Result, written
from ..rendering._table import Block, Columns, Line, hidden_text, table_of
from ..rendering._words import listed
from ._explanation import Explanation, explain, reasons_of
from ._module_summary import module_summary
from ._next_command import to_blame, to_repeat, to_run_every_node, to_run_repro, to_show_all
from ._picture import picture
from ._row_tables import (
    compiled_table,
    excerpt_table,
    legend,
    module_table,
    node_tables,
    operator_tables,
    outcome_table,
    precision_tables,
)
from ._rows import SENTENCE, STAGES, ModelOperation, ModuleRow, NodeOutcome, Row

BY_MAPPING = ", by a mapping"  # after the name of a capture of another implementation
EAGER_PYTORCH = "eager PyTorch"  # the reference of a graph that torch.compile made
TABLES = ("summary", "nodes", "operators", "modules", "outcomes", "dynamo", "precision")
_AROUND = 5  # rows before and after the first divergence in a summary
_MAX_NOTES, _MAX_NOTE = 2, 240  # of a summary; characters of each
_NESTED = ("difference", "spread", "float64", "isolated")  # fields of a row that are no cell of a table
_COLUMNS = tuple(item.name for item in fields(Row) if item.name not in _NESTED)
_MARKDOWN_FIELDS = ("stage", "index", "kind", "op", "module", "dtype", "error", "status")
_MARKDOWN_COLUMNS: Columns[Row] = {"operator" if name == "op" else name: attrgetter(name) for name in _MARKDOWN_FIELDS}


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The result of comparing a program on a backend with the recorded tensors of a model.

    Attributes:
        backend: the backend's name.
        reference: the path or name of the reference.
        program: the path or name of the program.
        rows: one for each value of the exported graph and of the compiled one, in the order in which they run.
        modules: one for each input and output tensor of a captured module call.
        observer_effect: the largest difference between the outputs of the instrumented and of the plain run; None if
            they are bitwise equal.
        notes: remarks for the reader.
        calls: the number of calls of the model that were compared, and the number of its calls in the reference.
        failed: parts of the comparison that are missing: the compiled graph, if the backend could only run the exported
            one; outputs of the model that the graph does not have.
        interface: how the inputs and outputs of the program, or of the compiled graph, differ from the model's: another
            order, missing, added, duplicated. Only known if the file records the exported interface.
        operators: the model's own operations, for each call; empty if the program does not record them.
        outcomes: the outcome of each exported node in the compiled graph; empty if there is no compiled graph.
        options: the options of the backend, if it was given by its name.
        tolerance: the tolerance that the user gave; None depends on the dtype.
        lower_precision: whether values of a lower precision were allowed.
        graphs: the graphs that were compared, by stage; the nodes of the compiled one have their origins. Empty if the
            rows are of several graphs.
        culprits: the transformations without which there is no error, if `blame` was called.
        switches: the number of transformations that could be disabled, 0 if the search failed; None without `blame`.
        repro: the folder of the repro that `blame` wrote; `""` if there is none, or if the report was read from a file.
        changed_weights: names of the weights that the node where the error starts reads, directly or through constants,
            and that are not the model's; empty if the export is not known.
        coarser_dtype: the coarser dtype in which the graph computes the value where the error starts, such as
            `float16`; `""` if it has the precision of the model, or if the export is not known.
        command: the command line that made the report, for the next command that it suggests; `""` if it was made in
            Python or read from a file.
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
    operators: tuple[tuple[ModelOperation, ...], ...] = field(default=(), repr=False, metadata=NOT_IN_JSON)
    outcomes: tuple[NodeOutcome, ...] = field(default=(), repr=False)
    graphs: Mapping[Stage, Graph] = field(default_factory=dict, repr=False)
    culprits: tuple[str, ...] = ()
    switches: int | None = None
    repro: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: Tolerance | None = None
    lower_precision: bool = False
    interface: tuple[str, ...] = ()
    changed_weights: tuple[str, ...] = ()
    coarser_dtype: str = ""
    command: str = field(default="", metadata=NOT_IN_JSON)  # a reader could not trust it
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_report": 7}

    @property
    def undisturbed(self) -> bool:
        """Whether instrumentation did not change the outputs, bit for bit."""
        return self.observer_effect is None

    @cached_property
    def diverged(self) -> tuple[Row, ...]:
        """The rows that differ from their references, in order."""
        return tuple(row for row in self.rows if row.diverged)

    @cached_property
    def first_divergence(self) -> Row | None:
        """The first row that differs, in the exported graph if one differs there, else in the compiled graph.

        Every value that it depends on and that could be judged is close. If nodes ran in isolation, it is the first row
        whose own node is wrong, if there is one; or where the exported graph did not run in isolation, the first node
        that is wrong there of those that the wrong node computes.
        """
        if self.introduced:
            first = self.introduced[0]
            return next(self._exported_causes(first), first)
        return next((row for row in self.diverged if row.kind != "output"), next(iter(self.diverged), None))

    def _exported_causes(self, wrong: Row) -> Iterator[Row]:
        """Yield exported rows that may be the cause of a wrong compiled one, unless they ran in isolation.

        They are those of the nodes that it computes, and those before them whose value no compiled row has.
        """
        rows = [row for row in self.rows if row.call == wrong.call and row.kind != "output"]
        known = {row.value for row in rows if row.stage == "compiled" and row.judged}
        exported = [row for row in rows if row.stage == "exported"]
        last = max((row.index for row in exported if row.node in wrong.origins), default=-1)
        for row in exported:
            is_candidate = row.node in wrong.origins or (row.index <= last and row.value not in known)
            if is_candidate and row.diverged and row.isolated is None:
                yield row

    @property
    def first_difference(self) -> str:
        """The first row that differs, or else how the interface does."""
        return str(self.first_divergence or next(iter(self.interface), ""))

    @cached_property
    def introduced(self) -> tuple[Row, ...]:
        """The rows, in order, whose own node is wrong or differs from run to run (see `Row.isolated`)."""
        return tuple(row for row in self.rows if row.introduced)

    @cached_property
    def inherited(self) -> tuple[Row, ...]:
        """The rows that differ because of other values, in order.

        Their own node is right, or it did not run in isolation and what it reads is computed from a value that differs.
        Outputs whose value also differs in the instrumented run are among them.
        """
        # The names of values in the instrumented run, by the call of the model and the stage.
        wrong = defaultdict[tuple[int, Stage], set[str]](set)
        right = defaultdict[tuple[int, Stage], set[str]](set)
        for row in self.rows:
            if row.judged and row.kind != "output":
                names = wrong if row.diverged else right
                names[row.call, row.stage].add(row.value)
        inheriting = {
            (call, stage): inherited(self.graphs[stage].nodes, names, right[call, stage])
            for (call, stage), names in wrong.items()
            if stage in self.graphs
        }

        def inherits(row: Row) -> bool:
            if row.isolated is not None:
                return not row.introduced
            run = row.call, row.stage
            return row.value in inheriting.get(run, ()) or (row.kind == "output" and row.value in wrong[run])

        return tuple(row for row in self.diverged if inherits(row))

    @cached_property
    def random(self) -> tuple[str, ...]:
        """The names of the nodes that draw random numbers, in order.

        Values computed from them are judged if the backend can be given the numbers that the reference has drawn.
        """
        return tuple(dict.fromkeys(row.node for row in self.rows if row.random and row.kind != "output"))

    @property
    def proof(self) -> Proof:
        """What was judged: a value or an interface may be wrong, a stage or an output missing.

        Calls with other inputs than the program's are no part of it; the headline says how many there are.
        """
        missing = [Gap("", reason) for reason in self.failed]
        outputs = [row for row in self.rows if row.kind == "output"]
        missing += [] if outputs else [Gap("", "no output of the program was compared")]
        unjudged = [Gap(row.value, row.reason) for row in outputs if not row.judged]
        is_wrong = bool(self.interface or self.diverged or self.introduced)
        return Proof(sum(row.judged for row in self.rows), is_wrong, (*missing, *unjudged))

    def __repr__(self) -> str:
        return short_line(f"<Report {self.outcome}: {self.title}; {self.headline}>")

    @property
    def next_command(self) -> NextCommand:
        """The command that finds the cause of a difference and writes a repro; if none differs, one that shows all."""
        if self.repro:
            return to_run_repro(self.repro)
        command = self.command or to_repeat(
            self.reference, self.program, backend=self.backend, options=self.options, tolerance=self.tolerance
        )
        is_blamed = bool(self.culprits) or self.switches is not None  # and `blame` could write no repro
        if self.reference.endswith(BY_MAPPING):  # the program does what the other implementation does
            return to_show_all(self.command)
        is_broken = self.failed and all(row.stage == "exported" for row in self.rows)  # by what optimizes the graph
        if is_broken and not is_blamed and self.reference != EAGER_PYTORCH:
            return to_blame(command)
        if self.first_divergence is None or self.lower_precision or (is_blamed and self.explanation is None):
            return to_show_all(command)
        if is_blamed:
            return to_run_every_node(command)
        if self.reference == EAGER_PYTORCH:  # there is no capture that `blame` could be given
            return NextCommand("report.show()", "look at the graph and each value")
        return to_blame(command)

    @cached_property
    def explanation(self) -> Explanation | None:
        """The explanation of a comparison by float64, as text and as facts; None if no value was judged by it."""
        names = ("culprits", "switches", "repro", "interface", "changed_weights", "coarser_dtype")
        return explain(self.rows, self.introduced, self.graphs, **{name: getattr(self, name) for name in names})

    @property
    def worst(self) -> Row | None:
        """The row with the largest error, apart from what rounding decides otherwise and what follows from this."""
        rows = (row for row in self.rows if row.error is not None and not (row.decides or row.follows))
        return max(rows, key=lambda row: row.error or 0.0, default=None)

    @cached_property
    def graph(self) -> Graph:
        """The graph that was compared, with the findings that views draw.

        This is the compiled graph, if there is one, with the exported graph as its source graph.
        """
        explained = [] if self.explanation is None else [str(self.explanation)]
        remarks = (self.headline, *explained, *self._notes(), " ".join(map(str.strip, self.summary())))
        drawn = picture(self.rows, self.graphs, self.first_divergence)
        return replace(drawn, name=self.title, remarks=remarks, close=self.close)

    def view(self, name: str, path: str | os.PathLike[str]) -> Path:
        """Draw `graph` into a file (see `filch.export.views.save`)."""
        return save(self.graph, name, path)

    @property
    def headline(self) -> str:
        """In one line, what was judged, what was not and why, and whether instrumentation changed the outputs."""
        compared, recorded = self.calls
        parts = [f"compared {compared} of {recorded} calls"] if recorded > compared else []
        stages = [stage for stage in STAGES if _values(self.rows, stage)]
        parts += [f"judged {_judged_share(self.rows, stage)}" for stage in stages]
        parts += [f"INCOMPLETE: {reason}" for reason in self.failed]
        parts += [f"WRONG INTERFACE: {problem}" for problem in self.interface]
        return short_line("; ".join([*parts, _observer_effect_text(self.observer_effect)]), SENTENCE)

    def assert_close(self) -> None:
        """Raise if anything differs or no result could be judged.

        Raises:
            AssertionError: with the first difference, the others that are not `inherited`, and the number of those.
        """
        if self.passes:
            return
        lines = [f"{self.program} on {self.backend} is not close to {self.reference}!", "", self.headline, ""]
        if self.first_divergence:
            lines.append(f"First: {self.first_divergence}")
            left_out = {id(row) for row in (self.first_divergence, *self.inherited)}
            others = [row for row in self.rows if (row.diverged or row.introduced) and id(row) not in left_out]
            lines += ["", "Also wrong:", *(f"  {row}" for row in others)] if others else []
            if count := len(self.inherited):
                lines += ["", "1 more row inherits an error." if count == 1 else f"{count} more rows inherit an error."]
        raise AssertionError("\n".join(short_line(line, SENTENCE) for line in (*lines, *self.gap_sentences())))

    def summary(self) -> list[str]:
        """Return the verdict in a few lines, without the explanation by float64."""
        return [*self.interface, *self._values_verdict()]

    def verdict(self) -> list[str]:
        """Return the verdict in a few lines, with the explanation by float64, if there is one."""
        return [*self.summary(), *(["", str(self.explanation)] if self.explanation is not None else [])]

    def blocks(self, *, wide: bool = False, all_rows: bool = False, view: str = "summary") -> Iterable[Block]:
        """Return the tables of a view and the sentences around them; see `table`."""
        yield from self.heading()
        if view == "summary" and not all_rows:
            yield from self._summary_blocks()
        else:
            yield from self._notes()
            for block in self._tables("nodes" if view == "summary" else view, wide=wide):
                yield from ("", block)
            yield from ("", *self.verdict())

    def _summary_blocks(self) -> Iterable[Block]:
        """Yield the verdict, the rows around the first difference, and a row for each module."""
        notes, first = self._notes(), self.first_divergence
        yield from (shortened(note, _MAX_NOTE) for note in notes[:_MAX_NOTES])
        yield from hidden_text(notes, _MAX_NOTES, "more notes")
        yield from ("", *self.interface)
        is_whole = all(row.judged for row in self.rows if row.kind != "constant")
        # The explanation does not say what was not judged.
        if self.explanation is None or self.outcome == "incomplete" or (self.close and not is_whole):
            yield from self._values_verdict()
        if self.explanation is not None:
            yield str(self.explanation)
        if first is not None:
            yield from ("", Line(f"First difference, in the {first.stage} graph:", "heading"))
            yield from excerpt_table(self.rows, first, _AROUND)
        stage = first.stage if first is not None else next((row.stage for row in reversed(self.rows)), "exported")
        calls = f", all {self.calls[0]} calls" if self.calls[0] > 1 else ""
        yield from ("", Line(f"Modules, in the {stage} graph{calls}:", "heading"))
        rows = [row for row in self.rows if row.stage == stage]
        counted = [row for row in rows if row.kind not in ("output", "constant") or row.diverged]
        yield from module_summary(counted, first)

    def table(
        self,
        view: str = "summary",
        *,
        wide: bool = False,
        all_rows: bool = False,
        width: int | None = None,
        color: bool = False,
    ) -> str:
        """Return the report as text.

        Args:
            view: `summary` (the verdict, the first divergence with the rows around it, and a row for each module; the
                same as `nodes` if `wide` or `all_rows`), `nodes` (a row for each value of each graph), `operators` (a
                row for each operation of the model, as in hidet), `modules` (a row for each input and output tensor of
                a module), `outcomes` (a row for each exported node: its outcome in the compiled graph), `dynamo` (the
                operators, then the kernels that a compiler made of them) or `precision` (a row for each value: its
                signal-to-noise ratio, and how many elements overflowed or were clipped).
            wide: all rows and columns, nothing cut.
            all_rows: a row for each value, instead of the summary.
            width: characters in a line; None is the terminal's.
            color: whether it is colored, by escape sequences of a terminal.
        """
        if view not in TABLES:
            raise ValueError(f"there is no view {view!r}; there are {', '.join(TABLES)}")
        blocks = self.blocks(view=view, wide=wide, all_rows=wide or all_rows)
        return self._text(blocks, wide=wide, width=width, color=color)

    def excerpt(self, *, around: int = 3, width: int = 80) -> str:
        """Return the first row that differs, and `around` rows before and after it, as text; `""` if none differs."""
        first = self.first_divergence
        return "" if first is None else as_text(excerpt_table(self.rows, first, around), width=width)

    def record(self) -> dict[str, Any]:
        """Return the fields and what follows from them, as JSON has it; an operator names its row by its index."""
        indices = {id(row): index for index, row in enumerate(self.rows)}
        calls = [[{**plain(item), "row": indices.get(id(item.row))} for item in call] for call in self.operators]
        return {**super().record(), "operators": calls}

    def derived(self) -> Mapping[str, Any]:
        """Return what follows from the fields, by name, for programs that read JSON."""
        return {
            **super().derived(),
            "undisturbed": self.undisturbed,
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
            values = *(getattr(row, name) for name in _COLUMNS), *map(row.measures.get, MEASURES)
            cells = (" ".join(map(str, value)) if isinstance(value, list | tuple) else value for value in values)
            writer.writerow(map(for_csv, cells))
        return written(text.getvalue(), path)

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the verdict and the rows as Markdown, also written to `path` if one is given."""
        verdict = (line.strip() for line in self.verdict() if line)
        blocks = [*self.heading(), *self._notes(), *verdict]
        after = [str(block).strip() for block in self.next_command.blocks()]
        return written(as_markdown([*blocks, table_of(_MARKDOWN_COLUMNS, self.rows), *after]), path)

    @property
    def title(self) -> str:
        """The program, the backend and the reference."""
        return f"{self.program} on {self.backend}, against {self.reference}"

    def _notes(self) -> list[str]:
        """Return remarks for the reader, also about nodes that draw random numbers."""
        notes = [f"note: {note}" for note in self.notes]
        if self.random:
            names = listed(self.random)
            notes.append(f"random numbers are drawn by {names}: their distribution is compared, not the numbers")
        return notes

    def _tables(self, view: str, *, wide: bool) -> Iterable[Block]:
        """Yield the tables and sentences of a view other than `summary`; see `table`."""
        if view == "modules":
            yield module_table(self.modules, wide=wide)
        elif view == "outcomes" and not self.outcomes:
            yield f"{self.backend} compiles no graph of its own"
        elif view == "outcomes":
            yield from outcome_table(self.outcomes, wide=wide)
        elif view == "nodes":
            yield from node_tables(self.rows, self.outcomes, wide=wide)
            if not wide:
                yield from legend(self.rows)
        elif view == "precision":
            yield from precision_tables(self.rows, wide=wide)
        else:
            yield from operator_tables(self.operators)
            if view == "dynamo":
                yield from compiled_table(self.rows, wide=wide)

    def _values_verdict(self) -> list[str]:
        """Return the first row that differs; else what was not judged, or the largest error, in one or two lines."""
        first = self.first_divergence
        if first is not None:
            count = len(self.diverged)
            reasons = () if self.explanation else reasons_of(first, self.changed_weights, self.coarser_dtype)
            return [
                "1 row differs; it is" if count == 1 else f"{count} rows differ; the first is",
                f"  {'; '.join([str(first), *reasons])}",
            ]
        if gaps := self.gap_sentences():
            return [f"no value that was judged differs, but {gap}" for gap in gaps]
        worst = self.worst if self.explanation is None else None  # which names the largest error in roundings
        largest = f"; the largest error is {worst.error:.1e}, at {worst.value} ({worst.op})" if worst else ""
        return [("otherwise, " if self.interface else "") + _all_close(self.rows) + largest]


def _all_close(rows: Sequence[Row]) -> str:
    """Return `all close`, or how many values could not be judged."""
    missing = []
    for stage in dict.fromkeys(row.stage for row in rows):
        values = _values(rows, stage)
        if unjudged := sum(not row.judged for row in values):
            missing.append(f"{unjudged} of {len(values)} {stage} values")
    return f"all that could be judged is close, {' and '.join(missing)} could not" if missing else "all close"


def _observer_effect_text(effect: Difference | None) -> str:
    """Return whether instrumentation changed the outputs, as a phrase; see `Report.observer_effect`."""
    if effect is None:
        return "instrumentation did not change the outputs"
    amount = f": {effect.problem}" if effect.problem else f" by up to {effect.error:.1e}"
    return f"instrumentation CHANGED the outputs{amount}"


def _values(rows: Sequence[Row], stage: str) -> list[Row]:
    """Return the rows of the values of a graph, without the outputs of the run without instrumentation."""
    return [row for row in rows if row.stage == stage and row.kind != "output"]


def _judged_share(rows: Sequence[Row], stage: str) -> str:
    """Return `166 of 169 exported values` with the statuses of the others."""
    values = _values(rows, stage)
    counts = Counter(row.status for row in values if not row.judged)
    unjudged = ", ".join(f"{count} {status}" for status, count in counts.items())
    share = f"{sum(row.judged for row in values)} of {len(values)} {stage} values"
    return f"{share} ({unjudged})" if unjudged else share


def load_report(path: str | os.PathLike[str]) -> Report:
    """Read a report that `Report.to_json` wrote.

    Args:
        path: the path of the file.

    Returns:
        the report, without the ONNX models of its graphs.

    Raises:
        CompareError: there is no such file, it is no report, or it is damaged.
    """
    file = Path(path)
    try:
        data = parse_json(read_untrusted(file, budget_of("report")))
    except OSError as error:
        raise CompareError(f"can't read {str(file)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{str(file)!r} is not JSON: {error}") from error
    if not isinstance(data, dict) or "filch_report" not in data:
        raise CompareError(f"{str(file)!r} is JSON, but no report: `filch check --output report.json` writes one")
    version = data["filch_report"]
    if type(version) is not int or version != _VERSION:
        raise CompareError(
            f"{str(file)!r} is a report of version {reprlib.repr(version)}; this Filch reads version {_VERSION}"
        )
    try:
        return _report(data)
    except _DAMAGE_ERRORS as error:
        detail = " ".join(str(error)[:_MAX_CAUSE].split())
        raise CompareError(f"the report {str(file)!r} is damaged: {type(error).__name__}: {detail}") from error


def _report(data: Mapping[str, Any]) -> Report:
    """Return a report from its JSON, without what a file from somebody else must not say."""
    # A report suggests a command to run from the folder of a repro, which is a program; and reasons for passing.
    report: Report = replace(typed(Report, data, ""), accepted={}, repro="")
    operators = [tuple(_operator(item, report.rows) for item in call) for call in data["operators"]]
    return replace(report, operators=tuple(operators))


_VERSION = Report.FORMAT["filch_report"]
# Errors that reading damaged JSON as a report can raise; RecursionError is a RuntimeError.
_DAMAGE_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, CompareError)
_MAX_CAUSE = 300  # characters of the cause in a message


def _operator(data: Mapping[str, Any], rows: tuple[Row, ...]) -> ModelOperation:
    """Return an operation from its JSON, which names its row by its index."""
    index = typed(int | None, data["row"], "operators.row")
    operator: ModelOperation = typed(ModelOperation, data, "operators")
    return operator if index is None else replace(operator, row=rows[index])
