"""The rows of a comparison of several processes with one."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import NamedTuple

import torch

from filch.steal import AssembledRecords, Key, Records, describe, missing_tensors, tensors
from filch.steal.ranks._distributed import Distributed

from ..float64._stored_level import StoredLevel
from ..float64._verdict import SUSPICIOUS
from ..metrics._summed_sizes import SUMMED, SummedSizes
from ..metrics._tolerance import Tolerance
from ..results._dump_diff import DumpDiff
from ..results._rows import DiffRow
from ._culprit import culprit_reasons
from ._inference import Inferred, fit_known, infer, wrong_ranks

# By kinds of records: parameter, input, output, their gradients, final gradient of a parameter, a value of the user.
_ORDER = {"P": 0, "I": 1, "O": 1, "GI": 2, "GO": 2, "GF": 3, "V": 4}  # without local gradients and collectives
_FORWARD, _BACKWARD = ("I", "O"), ("GI", "GO")
_MIN_SCALED = 2  # final gradients that have a factor in common: one alone always has
_UNREDUCED = "each rank has a partial value: no collective has reduced it"


class RankDiff:
    """Compares the values of several processes with those of one."""

    # By how much larger gradients with respect to inputs and outputs are than those of one process: by the number of
    # ranks and microbatches of which each has the mean loss of its part. The first of these gradients shows it.
    _divisor: int | None = None
    # By how much larger the final gradients are: a wrong one changes the norm by which all of them are clipped.
    _scale: float = 1

    def __init__(
        self,
        expected: Records,
        actual: AssembledRecords,
        tolerance: float | Tolerance | None,
        levels: Mapping[str, StoredLevel],
    ) -> None:
        self._expected, self._actual, self._tolerance, self._levels = expected, actual, tolerance, levels
        self._sizes = SummedSizes(expected)
        self._expected_counts = _counts(expected)
        self._actual_keys = _keys_by_place(actual)
        self._stages = _stages(expected, actual)
        self._learned: dict[str, str] = {}  # how plain tensors fit the reference where they do, by the value's place

    def result(self) -> DumpDiff:
        """Return the rows, with what is known about the first that differs."""
        rows = tuple(self._all_rows())
        return DumpDiff(
            self._expected.source,
            self._actual.source,
            rows,
            reasons=(*self._scale_reasons(rows), *culprit_reasons(rows, self._actual)),
            files=tuple(dump.source for dump in self._actual.dumps.values()),
            learned=self._learned,
        )

    def _all_rows(self) -> list[DiffRow]:
        """Return a row for each tensor of the reference: parameters, forward, backward, then final gradients."""
        keys = sorted((key for key in self._expected if key.kind in _ORDER), key=lambda key: _ORDER[key.kind])
        judged = self._scaled_last([row for key in keys for row in self._rows(key)])
        rows = [row for phase in ("P", _FORWARD, _BACKWARD, ("GF",), "V") for row in _reduction_checked(judged, phase)]
        names = {key.name for key in self._expected}
        extra = [key for key in self._actual if key.name not in names and key.kind in _ORDER]
        return rows + [
            DiffRow(key, "", "?", "the first dump does not have it", same=None, is_extra=True) for key in extra
        ]

    def _scaled_last(self, judged: list["_JudgedRow"]) -> list["_JudgedRow"]:
        """Return the rows with the final gradients last that are wrong by a factor that most wrong ones have in common.

        The others are judged again without that factor. It is of no interest if other values are wrong before.
        """
        wrong = [one for one in judged if one.row.diverged]
        scales = [one.scale for one in wrong if one.scale is not None]
        if len(scales) < _MIN_SCALED or any(_ORDER[one.row.key.kind] < _ORDER["GF"] for one in wrong):
            return judged
        self._scale = median(scales)
        again = {one.row.key: [*self._rows(one.row.key)] for one in wrong}
        scaled = {key for key, rows in again.items() if not any(one.row.diverged for one in rows)}
        if 2 * len(scaled) <= len(again):
            self._scale = 1
            return judged
        first = [one for one in judged if one.row.key not in again]
        others = [one for key, rows in again.items() if key not in scaled for one in rows]
        return [*first, *others, *(one for one in judged if one.row.key in scaled)]

    def _scale_reasons(self, rows: Iterable[DiffRow]) -> Iterator[str]:
        """Yield a sentence about the factor that final gradients have in common, if there is one."""
        if self._scale != 1:
            count = sum(row.diverged and row.key.kind == "GF" for row in rows)
            yield (
                f"most of the {count} final gradients that differ are {self._scale:.4g} times those of one process, as "
                "if the loss, the number of ranks to average over, or the norm for clipping were another"
            )

    def _rows(self, key: Key) -> Iterator["_JudgedRow"]:
        """Yield the rows of a record of the reference."""
        value = self._expected[key]
        keys = self._matching(key)
        if not keys:
            count = len(self._actual_keys.get((key.name, key.kind), []))
            reason = f"the ranks have {count} of them: only the first and the last are compared" if count else ""
            same = None if count else False
            yield _JudgedRow(DiffRow(key, "", describe(value), reason or "no rank has it", same=same))
            return
        distributed = [self._actual.distributed(one) for one in keys]
        for path, tensor in tensors(value).items():
            judged = self._judge(key, path, tensor, [by_path[path] for by_path in distributed if path in by_path])
            ranks = self._stages.get((key.name, key.kind))  # None without a pipeline
            if judged.row.diverged and ranks is not None:
                own = [self._actual.distributed(one, ranks) for one in keys]
                judged = self._judge(key, path, tensor, [by_path[path] for by_path in own if path in by_path])
            yield judged
        for path, stand_in in missing_tensors(value).items():
            yield _JudgedRow(DiffRow(key, path, describe(stand_in), "it was not stored in the first dump", same=None))

    def _matching(self, key: Key) -> list[Key]:
        """Return the keys whose values are together that of the reference's key: several if there are microbatches."""
        found = self._actual_keys.get((key.name, key.kind), [])
        count = self._expected_counts[key.name, key.kind]
        if key.kind in ("P", "GF") and len(found) != count:  # recorded whenever they change: which ones are equal?
            return found[:1] if key.iteration == 0 and count > 1 else found[-1:] if key.iteration == count - 1 else []
        return _split(found, key.iteration, count)

    def _judge(self, key: Key, path: str, reference: torch.Tensor, calls: list[Distributed]) -> "_JudgedRow":
        """Compare a tensor with those of one or several calls, which have its microbatches."""
        if not calls:
            return _JudgedRow(DiffRow(key, path, describe(reference), "no rank has this tensor"))
        layouts = self._actual.layouts
        whole = [item if len(item.parts) == 1 else layouts.join_declared(key, item) or item for item in calls]
        found = self._fit(key, path, reference, _merged(whole))
        if found is None and len(whole) > 1:  # the first call may be of shape inference
            found = self._fit(key, path, reference, _merged(whole[1:]))
        if found is None:
            shapes = ", ".join(str(list(tensor.shape)) for item in calls for tensor in item.tensors)
            reason = f"tensors of shapes {shapes} are not one of shape {list(reference.shape)} in any way"
            return _JudgedRow(DiffRow(key, path, describe(reference), reason))
        return self._judged(key, path, reference, found)

    def _fit(self, key: Key, path: str, reference: torch.Tensor, item: Distributed) -> Inferred | None:
        """Put parts together as it is known or as fits best; None if their shapes fit in no way.

        The layout of a single part was recorded or declared; one learned in an earlier run includes the divisor.
        """
        splits_loss = key.kind in _BACKWARD and not self._is_averaged(key, path)
        divisor = self._divisor if splits_loss else self._scale if key.kind == "GF" else 1
        size = partial(self._sizes.of, key, path, reference.shape)
        known = item if len(item.parts) == 1 else self._actual.layouts.join_learned(key, path, item)
        if known is None:
            found = infer(item, reference, size=size, divisor=divisor, tolerance=self._tolerance)
        else:
            is_learned, count = len(item.parts) > 1, len(self._actual.dumps) if len(item.pieces) == 1 else item.shards
            divisors = (1,) if is_learned and splits_loss else sorted({1, count}) if divisor is None else (divisor,)
            found = fit_known(known, reference, size=size, divisors=divisors, tolerance=self._tolerance)
        if splits_loss and found is not None and not found.is_rounding and self._divisor is None:
            self._divisor = self._actual.layouts.learned_divisor(key, path) or int(found.divisor)
        return found

    def _is_averaged(self, key: Key, path: str) -> bool:
        """Return whether a gradient is with respect to a mean over the ranks, such as the loss: it is no larger."""
        place = key._replace(kind=key.kind.removeprefix("G")).place(path)
        layout = self._learned.get(place) or self._actual.layouts.learned.get(place, "")
        return "P(avg)" in layout  # partial values that are averaged

    def _judged(self, key: Key, path: str, reference: torch.Tensor, found: Inferred) -> "_JudgedRow":
        """Return the row of a tensor that was put together, and what it tells about collectives."""
        item, difference = found.item, found.difference
        reasons = [_UNREDUCED] if found.unreduced and key.kind in ("P", "GF") else []
        problems = "; ".join([*reasons, *item.problems])
        ranks: tuple[int, ...] = ()
        level, ratio = self._levels.get(key.label + path), None
        if level is not None and level.reliable and not difference.problem:
            ratio = level.ratio(reference, item.parts[0].tensor)
        close = difference.close if ratio is None else ratio <= SUSPICIOUS
        if problems or not close:
            ranks = wrong_ranks(item, reference, self._tolerance) or tuple(sorted({*item.ranks}))
        elif found.layout and self._scale == 1 and not found.is_rounding:
            self._learned[key.place(path)] = found.layout
        held_by = tuple(sorted({rank for part in item.parts for rank in part.ranks}))
        row = partial(
            DiffRow,
            *(key, path, describe(reference)),
            difference=difference,
            ratio=ratio,
            layout=item.layout,
            ranks=ranks,
            held_by=held_by,
        )
        is_unreduced = found.unreduced and close and not problems
        unreduced = row(reason=_UNREDUCED, faulty=True) if is_unreduced else None
        reason = problems or SUMMED * (found.is_rounding and ratio is None)
        is_sharded = item.shards == len(item.pieces) and not item.ranks
        agrees = None if is_sharded else not found.unreduced and not item.problems
        scale = _scale_of(item.parts[0].tensor, reference) if key.kind == "GF" and not close else None
        return _JudgedRow(row(reason=reason, faulty=bool(problems)), unreduced, agrees, scale)


class _JudgedRow(NamedTuple):
    """A row, and what it tells about collectives.

    Attributes:
        row: the row.
        unreduced: the row if the ranks have partial values that are right and no collective reduces them; else None.
        agrees: whether the ranks have equal replicas, right or wrong; None if they have only shards.
        scale: the factor by which a wrong final gradient is larger than the reference, by least squares, or None.
    """

    row: DiffRow
    unreduced: DiffRow | None = None
    agrees: bool | None = False
    scale: float | None = None


def _scale_of(tensor: torch.Tensor, reference: torch.Tensor) -> float | None:
    """Return the factor by which a tensor is larger than another, by least squares; None if it is not positive."""
    if tensor.shape != reference.shape or not reference.is_floating_point():
        return None
    actual, expected = (one.flatten().to(torch.float64) for one in (tensor, reference))
    scale = float(actual @ expected) / (float(expected @ expected) or math.nan)
    return scale if 0 < scale < math.inf else None


def _reduction_checked(judged: Iterable[_JudgedRow], kinds: Collection[str]) -> Iterator[DiffRow]:
    """Yield the rows of some kinds; partial values are wrong if no collective has reduced them.

    A collective has if the next value is right, or is wrong but equal on all ranks; with shards of a wrong value, one
    may have if the value leaves a module around the partial one. Partial values at the end of the forward pass are
    wrong, too; those at the end of the backward pass show in the final gradients.
    """
    pending: list[tuple[DiffRow, DiffRow]] = []  # each with the row if no collective reduces it
    for row, unreduced, agrees, _ in judged:
        if row.key.kind not in kinds:
            continue
        if unreduced is not None:
            pending.append((row, unreduced))
            continue
        if row.judged or row.diverged:
            is_reduced = _leaves(row, pending) if agrees is None else agrees
            yield from (rows[row.diverged and not is_reduced] for rows in pending)
            pending.clear()
        yield row
    yield from (rows[kinds == _FORWARD] for rows in pending)


def _leaves(row: DiffRow, inner: list[tuple[DiffRow, DiffRow]]) -> bool:
    """Return whether a value leaves a module in which others are."""
    around = f"{row.module}." if row.module else ""
    return row.key.kind in ("O", "GI") and bool(inner) and inner[-1][0].module.startswith(around)


def _stages(expected: Records, actual: AssembledRecords) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the ranks whose values of the whole model are comparable, if ranks are stages of a pipeline.

    They are if no two sets of ranks have a module in common, except the one that each of them calls the model. Its
    input is that of the first stage, its output that of the last one.

    Returns:
        the ranks by the name of the model and the kind of value; empty without a pipeline.
    """
    ranks_by_names: dict[frozenset[str], tuple[int, ...]] = {}
    for rank in actual.dumps:
        names = frozenset(key.name for key in actual.keys_of(rank) if key.kind in _FORWARD)
        ranks_by_names[names] = (*ranks_by_names.get(names, ()), rank)
    common = frozenset.intersection(*ranks_by_names)
    counts = Counter(name for names in ranks_by_names for name in names - common)
    if len(ranks_by_names) == 1 or len(common) != 1 or any(count > 1 for count in counts.values()):
        return {}
    (root,) = common
    places = {name: index for index, name in enumerate(dict.fromkeys(key.name for key in expected))}

    def first_place(names: frozenset[str]) -> int:
        return min((places.get(name, len(places)) for name in names - common), default=len(places))

    order = sorted(ranks_by_names, key=first_place)
    first, last = ranks_by_names[order[0]], ranks_by_names[order[-1]]
    return {(root, "I"): first, (root, "GI"): first, (root, "O"): last, (root, "GO"): last}


def _merged(items: list[Distributed]) -> Distributed:
    """Return the parts of several iterations as those of one tensor, rank by rank."""
    first, *others = items
    if not others:
        return first
    parts = sorted((part for item in items for part in item.parts), key=lambda part: part.ranks[0])
    problems = [problem for item in items for problem in item.problems]
    return Distributed(parts, first.layout, problems, [rank for item in items for rank in item.ranks], first.shards)


def _split(keys: list[Key], iteration: int, count: int) -> list[Key]:
    """Return the keys that belong to one of `count` iterations."""
    if len(keys) < count:
        return [key for key in keys if key.iteration == iteration]
    size = len(keys) // count
    keys = keys[len(keys) - size * count :]  # a first one may be of shape inference
    return keys[iteration * size : (iteration + 1) * size]


def _counts(records: Records) -> Counter[tuple[str, str]]:
    return Counter((key.name, key.kind) for key in records)


def _keys_by_place(records: Records) -> dict[tuple[str, str], list[Key]]:
    """Return the keys by name and kind, in order of their iterations."""
    found: dict[tuple[str, str], list[Key]] = {}
    for key in sorted(records, key=lambda key: key.iteration):
        found.setdefault((key.name, key.kind), []).append(key)
    return found
