"""What a bisection found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from filch.export.backends import Switch

from ..rendering._result import Result
from ..rendering._table import Block, Column, Table
from ._precision import Outcome

_NARROW = 40
_SHOWN = 20  # steps, and culprits


@dataclass(frozen=True)
class Step:
    """One run with some transformations left out.

    Attributes:
        off: what was left out.
        outcome: what was then held against its reference.
        fingerprint: of the graph that ran; `""` if none could be made.
        ops: how many nodes of each operator that graph has.
        switches: what was done to it that could have been left out, too.
    """

    off: tuple[Switch, ...]
    outcome: Outcome
    fingerprint: str = ""
    ops: Mapping[str, int] | None = None
    switches: tuple[Switch, ...] = ()


@dataclass(frozen=True)
class Culprit:
    """A transformation without which, and without the other culprits, there is no error.

    Attributes:
        kind: what it is (see `Switch`).
        name: what it is called.
        without: what comes of it if it is done and the other culprits are left out: the error.
        appears: how many nodes of which operator it brings into the graph, the other culprits left out.
        disappears: how many nodes of which operator it takes out.
        nodes: how many nodes the graph has with it and without it.
    """

    kind: str
    name: str
    without: Outcome
    appears: Mapping[str, int]
    disappears: Mapping[str, int]
    nodes: tuple[int, int]


@dataclass(frozen=True)
class Version:
    """What came of it with another version of the backend's library, nothing left out.

    Attributes:
        interpreter: whose it is.
        version: the library's; `""` if it can't be run there.
        outcome: as for a step.
    """

    interpreter: str
    version: str
    outcome: Outcome


@dataclass(frozen=True)
class BisectReport(Result):
    """Which transformations are to blame for an error.

    Attributes:
        backend: what ran.
        reference: the capture or dump.
        program: what was run.
        value: the value that was judged; None is all outputs.
        before: with nothing left out.
        after: with the culprits left out, and nothing else; None if there are none.
        best: with every candidate left out; None if there is no error, or no candidate.
        culprits: a smallest set of what makes the error go: with any one of them back it is there again.
        candidates: all that could be left out.
        steps: every run, in the order in which they were made.
        notes: what else a reader has to know.
        versions: what came of it in other interpreters.
    """

    backend: str
    reference: str
    program: str
    value: str | None
    before: Outcome
    after: Outcome | None
    best: Outcome | None
    culprits: tuple[Culprit, ...]
    candidates: tuple[Switch, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    versions: tuple[Version, ...] = ()

    @property
    def close(self) -> bool:
        """Whether there is nothing to blame, because nothing is wrong with every step left in."""
        return self.before.passes

    @property
    def runs(self) -> int:
        """How many programs were made and run, those that a journal told included."""
        return len(self.steps)

    def blocks(self, *, wide: bool = False) -> Iterable[Block]:
        """Return each run, then what is to blame."""
        judged = "the outputs" if self.value is None else self.value
        counted = f"{_count(len(self.candidates), 'candidate')}, {_count(self.runs, 'run')}"
        yield f"{self.program} on {self.backend} against {self.reference}: {judged}; {counted}"
        yield from (f"note: {note}" for note in self.notes)
        yield from ("", _table(self, wide=wide), "")
        yield from _verdict(self, len(self.culprits) if wide else _SHOWN)
        yield from (f"{_where(one)}: {_told(one.outcome)}" for one in self.versions)

    def derived(self) -> Mapping[str, Any]:
        """Return whether there is nothing to blame, and how many programs were run."""
        return {"filch_bisect": 1, "close": self.close, "runs": self.runs}


def _table(report: BisectReport, *, wide: bool) -> Table:
    titles = ("run", "left out", "error", "SNR", "nodes", "graph")
    columns = tuple(Column(title, "fold" if title == "left out" else "never") for title in titles)
    rows = [
        (
            str(number),
            _left_out(step, report.candidates, wide=wide),
            *_figures(step.outcome),
            str(sum((step.ops or {}).values())),
            step.fingerprint[:8],
        )
        for number, step in enumerate(report.steps, 1)
    ]
    if not wide and len(rows) > _SHOWN:
        half = _SHOWN // 2
        rows[half : len(rows) - half] = [("…", f"{len(rows) - _SHOWN} more", "", "", "", "")]
    return Table(columns, tuple(rows))


def _left_out(step: Step, candidates: Sequence[Switch], *, wide: bool) -> str:
    names = ", ".join(one.name for one in step.off)
    if wide or len(names) <= _NARROW:
        return names or "nothing"
    if len(step.off) == len(candidates):
        return "all"
    if len(step.off) == 1:
        return names
    return f"{len(step.off)}: {step.off[0].name} … {step.off[-1].name}"


def _figures(outcome: Outcome) -> tuple[str, str]:
    if outcome.problem:
        return "can't be judged", ""
    return f"{outcome.error:.1e}{'' if outcome.passes else ' !'}", f"{outcome.snr:.0f}"


def _verdict(report: BisectReport, shown: int) -> list[str]:
    if report.close:
        return [f"nothing to blame: with everything as it is, {report.before}"]
    if not report.candidates:
        return [f"there is an error ({report.before}), and nothing that could be left out changed the graph"]
    if report.after is None:
        return [
            f"no culprit among them: {report.before}; with all of them left out, {report.best}",
            "The difference is in the program that was exported, or in the kernels that run it.",
        ]
    count = "this one is" if len(report.culprits) == 1 else f"these {len(report.culprits)} together are"
    lines = [f"with everything as it is: {report.before}", f"{count} left out: {report.after}"]
    for culprit in report.culprits[:shown]:
        lines.append(f"  {culprit.kind} {culprit.name}: {_change(culprit)}")
        if len(report.culprits) > 1:
            lines.append(f"    (without the others, but with it: {culprit.without})")
    return [*lines, f"  and {len(report.culprits) - shown} more"] if len(report.culprits) > shown else lines


def _where(one: Version) -> str:
    return f"version {one.version} in {one.interpreter}" if one.version else one.interpreter


def _told(outcome: Outcome) -> str:
    return f"{outcome}{'' if outcome.passes or outcome.problem else ', not close'}"


def _change(culprit: Culprit) -> str:
    on, off = culprit.nodes
    parts = [_ops(culprit.appears, "brings in"), _ops(culprit.disappears, "takes out")]
    told = "; ".join(filter(None, parts)) or "the same operators in another order, or of other numbers"
    return f"{told} ({_count(on, 'node')} with it, {off} without)"


def _ops(counts: Mapping[str, int], verb: str) -> str:
    listed = ", ".join(f"{count} {op.rpartition('::')[2]}" for op, count in counts.items())
    return f"{verb} {listed}" if counts else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
