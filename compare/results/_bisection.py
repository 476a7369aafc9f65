"""The report of a bisection."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from filch.export.backends import Switch

from ..rendering._outcome import Proof
from ..rendering._result import NextCommand, Result
from ..rendering._table import Block, Column, Columns, hidden_text, table_of
from ..rendering._words import plural
from ._next_command import to_blame, to_repeat
from ._precision import OutputDifferences

_NAMES_WIDTH = 40  # characters
_SHOWN = 20  # steps, and culprits


@dataclass(frozen=True)
class Step:
    """One run with some transformations disabled.

    Attributes:
        off: the transformations that were disabled.
        outcome: the error of the run.
        fingerprint: of the graph that ran; `""` if it could not be compiled.
        ops: the number of nodes of each operator in that graph; None if it could not be compiled.
        switches: the transformations that changed the graph in this run.
    """

    off: tuple[Switch, ...]
    outcome: OutputDifferences
    fingerprint: str = ""
    ops: Mapping[str, int] | None = None
    switches: tuple[Switch, ...] = ()


@dataclass(frozen=True)
class Culprit:
    """A transformation that causes the error, alone or together with the other culprits.

    Attributes:
        kind: its kind (see `Switch`).
        name: its name.
        without: the outcome with this one applied and the other culprits disabled: the error.
        appears: the number of nodes of each operator that it adds to the graph, the other culprits disabled.
        disappears: the number of nodes of each operator that it removes.
        nodes: the number of nodes of the graph with it and without it.
    """

    kind: str
    name: str
    without: OutputDifferences
    appears: Mapping[str, int]
    disappears: Mapping[str, int]
    nodes: tuple[int, int]


@dataclass(frozen=True)
class Version:
    """The outcome with another version of the backend's library, nothing disabled.

    Attributes:
        interpreter: the path of the Python interpreter that has it.
        version: the library's version; `""` if the program can't be run there.
        outcome: the error of the run.
    """

    interpreter: str
    version: str
    outcome: OutputDifferences


@dataclass(frozen=True, repr=False)
class BisectReport(Result):
    """The transformations that cause an error.

    Attributes:
        backend: the name of the backend.
        reference: the capture or dump.
        program: the name or path of the program.
        value: the value that was judged; None is all outputs.
        before: the outcome with nothing disabled.
        after: the outcome with only the culprits disabled; None if there are none.
        best: the outcome with every candidate disabled; None if there is no error, or no candidate.
        culprits: a minimal set without which there is no error; the error reappears with any one of them.
        candidates: the transformations that could be disabled.
        steps: every run, in order.
        notes: remarks for the reader.
        versions: the outcomes in other interpreters.
    """

    backend: str
    reference: str
    program: str
    value: str | None
    before: OutputDifferences
    after: OutputDifferences | None
    best: OutputDifferences | None
    culprits: tuple[Culprit, ...]
    candidates: tuple[Switch, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    versions: tuple[Version, ...] = ()
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_bisect": 1}

    @property
    def proof(self) -> Proof:
        """Whether there is an error with nothing disabled."""
        return self.before.proof

    @property
    def runs(self) -> int:
        """The number of runs, including those that were read from a journal."""
        return len(self.steps)

    @property
    def headline(self) -> str:
        """What was judged, and the number of candidates and runs."""
        judged = "the outputs" if self.value is None else self.value
        counts = f"{plural(len(self.candidates), 'candidate')}, {plural(self.runs, 'run')}"
        return f"{self.program} on {self.backend} against {self.reference}: {judged}; {counts}"

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:
        """Return each run, then the culprits."""
        yield self.headline
        yield from (f"note: {note}" for note in self.notes)
        disabled: Columns[Step] = {"disabled": lambda step: _disabled_text(step, self.candidates, wide=wide)}
        table = table_of(disabled | _COLUMNS, self.steps, numbers=("run", 1))
        if not all_rows and len(table.rows) > _SHOWN:
            half, hidden = _SHOWN // 2, ("…", f"{len(table.rows) - _SHOWN} more", "", "", "", "")
            table = replace(table, rows=(*table.rows[:half], hidden, *table.rows[-half:]))
        yield from ("", table, "")
        yield from _verdict_lines(self, len(self.culprits) if all_rows else _SHOWN)
        for item in self.versions:
            name = f"version {item.version} in {item.interpreter}" if item.version else item.interpreter
            yield f"{name}: {item.outcome}{'' if item.outcome.passes or item.outcome.problem else ', not close'}"

    @property
    def next_command(self) -> NextCommand | None:
        """The command that compares every value, and writes a repro if a culprit was found; None without files."""
        command = to_repeat(self.reference, self.program, backend=self.backend)
        if not command:
            return None
        return to_blame(command) if self.culprits else NextCommand(command, "compare every value")

    def derived(self) -> Mapping[str, Any]:
        """Return whether there is an error, and the number of runs."""
        return {**super().derived(), "runs": self.runs}


_COLUMNS: Columns[Step] = {
    Column("error"): lambda step: _error_text(step.outcome),
    Column("SNR", right=True): lambda step: "" if step.outcome.problem else f"{step.outcome.snr:.0f}",
    Column("nodes", right=True): lambda step: sum((step.ops or {}).values()),
    Column("graph"): lambda step: step.fingerprint[:8],
}


def _disabled_text(step: Step, candidates: Sequence[Switch], *, wide: bool) -> str:
    """Return the names of the transformations that were disabled; unless `wide`, a short form of many."""
    names = ", ".join(switch.name for switch in step.off)
    if wide or len(names) <= _NAMES_WIDTH:
        return names or "nothing"
    if len(step.off) == len(candidates):
        return "all"
    if len(step.off) == 1:
        return names
    return f"{len(step.off)}: {step.off[0].name} … {step.off[-1].name}"


def _error_text(outcome: OutputDifferences) -> str:
    """Return the error of a run, with `!` if it misses the goal."""
    return "can't be judged" if outcome.problem else f"{outcome.error:.1e}{'' if outcome.passes else ' !'}"


def _verdict_lines(report: BisectReport, shown: int) -> list[str]:
    """Return lines about the error and up to `shown` culprits, or why there are none."""
    if report.close:
        return [f"no error with nothing disabled: {report.before}"]
    if not report.candidates:
        return [f"there is an error ({report.before}), but no transformation that can be disabled changed the graph"]
    if report.after is None:
        return [
            f"no culprit among the candidates: {report.before}; with all of them disabled, {report.best}",
            "The difference is in the program that was exported, or in the kernels that run it.",
        ]
    count = "this one is" if len(report.culprits) == 1 else f"these {len(report.culprits)} together are"
    lines = [f"with nothing disabled: {report.before}", f"{count} disabled: {report.after}"]
    for culprit in report.culprits[:shown]:
        lines.append(f"  {culprit.kind} {culprit.name}: {_change_text(culprit)}")
        if len(report.culprits) > 1:
            lines.append(f"    (with this one but without the others: {culprit.without})")
    return lines + [f"  {line}" for line in hidden_text(report.culprits, shown)]


def _change_text(culprit: Culprit) -> str:
    """Return the operators that a culprit adds and removes, and the number of nodes with and without it."""
    parts = []
    for verb, counts in (("adds", culprit.appears), ("removes", culprit.disappears)):
        operators = ", ".join(f"{count} {op.rpartition('::')[2]}" for op, count in counts.items())
        parts += [f"{verb} {operators}"] if operators else []
    changes = "; ".join(parts) or "same operators, in another order or with other numbers"
    enabled, disabled = culprit.nodes
    return f"{changes} ({plural(enabled, 'node')} with it, {disabled} without)"
