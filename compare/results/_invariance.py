"""Which ways of calling a language model give the same numbers, and where the others part."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from filch.steal.text._visible import short_line

from ..rendering._html import as_page
from ..rendering._outcome import Gap, Proof
from ..rendering._result import Result
from ..rendering._table import Block, Column, Columns, fit_paths, folded, table_of

InvarianceVerdict = Literal["holds", "rounding", "breaks", "fails", "not judged", "not run"]


@dataclass(frozen=True)
class InvarianceBreak:
    """An operation that computes other numbers, from the same ones, when the model is called in another way.

    Attributes:
        module: the path of the module in which it runs; `""` for the model itself.
        operator: its operator.
        source: the line of code, as `file.py:12`; None if not known.
        sequence: the index of the first sequence with other numbers; None if it is not known, or the same for all.
        position: the first position in it, from 0.
        difference: the largest difference there, relative to the size of the number or of a typical one of the value.
        before: the other modules with operations that it depends on and that could not be compared, as the two ways of
            calling the model run different ones: the first wrong number may be theirs.
        node: the node of a program; `""` if the model itself runs.
    """

    module: str
    operator: str
    source: str | None
    sequence: int | None
    position: int
    difference: float
    before: tuple[str, ...] = ()
    node: str = ""

    def __str__(self) -> str:
        name = f"{self.node} ({self.operator})" if self.node else self.operator
        place = f"{name} in {self.module or 'the model'}"
        if self.before:
            place += f" or before it in {', '.join(name or 'the model' for name in self.before)}"
        at = (
            f"position {self.position}"
            if self.sequence is None
            else f"sequence {self.sequence}, position {self.position}"
        )
        return short_line(", ".join(filter(None, (place, self.source, at))))


@dataclass(frozen=True)
class InvarianceRow:
    """One way of calling a model, against the sequences computed in one call without a cache.

    Attributes:
        relation: how the model is called.
        verdict: `"holds"`: the numbers are the same, or those in a quantized cache are off by its rounding alone;
            `"rounding"`, only if bits were compared: the numbers are the same in float64, but not the bits; `"breaks"`:
            also in float64 the numbers are others; `"fails"`: the call raises an error; `"not judged"`: an output or a
            layer can't be judged, or a backend can't run the program; `"not run"`: the model does not support it.
        difference: the largest difference of a logit in the model's own dtypes, relative to its size or that of a
            typical one; None if the model did not run.
        first: the first operation that differs; None if none does.
        more: how many other operations differ although what they read is the same, such as those of later calls.
        compared: how many values were compared by position.
        note: why the relation was not run, the error, or a remark on the result.
    """

    relation: str
    verdict: InvarianceVerdict
    difference: float | None = None
    first: InvarianceBreak | None = None
    more: int = 0
    compared: int = 0
    note: str = ""


@dataclass(frozen=True, repr=False)
class Invariance(Result):
    """Whether a language model computes the same, however it is called.

    Attributes:
        model: the name of the model.
        sequences: the number of sequences.
        length: the number of tokens of each.
        bitwise: whether equal bits were required.
        rows: one for each way of calling the model.
    """

    model: str
    sequences: int
    length: int
    bitwise: bool
    rows: tuple[InvarianceRow, ...]
    FORMAT: ClassVar[Mapping[str, int]] = {"filch_invariance": 1}

    @property
    def proof(self) -> Proof:
        """What was judged: each way of calling the model that it supports."""
        gaps = tuple(Gap(row.relation, row.note) for row in self.rows if row.verdict == "not judged")
        judged = [row for row in self.rows if row.verdict not in ("not judged", "not run")]
        return Proof(len(judged), any(row.verdict != "holds" for row in judged), gaps)

    @property
    def headline(self) -> str:
        """How many relations hold, and which do not."""
        run = [row for row in self.rows if row.verdict != "not run"]
        broken = [row.relation for row in run if row.verdict != "holds"]
        held = f"{len(run) - len(broken)} of {len(run)} ways to call {self.model} give the same numbers"
        return f"{held}; not: {', '.join(broken)}" if broken else held

    def blocks(self, *, wide: bool = False, all_rows: bool = False) -> Iterable[Block]:  # noqa: ARG002  all are shown
        """Return the verdict and a row for each relation."""
        yield from self.heading()
        yield f"{self.sequences} sequences of {self.length} tokens"
        yield ""
        yield table_of(_ROWS, self.rows, marked=_is_broken, skip_empty=not wide)

    @property
    def first_difference(self) -> str:
        """The first relation that does not hold, and the first operation that differs."""
        first = next((row for row in self.rows if row.first is not None), None)
        return "" if first is None else f"{first.relation}: {first.first}"

    def _page(self) -> str:
        return as_page(f"Ways to call {self.model}", [*self.blocks(wide=True)])


def _is_broken(row: InvarianceRow) -> bool:
    return row.verdict not in ("holds", "not run")


_ROWS: Columns[InvarianceRow] = {
    Column("called with", folded, least=12, preferred=24): lambda row: row.relation,
    "verdict": lambda row: row.verdict,
    "logits differ by": lambda row: row.difference,
    Column("first in", fit_paths, least=12, preferred=24): lambda row: (
        row.first and (row.first.module or "(the model)")
    ),
    Column("node", folded, least=12, preferred=20): lambda row: row.first and (row.first.node or None),
    "operator": lambda row: row.first and row.first.operator,
    Column("line", fit_paths, least=10, preferred=16, optional=1): lambda row: row.first and row.first.source,
    Column("sequence", optional=2): lambda row: None if row.first is None else row.first.sequence,
    "position": lambda row: None if row.first is None else row.first.position,
    Column("values", optional=3): lambda row: row.compared or None,
    Column("why", folded, least=12, preferred=20): lambda row: row.note or None,
}
