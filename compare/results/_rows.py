"""The rows of a report: values, module tensors, exported nodes and the model's operations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from filch.export.backends import Stage
from filch.steal.text import named

from ..float64 import RoundingVerdict
from ..metrics._metrics import Difference
from ..metrics._spread import Spread

OutcomeKind = Literal["survives", "fused", "folded", "removed"]
Status = Literal["same", "different", "shape or dtype differs", "no value", "not mapped"]
STAGES: tuple[Stage, ...] = ("exported", "compiled")  # in the order in which they run
SENTENCE = 4000  # characters; names may be of any length
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
        float64: how far it is from float64, held against rounding, where that was asked for and is known (`truth`).
        isolated: likewise of what its node makes of what it should be given: what the node itself does wrong. Where
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
    float64: RoundingVerdict | None = None
    isolated: RoundingVerdict | None = None
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
        return self.isolated is not None and self.isolated.verdict in ("wrong", "unstable")

    @property
    def unstable(self) -> bool:
        """Whether its node makes it differently from run to run, by more than rounding."""
        return self.isolated is not None and self.isolated.verdict == "unstable"

    @property
    def amplification(self) -> float | None:
        """How many times larger its error is than what its own node adds to it; None if either is not known, or 0."""
        if self.float64 is None or self.isolated is None or not self.float64.error or not self.isolated.error:
            return None
        return self.float64.error / self.isolated.error

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
            return named(f"{self.stage} output {self.value}: {self.difference or self.reason}", SENTENCE)
        where = f" in {self.module}" if self.module else ""
        line = f" ({short_source(self.source)})" if self.source else ""
        fused = f", which computes {', '.join(self.operators)}" if self.kind == "fused" else ""
        fused += f", after {_listed(self.unjudged)}, which could not be judged" if self.unjudged else ""
        what = str(self.difference) if self.difference else self.reason
        told = f"{self.stage} node {self.node} ({self.op}{fused}) → {self.value}{where}{line}: {what}"
        return named(told, SENTENCE)


@dataclass(frozen=True)
class ModuleRow:
    """One tensor that a stolen module call took or gave, and what it is in the graph.

    Attributes:
        call: which call of the model.
        path: the module's path.
        iteration: how many times it ran before in that call.
        side: `input` or `output`.
        port: where the tensor stands: a parameter's name, or a place in the output (`""`, `[0]`).
        resolution: `exact`, `alias`, `constant`, `fused`, `dead` (see `Port`), `inferred` (a foreign file) or
            `not mapped`.
        value: the name of the graph's value, or None.
        note: for all but the first two, which node or why.
        difference: how far the exported graph's value is from the stolen one; None where it has none.
    """

    call: int
    path: str
    iteration: int
    side: str
    port: str
    resolution: str
    value: str | None
    note: str
    difference: Difference | None = None

    def __str__(self) -> str:
        port = self.port if self.side == "output" else f" {self.port}"
        return named(f"{self.path or '(model)'}#{self.iteration} → {self.side}{port}", SENTENCE)


@dataclass(frozen=True)
class NodeOutcome:
    """What became of one exported node in the compiled graph.

    Attributes:
        node: its name.
        op: its operator.
        kind: `survives` (a compiled node computes it and nothing else), `fused` (one computes it with others), `folded`
            (its values do not depend on the inputs, and were computed beforehand) or `removed` (the compiled graph
            has its values without it, or does not need them).
        into: the names of the compiled nodes that are it, compute it or take what it was folded to.
        note: why it was removed.
        module: the path of its module; None if not known.
    """

    node: str
    op: str
    kind: OutcomeKind
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


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[-most:])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def short_source(source: str) -> str:
    """A line of code by the path that a reader knows it by: in its package, or from where one stands."""
    _, installed, inside = source.rpartition("site-packages/")
    if installed:
        return inside
    return source.removeprefix(f"{Path.cwd()}/")
