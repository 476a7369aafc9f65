"""The rows of a comparison, and what follows from them."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filch.export import Graph
from filch.export.backends import Stage
from filch.export.views import draw, save
from filch.steal import write_output
from filch.steal.text import named

from ..float64 import Judgement
from ..metrics._metrics import Difference
from ..metrics._spread import Spread
from ..metrics._tolerance import Tolerance

if TYPE_CHECKING:
    from ._explanation import Explanation

Fated = Literal["survives", "fused", "folded", "removed"]
Status = Literal["same", "different", "shape or dtype differs", "no value", "not mapped"]
_SENTENCE = 4000  # characters; names may be of any length
DIVERGED = frozenset({"different", "shape or dtype differs"})


@dataclass(frozen=True)
class Row:
    """One value of a graph, held against its reference.

    Attributes:
        call: which call of the model, counted over the capture.
        stage: whose value it is: the exported graph's, run node by node, or the graph's that the backend made of it.
        index: the node's place in the graph.
        kind: `node`, `fused` (a compiled node that does the work of several exported ones), `inserted` (a compiled node
            that only brings an exported value into another form: layout, shape, type, device), `constant` (it does not
            depend on the inputs) or `output` (a result of the undisturbed run).
        node: the node's name.
        op: its operator.
        value: the value's name.
        module: the path of the module it belongs to; None if not known.
        source: the line of model code, `file:line`; None if not known.
        dtype: as torch writes it; None if there is no value.
        shape: likewise.
        status: `same`, `different`, `shape or dtype differs`; `no value` and `not mapped` could not be judged.
        reason: why it could not be judged, or what differs.
        evidence: where the reference is from: `module` (stolen), `eager` (the exported program in eager PyTorch),
            `derived` (the translation of one eager operation, run on eager's values), `inferred` (found by metadata or
            by value), `given` (an input or a weight, which a compiled graph holds in another form); `""` if there is
            none.
        difference: how far it is from the reference, where both are there.
        origins: the names of the exported nodes that a compiled node computes, or whose value one that was inserted
            holds, and where an error begins, those that were removed or folded between what it reads and its value, so
            that the fault may be theirs; for an exported node that diverged, its own and those of the nodes before it
            that could not be judged, likewise.
        operators: the operators of those that it computes; for an exported node, of all of them.
        behind: for a compiled node that diverged, the names of those before it that could not be judged, so that the
            fault may be theirs.
        code: the line of generated code that computes it, `file:line`; None where there is none.
        seconds: how long the node takes, where that was asked for (`profile`); the same for each of its values.
        spread: what the value and its reference are like, where that was asked for (`statistics`).
        truth: how far it is from float64, held against rounding, where that was asked for and is known (`truth`).
        local: likewise of what its node makes of what it should be given: what the node itself does wrong. Where
            float64 does not say, by the tolerance.
        random: whether its node draws at random: then its shape and type are compared, and no numbers; if it is what is
            drawn, its distribution, too.
    """

    call: int
    stage: Stage
    index: int
    kind: str
    node: str
    op: str
    value: str
    module: str | None = None
    source: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    status: Status = "not mapped"
    reason: str = ""
    evidence: str = ""
    difference: Difference | None = None
    origins: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    code: str | None = None
    seconds: float | None = None
    spread: Spread | None = field(default=None, repr=False)
    truth: Judgement | None = None
    local: Judgement | None = None
    random: bool = False

    @property
    def judged(self) -> bool:
        """Whether there was something to hold it against."""
        return self.status in ("same", "different", "shape or dtype differs")

    @property
    def diverged(self) -> bool:
        """Whether it is not what it should be."""
        return self.status in DIVERGED

    @property
    def introduced(self) -> bool:
        """Whether its own node is wrong or differs from run to run, so that the error is not inherited."""
        return self.local is not None and self.local.verdict in ("wrong", "unstable")

    @property
    def unstable(self) -> bool:
        """Whether its node makes it differently from run to run, by more than rounding."""
        return self.local is not None and self.local.verdict == "unstable"

    @property
    def amplification(self) -> float | None:
        """How many times larger its error is than what its own node adds to it; None if either is not known, or 0."""
        if self.truth is None or self.local is None or not self.truth.error or not self.local.error:
            return None
        return self.truth.error / self.local.error

    @property
    def error(self) -> float | None:
        """The largest harmonic error, or None."""
        return None if self.difference is None or self.difference.problem else self.difference.error_max

    @property
    def unjudged(self) -> tuple[str, ...]:
        """If the row diverged, the names of the nodes before it that could not be judged and may be at fault."""
        if self.stage != "exported":
            return self.behind
        return tuple(name for name in self.origins if name != self.node)

    def __str__(self) -> str:
        if self.kind == "output":
            return named(f"{self.stage} output {self.value}: {self.difference or self.reason}", _SENTENCE)
        where = f" in {self.module}" if self.module else ""
        line = f" ({short_source(self.source)})" if self.source else ""
        fused = f", which computes {', '.join(self.operators)}" if self.kind == "fused" else ""
        fused += f", after {_listed(self.unjudged)}, which could not be judged" if self.unjudged else ""
        what = str(self.difference) if self.difference else self.reason
        told = f"{self.stage} node {self.node} ({self.op}{fused}) → {self.value}{where}{line}: {what}"
        return named(told, _SENTENCE)


@dataclass(frozen=True)
class ModuleRow:
    """One tensor that a stolen module call took or gave, and what it is in the graph.

    Attributes:
        call: which call of the model.
        path: the module's path.
        iteration: how many times it ran before in that call.
        side: `input` or `output`.
        port: where the tensor stands: a parameter's name, or a place in the output (`""`, `[0]`).
        how: `exact`, `alias`, `constant`, `fused`, `dead` (see `Port`), `inferred` (a foreign file) or `not mapped`.
        value: the name of the graph's value, or None.
        note: for all but the first two, which node or why.
        difference: how far the exported graph's value is from the stolen one; None where it has none.
    """

    call: int
    path: str
    iteration: int
    side: str
    port: str
    how: str
    value: str | None
    note: str
    difference: Difference | None = None

    def __str__(self) -> str:
        port = self.port if self.side == "output" else f" {self.port}"
        return named(f"{self.path or '(model)'}#{self.iteration} → {self.side}{port}", _SENTENCE)


@dataclass(frozen=True)
class Fate:
    """What became of one exported node in the compiled graph.

    Attributes:
        node: its name.
        op: its operator.
        how: `survives` (a compiled node computes it and nothing else), `fused` (one computes it with others), `folded`
            (its values do not depend on the inputs, and were computed beforehand) or `removed` (its numbers are had
            without it, or nobody needs them).
        into: the names of the compiled nodes that are it, compute it or take what it was folded to.
        note: why it was removed.
        module: the path of its module; None if not known.
    """

    node: str
    op: str
    how: Fated
    into: tuple[str, ...] = ()
    note: str = ""
    module: str | None = None


@dataclass(frozen=True)
class Operator:
    """One operation of the model as it is written in PyTorch, and the row that judges it.

    Attributes:
        kind: `placeholder`, `call_module`, `call_function` or `output`.
        text: the module's repr, or the function's name.
        row: the row of its value in the exported graph; None if there is none.
        dtype: of what an input is given; else that of the row.
    """

    kind: str
    text: str
    row: Row | None
    dtype: str = ""


@dataclass(frozen=True)
class Report:
    """A comparison of a program on a backend with what the model did.

    Attributes:
        backend: the backend's name.
        reference: where the reference is from.
        program: where the program is from.
        rows: one for each value of the exported graph and of the compiled one, in the order in which they run.
        modules: one for each tensor that a stolen module call took or gave.
        effect: how far the observed run's outputs are from those of the undisturbed one, at the worst; None if they
            are the same bit for bit.
        notes: what else a reader has to know.
        calls: how many calls of the model were compared, and how many there are.
        failed: what is missing from the comparison: the compiled graph, if the backend could run the exported one only;
            results of the model that the graph does not have.
        interface: how the inputs and outputs of the program, or of the compiled graph, are not those of the model: in
            another order, missing, added, listed twice. Only where the file says what was exported.
        operators: the model's own operations, for each call; empty if the program does not know them.
        fates: what became of each exported node in the compiled graph; empty if there is none.
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
    effect: Difference | None = None
    notes: tuple[str, ...] = ()
    calls: tuple[int, int] = (1, 1)
    failed: tuple[str, ...] = ()
    operators: tuple[tuple[Operator, ...], ...] = field(default=(), repr=False)
    fates: tuple[Fate, ...] = field(default=(), repr=False)
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
        return self.effect is None

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
        """The rows, in order, whose own node is wrong or differs from run to run (see `Row.local`)."""
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
    def explanation(self) -> "Explanation | None":
        """What a comparison by float64 comes to, in words and as facts; None if it was made without (`truth`)."""
        from ._explanation import explain  # noqa: PLC0415  data does not need what explains it

        return explain(self)

    @property
    def worst(self) -> Row | None:
        """The row with the largest error."""
        return max((row for row in self.rows if row.error is not None), key=lambda row: row.error or 0.0, default=None)

    @cached_property
    def graph(self) -> Graph:
        """The graph that was compared, with the findings that views draw.

        The compiled graph, if there is one, with the exported one as the graph that it was made of.
        """
        from ._picture import picture  # noqa: PLC0415  data does not need what is drawn from it

        return picture(self)

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
        return named("; ".join([*parts, f"the observed run {_told(self.effect)}"]), _SENTENCE)

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
        raise AssertionError("\n".join(named(line, _SENTENCE) for line in lines))

    def table(self, view: str = "nodes", *, wide: bool = False, width: int | None = None) -> str:
        """The report as text.

        Args:
            view: `nodes` (a row for each value of each graph), `operators` (a row for each operation of the model, in
                hidet's manner), `modules` (a row for each tensor that a module took or gave), `fates` (a row for each
                exported node: what became of it in the compiled graph), `dynamo` (the operators, then the kernels that
                a compiler made of them) or `precision` (a row for each value: its signal-to-noise ratio, and how many
                elements overflowed or were clipped).
            wide: all rows and columns, nothing cut.
            width: characters in a line; None is the terminal's.
        """
        from ._tables import render  # noqa: PLC0415  data does not need what prints it

        return render(self, view, wide=wide, width=width)

    def __str__(self) -> str:
        return self.table(width=80)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as JSON, also written to `path` if one is given."""
        from ._formats import to_json  # noqa: PLC0415  data does not need what writes it

        return to_json(self, path)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as CSV, also written to `path` if one is given."""
        from ._formats import to_csv  # noqa: PLC0415  as above

        return to_csv(self, path)

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as a Markdown table, also written to `path` if one is given."""
        from ._formats import to_markdown  # noqa: PLC0415  as above

        return to_markdown(self, path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as an HTML page that needs nothing else, also written to `path` if one is given.

        It is the view `html` of `graph`: see `filch.export.views`.
        """
        text = draw(self.graph, "html").content.decode("utf-8")
        if path is not None:
            write_output(path, text)
        return text


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[-most:])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def short_source(source: str) -> str:
    """A line of code by the path that a reader knows it by: in its package, or from where one stands."""
    _, installed, inside = source.rpartition("site-packages/")
    if installed:
        return inside
    return source.removeprefix(f"{Path.cwd()}/")


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
