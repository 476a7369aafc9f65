"""What a comparison by float64 comes to, in plain words: where an error starts, and what becomes of it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from filch.export import Graph
from filch.export.backends import Stage
from filch.steal.text import named, visible

from ..float64 import RoundingVerdict, times
from ._rows import Row, short_source

_GROWTH = 10.0  # times as large as what a node is given is worth a word
_MOST = 5


@dataclass(frozen=True)
class Explanation:
    """What there is to say of a comparison by float64; nothing in it that was not measured.

    Attributes:
        starts: the first row whose own node makes it wrong; None if there is none.
        others: the further ones, one for each node.
        results: the results of the model that are off by more than rounding.
        inherits: the values within that are off although no node is wrong by itself, one for each node.
        sound: the names of the stages that are sound.
        grows: the row at which the error grows most, where that is by ten times or more; None elsewhere.
        growth: by how much, relative to the typical numbers of each tensor (see `RoundingVerdict.magnitude`).
        ties: integers that rounding decides.
        suspicious: rows whose own node is off by a little more than rounding.
        unknown: how many values differ and were judged by the tolerance, as float64 does not know them.
        worst: the row that is off most, by its own node.
        culprits: what makes the error go when it is switched off (see `blame`).
        switches: how many transformations could be; None if none was tried.
        repro: where it is shown by itself.
        interface: how inputs and outputs are not those of the model (see `Report.interface`).
    """

    starts: Row | None
    others: tuple[Row, ...]
    results: tuple[Row, ...]
    inherits: tuple[Row, ...]
    sound: tuple[str, ...]
    grows: Row | None
    growth: float
    ties: tuple[Row, ...]
    suspicious: tuple[Row, ...]
    unknown: int
    worst: Row | None
    culprits: tuple[str, ...] = ()
    switches: int | None = None
    repro: str = ""
    interface: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.starts is None and not self.results:
            return visible(self._of_nothing())
        parts = [self._beginning(), self._several(), self._results(), self._growth(), self._ties()]
        if self.culprits:
            parts.append(f"Switching off {_listed(self.culprits)} removes it.")
        elif self.switches:
            all_of_them = "the 1 transformation" if self.switches == 1 else f"all {self.switches} transformations"
            parts.append(f"It stays with {all_of_them} switched off that could be.")
        if self.repro:
            parts.append(f"A repro that shows it by itself is in {self.repro}.")
        return visible(" ".join(filter(None, parts)))

    def facts(self) -> dict[str, Any]:
        """The same for other programs."""
        return {
            "text": str(self),
            "starts": None if self.starts is None else _fact(self.starts),
            "others": [_fact(row) for row in self.others],
            "results": [_fact(row) for row in self.results],
            "inherits": [_fact(row) for row in self.inherits],
            "sound": self.sound,
            "grows": None if self.grows is None else _fact(self.grows) | {"growth": self.growth},
            "ties": [_fact(row) for row in self.ties],
            "suspicious": [_fact(row) for row in self.suspicious],
            "unknown": self.unknown,
            "culprits": self.culprits,
            "switches": self.switches,
            "repro": self.repro or None,
        }

    def _of_nothing(self) -> str:
        if self.inherits:
            first, several = self.inherits[0], len(self.inherits)
            off = "1 value is" if several == 1 else f"{several} values are"
            amount = first.reason if first.float64 is None else _amount(first.float64, first.dtype)
            return f"No node is wrong by itself, but {off} off, {_named(first)} first: {amount}."
        if self.worst is None or self.worst.isolated is None or self.worst.isolated.verdict == "same":
            return f"{'No value' if self.interface else 'Nothing'} differs from what the model had."
        worst, level = self.worst, self.worst.isolated
        few = f", {len(self.suspicious)} of them suspiciously far" if self.suspicious else ""
        return (
            f"Rounding explains all differences{few}: the largest that a node makes by itself is {times(level.ratio)} "
            f"times its rounding, at {_named(worst)}.{self._unknown()}"
        )

    def _unknown(self) -> str:
        if not self.unknown:
            return ""
        values = "1 value" if self.unknown == 1 else f"{self.unknown} values"
        return f" Float64 does not know {values}: the tolerance judged there."

    def _beginning(self) -> str:
        sound = f"The {self.sound[0]} graph is sound. " if self.sound else ""
        if self.starts is None:
            return f"{sound}No node is wrong by itself."
        row, local = self.starts, self.starts.isolated
        off = "The exported graph is off as it stands. " if row.stage == "exported" else ""
        changes = ""
        if row.unstable and local is not None and local.spread is not None:
            changes = f"; it changes from run to run, by up to {local.spread:.1e}"
        what = ""
        if local is not None:
            what = f"is {_amount(local, row.dtype)}" if _is_number(local) else f"differs ({local.note})"
        given = "given what should go in, its result"
        return f"{sound}{off}Divergence starts at {_named(row)}: {given} {what}{changes}."

    def _several(self) -> str:
        if not self.others:
            return ""
        one = len(self.others) == 1
        said = (
            "1 further node is wrong by itself" if one else f"{len(self.others)} further nodes are wrong by themselves"
        )
        return f"{said}: {_listed([_short(row) for row in self.others])}."

    def _results(self) -> str:
        if not self.results:
            return "No result of the model is off by more than rounding for it."
        told = [
            f"{named(row.value)} ({_amount(row.float64, row.dtype)})" for row in self.results if row.float64 is not None
        ]
        told += [
            f"{named(row.value)} ({named(row.reason or row.difference)})" for row in self.results if row.float64 is None
        ]
        return f"Results that are off: {_listed(told)}."

    def _growth(self) -> str:
        if self.grows is None:
            return ""
        return f"On its way the error grows most at {_named(self.grows)}: {times(self.growth)} times."

    def _ties(self) -> str:
        told = [f"{_short(row)} ({row.float64.note})" for row in self.ties if row.float64 is not None]
        return f"Near-ties: {_listed(told)}." if told else ""


def explain(every: Sequence[Row], wrong_nodes: Sequence[Row], graphs: Mapping[Stage, Graph]) -> Explanation | None:
    """Return what a comparison by float64 found; None if it was made without.

    Args:
        every: the rows of a report.
        wrong_nodes: those of them whose own node makes them wrong.
        graphs: by stage, what was compared.
    """
    rows = [row for row in every if row.kind != "output"]
    if not any(row.isolated is not None or row.float64 is not None for row in rows):
        return None
    introduced = _one_each(wrong_nodes)
    off = [row for row in every if row.kind == "output" and row.diverged]
    results = tuple({(row.stage, row.value): row for row in reversed(off)}.values())[::-1]  # one for all calls
    stages = list(dict.fromkeys(row.stage for row in rows))
    wrong = {row.stage for row in (*wrong_nodes, *results)}
    last = stages[-1]
    grows, growth = _growing(every, graphs) if introduced or results else (None, 0.0)
    return Explanation(
        starts=introduced[0] if introduced else None,
        others=tuple(introduced[1:]),
        results=tuple(row for row in results if row.stage == (last if last in wrong else row.stage)),
        inherits=() if introduced or results else _one_each(row for row in rows if row.diverged),
        sound=tuple(stage for stage in stages if stage not in wrong) if wrong else (),
        grows=grows,
        growth=growth,
        ties=tuple(
            row for row in rows if row.float64 is not None and row.float64.verdict == "rounding" and row.float64.note
        ),
        suspicious=_one_each(row for row in rows if row.isolated is not None and row.isolated.verdict == "suspicious"),
        unknown=sum(bool(row.error) and row.float64 is None for row in rows),
        worst=max((row for row in rows if row.isolated is not None), key=_ratio, default=None),
    )


def _ratio(row: Row) -> float:
    return 0.0 if row.isolated is None else row.isolated.ratio


def _one_each(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The first row of each fault: another call or value of the node has the same, and so has what was made of it."""
    found = dict[tuple[str, str], Row]()
    for row in rows:
        exported = {("exported", origin) for origin in row.origins if row.stage != "exported"}
        if not exported & found.keys():
            found.setdefault((row.stage, row.node), row)
    return tuple(found.values())


def _growing(every: Sequence[Row], graphs: Mapping[Stage, Graph]) -> tuple[Row | None, float]:
    """Where the error grows most, relative to the tensors' typical numbers, by a node that is not wrong by itself."""
    best, most = None, _GROWTH
    for call, stage in dict.fromkeys((row.call, row.stage) for row in every):
        graph = graphs.get(stage)  # pyright: ignore[reportArgumentType]  a row's is a Stage
        rows = {row.value: row for row in every if (row.call, row.stage) == (call, stage) and row.kind != "output"}
        for name, row in rows.items() if graph is not None else ():
            if (
                row.introduced
                or row.float64 is None
                or row.float64.sound
                or not _is_number(row.float64)
                or graph is None
            ):
                continue
            before = max(
                (_relative(rows[read].float64) for read in graph.producer[name].reads if read in rows), default=0
            )
            growth = _relative(row.float64) / before if before else 0.0
            if math.isfinite(growth) and growth > most:
                best, most = row, growth
    return best, most if best is not None else 0.0


def _relative(judgement: RoundingVerdict | None) -> float:
    """How far off a value is, relative to its typical numbers; 0 if that is not known."""
    return judgement.error / judgement.magnitude if judgement is not None and judgement.magnitude else 0.0


def _amount(judgement: RoundingVerdict, dtype: str | None) -> str:
    if not _is_number(judgement):
        return judgement.note
    if judgement.note:
        return f"off by {judgement.error:.1e} ({judgement.note})"
    far = f"{judgement.error:.1e} from float64, {times(judgement.ratio)} times {dtype} rounding"
    return f"{far} (eager: {judgement.eager:.1e})"


def _is_number(judgement: RoundingVerdict) -> bool:
    """Whether it says how far off something is."""
    return math.isfinite(judgement.ratio)


def _named(row: Row) -> str:
    """`layers.1.mlp.act (Gelu, fused from Div, Erf and 2 Mul, modeling_x.py:176)`."""
    counts = Counter(row.operators)
    parts = [f"{count} {named(op)}" if count > 1 else named(op) for op, count in counts.items()]
    inside = [f"fused from {_listed(parts, most=8)}"] if row.kind == "fused" else []
    source = [named(short_source(row.source))] if row.source else []
    before = [f"after {_listed([*map(named, row.unjudged)])}, which could not be judged"] if row.unjudged else []
    return f"{_short(row)} ({', '.join([named(row.op), *inside, *source, *before])})"


def _short(row: Row) -> str:
    return f"`{named(row.node)}` in `{named(row.module)}`" if row.module else f"`{named(row.node)}`"


def _listed(parts: Sequence[str], most: int = _MOST) -> str:
    shown = [*parts[:most], f"{len(parts) - most} more"] if len(parts) > most else [*parts]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


_NAMES = ("call", "stage", "node", "op", "value", "module", "source", "origins", "operators")


def _fact(row: Row) -> dict[str, Any]:
    judged = {"float64": row.float64, "isolated": row.isolated}
    found = {name: None if item is None else asdict(item) for name, item in judged.items()}
    return {name: getattr(row, name) for name in _NAMES} | found
