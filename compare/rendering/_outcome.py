"""The outcome of a comparison: one rule for every command, in text, JSON, exit codes, pytest and goldens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Outcome = Literal["close", "incomplete", "different"]


@dataclass(frozen=True)
class Gap:
    """Something that the outcome needs and that was not judged.

    It is an output of the reference, an input or buffer that a call changes, or a value that an output depends on
    without a judged value between.

    Attributes:
        name: the name of the value, by which it can be accepted; `""` for a part of the comparison, such as a stage.
        reason: why it was not judged.
        is_error: whether it is one of several comparisons that could not be made.
    """

    name: str
    reason: str
    is_error: bool = False

    def __str__(self) -> str:
        return f"{self.name} was not judged: {self.reason}" if self.name else self.reason


@dataclass(frozen=True)
class Proof:
    """What a comparison has shown, and what it has not; the outcome and the exit code follow from it alone.

    `close` is a proof: each output of A, and each input or buffer that a call changes, is an output of B in a stated
    place, whole, finite where A is and otherwise not finite of the same kind; it was judged; nothing that was judged is
    wrong; and something was judged.

    Attributes:
        judged: how many values, outputs, weights or calls were judged.
        is_wrong: whether any of them is wrong.
        gaps: what was not judged although the outcome needs it. If nothing was judged, that is one.
    """

    judged: int
    is_wrong: bool
    gaps: tuple[Gap, ...] = ()

    def __post_init__(self) -> None:
        if not self.judged and not self.is_wrong and all(gap.name for gap in self.gaps):
            object.__setattr__(self, "gaps", (*self.gaps, Gap("", "nothing could be judged")))

    @classmethod
    def together(cls, proofs: Iterable["Proof"]) -> "Proof":
        """Return what several comparisons show together, with the worst of their outcomes."""
        parts = [*proofs] or [cls.impossible("there is nothing to compare")]
        gaps = tuple(gap for part in parts for gap in part.gaps)
        return cls(sum(part.judged for part in parts), any(part.is_wrong for part in parts), gaps)

    @classmethod
    def impossible(cls, reason: str) -> "Proof":
        """Return that of one of several comparisons which could not be made."""
        return cls(0, is_wrong=False, gaps=(Gap("", reason, is_error=True),))

    @property
    def outcome(self) -> Outcome:
        """`different` if something is wrong, `close` if all that is needed was judged, else `incomplete`."""
        return "different" if self.is_wrong else "incomplete" if self.gaps else "close"

    def without(self, accepted: Mapping[str, str]) -> "Proof":
        """Return the proof without the gaps that are accepted; a part of a comparison has no name and can't be."""
        return replace(self, gaps=tuple(gap for gap in self.gaps if not gap.name or gap.name not in accepted))

    @property
    def exit_code(self) -> int:
        """The exit code of a command: 0 if close, 2 if nothing is wrong but a comparison could not be made, else 1."""
        is_error = not self.is_wrong and any(gap.is_error for gap in self.gaps)
        return 0 if self.outcome == "close" else 2 if is_error else 1
