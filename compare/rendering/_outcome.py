"""The outcome of a comparison: one rule for every command, in text, JSON, exit codes, pytest and goldens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from filch.steal.text import short_line

from ._result import Result

Outcome = Literal["close", "incomplete", "different"]
_BY_SEVERITY: tuple[Outcome, ...] = ("close", "incomplete", "different")
_SHOWN = 3  # gaps in a sentence


@dataclass(frozen=True)
class Gap:
    """Something that the outcome needs and that was not judged.

    It is an output of the reference, an input or buffer that a call changes, or a value that an output depends on
    without a judged value between.

    Attributes:
        name: the name of the value, by which it can be accepted; `""` for a part of the comparison, such as a stage.
        reason: why it was not judged.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} was not judged: {self.reason}" if self.name else self.reason


@dataclass(frozen=True)
class Proof:
    """What a comparison has shown, and what it has not.

    Attributes:
        judged: how many values, outputs, weights or calls were judged.
        is_wrong: whether any of them is wrong.
        gaps: what was not judged although the outcome needs it.
    """

    judged: int
    is_wrong: bool
    gaps: tuple[Gap, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """`different` if something is wrong, `close` if all that is needed was judged, else `incomplete`."""
        if self.is_wrong:
            return "different"
        return "incomplete" if self.gaps or not self.judged else "close"


def worst_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of several outcomes; without any, nothing was judged."""
    found = {*outcomes}
    for outcome in reversed(_BY_SEVERITY):
        if outcome in found:
            return outcome
    return "incomplete"


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """The base of results that say whether B computes what A does.

    `close` is a proof: each output of A, and each input or buffer that a call changes, is an output of B in a stated
    place, whole, finite where A is and otherwise not finite of the same kind; it was judged; nothing that was judged is
    wrong; and something was judged. A subclass defines `proof`.

    Attributes:
        accepted: reasons why a value may stay without a judgment, by its name (see `Gap`).
    """

    accepted: Mapping[str, str] = field(default_factory=dict)

    @property
    def proof(self) -> Proof:
        """What was judged, and what was not."""
        raise NotImplementedError

    @property
    def outcome(self) -> Outcome:
        """`close`, `different`, or `incomplete`: nothing that was judged is wrong, but not all that is needed was."""
        return self.proof.outcome

    @property
    def close(self) -> bool:
        """Whether the outcome is `close`."""
        return self.outcome == "close"

    @property
    def passes(self) -> bool:
        """Whether the outcome is `close`, or `incomplete` for gaps alone that are all accepted."""
        proof = self.proof
        is_accepted = proof.judged > 0 and all(map(self._is_accepted, proof.gaps))
        return proof.outcome == "close" or (proof.outcome == "incomplete" and is_accepted)

    def _is_accepted(self, gap: Gap) -> bool:
        """Whether there is a reason for a gap; a missing part of the comparison has no name and can't be accepted."""
        return bool(gap.name) and gap.name in self.accepted

    @property
    def exit_code(self) -> int:
        """The exit code of a command with this result: 0 if it passes, else 1."""
        return int(not self.passes)

    def gap_sentences(self) -> list[str]:
        """Return a sentence for each gap, with the reason for which it is accepted."""
        return [short_line(self._gap_sentence(gap)) for gap in self.proof.gaps]

    def _gap_sentence(self, gap: Gap) -> str:
        return f"{gap}; accepted: {self.accepted[gap.name]}" if self._is_accepted(gap) else str(gap)
