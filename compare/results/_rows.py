"""The rows of results: values, module tensors, exported nodes, the model's operations, and tensors of two dumps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch

from filch.export.backends import Stage
from filch.steal import Key
from filch.steal.text._visible import short_line

from ..common._source import short_source
from ..float64._verdict import SUSPICIOUS, RoundingVerdict, format_ratio
from ..metrics._metrics import Difference
from ..metrics._spread import Spread
from ..rendering._json import NOT_IN_JSON

OutcomeKind = Literal["survives", "fused", "folded", "removed"]
Status = Literal["same", "different", "shape or dtype differs", "no value", "not mapped"]
STAGES: tuple[Stage, ...] = ("exported", "compiled")  # in the order in which they run
SENTENCE = 4000  # characters; names may be of any length
_NEAREST = 5  # names in a list
DIVERGED = frozenset({"different", "shape or dtype differs"})
JUDGED = DIVERGED | {"same"}


class _HasDifference:
    """A row with the difference of a value from its reference, or None if one of them is missing."""

    difference: Difference | None

    @property
    def error(self) -> float | None:
        """The largest harmonic error; None if the numbers were not compared."""
        return None if self.difference is None or self.difference.problem else self.difference.error


@dataclass(frozen=True)
class JudgedValue:
    """What is known of a value when it was compared with its reference; see `Row` for the attributes."""

    value: str
    status: Status
    reason: str = ""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    evidence: str = ""
    difference: Difference | None = None
    float64: RoundingVerdict | None = None
    exact_in: str = ""
    spread: Spread | None = None
    random: bool = False

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor | None, status: Status, reason: str = "", **found: Any) -> Self:
        """Return what is known of a value with the dtype and shape of its tensor, or without them if it is None."""
        if tensor is None:
            return cls(name, status, reason, **found)
        return cls(name, status, reason, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), **found)

    @property
    def judged(self) -> bool:
        """Whether the value was compared with a reference."""
        return self.status in JUDGED

    @property
    def diverged(self) -> bool:
        """Whether the value differs from its reference by more than is allowed."""
        return self.status in DIVERGED


@dataclass(frozen=True)
class Row(_HasDifference):
    """One value of a graph, compared with its reference.

    Attributes:
        call: the index of the model's call in the capture.
        stage: whether it is a value of the exported graph, run node by node, or of the graph that the backend compiled.
        index: the node's index in the graph.
        kind: `node`, `fused` (a compiled node that computes several exported ones), `inserted` (a compiled node that
            only changes the layout, shape, dtype or device of an exported value), `constant` (it does not depend on the
            inputs) or `output` (an output of the run without instrumentation).
        node: the node's name.
        op: its operator.
        value: the value's name.
        module: the path of the module it belongs to; None if not known.
        source: the line of model code, `file:line`; None if not known.
        dtype: its dtype, as torch names it; None if there is no value.
        shape: its shape; None if there is no value.
        status: `same`, `different`, `shape or dtype differs`; `no value` and `not mapped` could not be judged.
        reason: why it could not be judged, or what differs.
        evidence: the source of the reference: `module` (captured), `eager` (the exported program in eager PyTorch),
            `derived` (the ONNX translation of one eager operation, run on eager values), `program` (computed by the
            ONNX program that is the reference, see `compare_programs`), `inferred` (matched by metadata or by value),
            `given` (an input or weight that a compiled graph holds in another form); `""` if there is none.
        difference: the difference from the reference; None if the value or its reference is missing.
        origins: the names of the exported nodes that a compiled node computes, or whose value an inserted node holds.
            Where an error begins, also of the nodes between its inputs and its value that were removed or folded and
            may be at fault. For an exported node that diverged, its own name and those of the nodes before it that
            could not be judged and may be at fault.
        operators: the operators of the nodes that it computes; for an exported node, of all its origins.
        behind: for a compiled node that diverged, the names of the nodes before it that could not be judged and may be
            at fault.
        code: the line of generated code that computes it, `file:line`; None if there is none.
        seconds: the run time of the node, with `profile`; the same for each of its values.
        spread: statistics of the value and its reference, with `statistics`.
        float64: the verdict on its distance from float64; None if it was judged by tolerance.
        isolated: the verdict on the node itself, run on correct inputs: by float64, or by the tolerance without a
            float64 value; None if the node did not run in isolation.
        exact_in: for a value that differs, the coarser dtype in which all of its numbers are exact, such as `float16`,
            if those of the reference are not, and rounding in that dtype explains the difference; else `""`.
        random: whether its node draws random numbers; then only shape, dtype and, of drawn numbers, the distribution
            are compared.
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
    exact_in: str = ""
    random: bool = False

    @property
    def judged(self) -> bool:
        """Whether it was compared with a reference."""
        return self.status in JUDGED

    @property
    def diverged(self) -> bool:
        """Whether it differs from its reference."""
        return self.status in DIVERGED

    @property
    def introduced(self) -> bool:
        """Whether its own node is wrong or unstable, so that the error is not inherited."""
        return self.isolated is not None and self.isolated.verdict in ("wrong", "unstable")

    @property
    def decides(self) -> bool:
        """Whether its integers differ from the model's because rounding decides them (see `RoundingVerdict.flips`)."""
        return not self.diverged and self.float64 is not None and self.float64.flips is not None

    @property
    def follows(self) -> bool:
        """Whether such decisions change it, so that it was judged by the same ones (see `RoundingVerdict.decided`)."""
        return not self.diverged and self.float64 is not None and self.float64.decided is not None

    @property
    def unstable(self) -> bool:
        """Whether its node's results vary from run to run by more than rounding."""
        return self.isolated is not None and self.isolated.verdict == "unstable"

    @property
    def amplification(self) -> float | None:
        """The ratio of its error to the error that its own node adds; None if either is unknown or 0."""
        if self.float64 is None or self.isolated is None or not self.float64.error or not self.isolated.error:
            return None
        return self.float64.error / self.isolated.error

    @property
    def measures(self) -> Mapping[str, float | int]:
        """The measures of its difference, by name; none if it has no error."""
        return {} if self.difference is None or self.difference.problem else self.difference.measures

    @property
    def unjudged(self) -> tuple[str, ...]:
        """If the row diverged, the names of the nodes before it that could not be judged and may be at fault."""
        if self.stage != "exported":
            return self.behind
        return tuple(name for name in self.origins if name != self.node)

    @property
    def amount(self) -> str:
        """How far it is from its reference, and what it was judged by: float64 or the tolerance; else the reason."""
        if self.difference is None or self.float64 is None:
            return str(self.difference or self.reason)
        return f"{self.float64}; {self.difference.without_limits}"

    def __str__(self) -> str:
        if self.kind == "output":
            return short_line(f"{self.stage} output {self.value}: {self.amount}", SENTENCE)
        where = f" in {self.module}" if self.module else ""
        line = f" ({short_source(self.source)})" if self.source else ""
        fused = f", which computes {', '.join(self.operators)}" if self.kind == "fused" else ""
        fused += f", after {_last(self.unjudged)}, which could not be judged" if self.unjudged else ""
        sentence = f"{self.stage} node {self.node} ({self.op}{fused}) → {self.value}{where}{line}: {self.amount}"
        return short_line(sentence, SENTENCE)


@dataclass(frozen=True)
class ModuleRow(_HasDifference):
    """One input or output tensor of a captured module call, and its value in the graph.

    Attributes:
        call: the index of the model's call.
        path: the module's path.
        iteration: how many times the module ran before in that call.
        side: `input` or `output`.
        port: a parameter's name, or the path in the output (`""`, `[0]`).
        resolution: `exact`, `alias`, `constant`, `fused`, `dead` (see `Port`), `inferred` (a foreign file) or
            `not mapped`.
        value: the name of the graph's value, or None.
        note: except for `exact` and `alias`, the node or the reason.
        difference: the difference of the exported graph's value from the captured one; None if there is no value.
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
        return short_line(f"{self.path or '(model)'}#{self.iteration} → {self.side}{port}", SENTENCE)


@dataclass(frozen=True)
class NodeOutcome:
    """The outcome of one exported node in the compiled graph.

    Attributes:
        node: its name.
        op: its operator.
        kind: `survives` (a compiled node computes only it), `fused` (a compiled node computes it with others), `folded`
            (its values are constants, computed when compiling) or `removed` (the compiled graph computes its values
            otherwise, or does not need them).
        into: the names of the compiled nodes that compute it or read the constants that it was folded into.
        note: the reason why it was removed.
        module: the path of its module; None if not known.
    """

    node: str
    op: str
    kind: OutcomeKind
    into: tuple[str, ...] = ()
    note: str = ""
    module: str | None = None


@dataclass(frozen=True)
class ModelOperation:
    """One operation of the model's PyTorch code, and its row.

    Attributes:
        kind: `placeholder`, `call_module`, `call_function` or `output`.
        text: the module's repr, or the function's name.
        row: the row of its value in the exported graph; None if there is none.
        dtype: the dtype of an input; `""` for others, which have that of the row.
    """

    kind: str
    text: str
    row: Row | None = field(default=None, metadata=NOT_IN_JSON)
    dtype: str = ""


@dataclass(frozen=True)
class DiffRow(_HasDifference):
    """One tensor of two dumps, or one record with different structures.

    Attributes:
        key: the record's key.
        path: the path of the tensor in the record; `""` for the record itself.
        what: the first dump's value, as `describe` writes it.
        reason: why the tensors can't be compared, or `""`.
        difference: the difference of the second dump's tensor from the first one's.
        same: without `difference`, whether the values are equal according to their statistics; False also if only
            one dump has the value, or its structures differ; None if unknown, as a tensor was not stored.
        ratio: the difference as a multiple of the rounding level, if that is stored with the first value and judges it:
            the worst element or the root mean square, the larger one.
        layout: how the tensor was put together from those of several ranks, and how that is known; `""` of one process.
        ranks: the ranks that have a wrong part or replica, as far as that is known.
        held_by: of several processes, the ranks that have a part of the value.
        faulty: whether something is wrong with the parts, as `reason` says, however small the difference.
        is_extra: whether the first dump has no such value, so that nothing is missing if it is not judged.
    """

    key: Key
    path: str
    what: str
    reason: str = ""
    difference: Difference | None = None
    same: bool | None = False
    ratio: float | None = None
    layout: str = ""
    ranks: tuple[int, ...] = ()
    held_by: tuple[int, ...] = ()
    faulty: bool = False
    is_extra: bool = False

    @property
    def diverged(self) -> bool:
        """Whether the dumps differ here: by more than twice the rounding level, if there is one, or the tolerance."""
        if self.faulty:
            return True
        if self.ratio is not None:
            return self.ratio > SUSPICIOUS
        return self.same is False if self.difference is None else not self.difference.close

    @property
    def place(self) -> str:
        """The label of its key and its path, which name it."""
        return self.key.label + self.path

    @property
    def module(self) -> str:
        """The path of the module; `""` for the model."""
        return self.key.name

    @property
    def float64(self) -> None:
        """The verdict on its distance from float64, which dumps do not have; see `Row.float64`."""

    @property
    def judged(self) -> bool:
        """Whether their numbers were compared."""
        return self.difference is not None or self.same is True

    def __str__(self) -> str:
        """One line: where it is, on which ranks, and its difference, or why there is none."""
        ratio = "" if self.ratio is None else f"{format_ratio(self.ratio)} times its rounding level; "
        ranks = f" on rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}" if self.ranks else ""
        detail = self.reason
        if self.difference is not None and not self.faulty:  # with a rounding level, the tolerance does not judge it
            detail = str(self.difference) if self.ratio is None else self.difference.without_limits
        return short_line(f"{self.place}{ranks}: {ratio}{detail}")


def _last(names: Sequence[str]) -> str:
    """Return the last names, which are the nearest ones, and how many are before them."""
    hidden = len(names) - _NEAREST
    return ", ".join(names[-_NEAREST:]) + (f" and {hidden} more" if hidden > 0 else "")
