"""What a bisection found, as data."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from filch.export.backends import Switch

from ..precision._trial import Outcome


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
class BisectReport:
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

    def __str__(self) -> str:
        from ._table import render_bisect  # noqa: PLC0415  data does not need what prints it

        return render_bisect(self, width=80)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as JSON, also written to `path` if one is given."""
        from ._table import to_json  # noqa: PLC0415  as above

        return to_json(self, path)
