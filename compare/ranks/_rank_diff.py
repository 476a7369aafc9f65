"""The rows of a comparison of several processes with one."""

from collections import Counter
from collections.abc import Iterator

import torch

from filch.steal import (
    AssembledRecords,
    Distributed,
    Key,
    LocalShard,
    Records,
    describe,
    missing_tensors,
    tensors,
)
from filch.steal.ranks import local_tensors

from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import Tolerance
from ..results._dump_diff import DiffRow
from ._inference import infer

_ORDER = {"P": 0, "I": 1, "O": 1, "GI": 2, "GO": 2, "GF": 3, "V": 4}  # without local gradients and collectives
_SPLIT = ("GI", "GO")  # gradients that are n times as large if each of n ranks computes the mean of its part
_UNREDUCED = "each rank has a partial value: no collective has reduced it"


class RankDiff:
    """Compares the values of several processes with those of one.

    Attributes:
        learned: how the parts of plain tensors fit the reference, by the value's place.
    """

    def __init__(self, expected: Records, actual: AssembledRecords, tolerance: float | Tolerance | None) -> None:
        self._expected, self._actual, self._tolerance = expected, actual, tolerance
        self._expected_counts = _counts(expected)
        self._actual_keys = _keys_by_place(actual)
        self.learned: dict[str, str] = {}

    def rows(self) -> list[DiffRow]:
        """Return a row for each tensor of the reference: parameters, forward, backward, then final gradients."""
        keys = sorted(
            (key for key in self._expected if key.kind in _ORDER), key=lambda key: _ORDER.get(key.kind, len(_ORDER))
        )
        rows = [row for key in keys for row in self._rows(key)]
        names = {key.name for key in self._expected}
        extra = [key for key in self._actual if key.name not in names and key.kind in _ORDER]
        return rows + [DiffRow(key, "", "?", "the first dump does not have it", same=None) for key in extra]

    def _rows(self, key: Key) -> Iterator[DiffRow]:
        """Yield the rows of a record of the reference."""
        value = self._expected[key]
        keys = self._matching(key)
        if not keys:
            yield DiffRow(key, "", describe(value), "no rank has it")
            return
        distributed = [self._actual.distributed(one) for one in keys]
        for path, tensor in tensors(value).items():
            items = [by_path[path] for by_path in distributed if path in by_path]
            if items:
                yield self._row(key, path, tensor, _merged(items))
            else:
                yield DiffRow(key, path, describe(tensor), "no rank has this tensor")
        for path, stand_in in missing_tensors(value).items():
            yield DiffRow(key, path, describe(stand_in), "it was not stored in the first dump", same=None)

    def _matching(self, key: Key) -> list[Key]:
        """Return the keys whose values are together that of the reference's key: several if there are microbatches."""
        found = self._actual_keys.get((key.name, key.kind), [])
        count = self._expected_counts[key.name, key.kind]
        if key.kind in ("P", "GF"):  # recorded whenever they change: how often differs
            return found[:1] if key.iteration == 0 and count > 1 else found[-1:] if key.iteration == count - 1 else []
        return _split(found, key.iteration, count)

    def _row(self, key: Key, path: str, reference: torch.Tensor, item: Distributed) -> DiffRow:
        """Return the row of one tensor."""
        item = self._actual.resolve(key, path, item)
        reason = ""
        if len(item.parts) > 1:
            found = infer(item, reference, gradient=key.kind in _SPLIT, tolerance=self._tolerance)
            if found is None:
                shapes = ", ".join(str(list(part.shape)) for part in item.tensors)
                reason = f"tensors of shapes {shapes} are not one of shape {list(reference.shape)} in any way"
                return DiffRow(key, path, describe(reference), reason)
            item, difference = found.item, found.difference
            if found.unreduced and key.kind not in _SPLIT:
                reason = _UNREDUCED
            else:
                self.learned[key.place(path)] = found.layout
        else:
            difference = compare_tensors(reference, item.parts[0].tensor, tolerance=self._tolerance)
        problems = "; ".join([*([reason] if reason else []), *item.problems])
        ranks = tuple(sorted({*item.ranks})) or self._wrong_ranks(key, path, reference, difference)
        return DiffRow(
            key, path, describe(reference), problems, difference, layout=item.layout, ranks=ranks, faulty=bool(problems)
        )

    def _wrong_ranks(self, key: Key, path: str, reference: torch.Tensor, difference: Difference) -> tuple[int, ...]:
        """Return the ranks whose own shard or replica differs from the reference; none if that is not known."""
        if difference.close or key not in self._actual:
            return ()
        wrong = []
        for rank, value in self._actual.local_values(key).items():
            local = local_tensors(value).get(path)
            if not isinstance(local, LocalShard) or not local.sharding.is_complete:
                return ()
            if tuple(reference.shape) != local.sharding.shape:
                return ()
            expected = local.sharding.part_of(reference, rank)
            if not compare_tensors(expected, local.as_subclass(torch.Tensor), tolerance=self._tolerance).close:
                wrong.append(rank)
        return tuple(wrong)

    def nearest_collective(self, row: DiffRow) -> str:
        """Return a sentence about the last collective before a value; `""` if collectives were not recorded.

        In a backward pass, the value is a gradient, and the collective is one of the backward pass.
        """
        is_backward = row.key.kind.startswith("G")
        for rank, dump in self._actual.dumps.items():
            if row.ranks and rank not in row.ranks:
                continue
            last: Key | None = None
            for key in self._actual.keys_of(rank):
                if key == row.key:
                    break
                if key.kind == "C" and dump[key]["backward"] == is_backward:
                    last = key
            if last is not None:
                value = dump[last]
                ranks, where = ", ".join(map(str, value["ranks"])), last.name or "the model"
                place = "in the backward pass" if is_backward else f"in {where}"
                return f"the last collective before it is {value['collective']} of ranks {ranks} {place}"
        return ""


def _merged(items: list[Distributed]) -> Distributed:
    """Return the parts of several iterations as those of one tensor."""
    first, *others = items
    if not others:
        return first
    parts = [part for item in items for part in item.parts]
    problems = [problem for item in items for problem in item.problems]
    return Distributed(parts, first.layout, problems, [rank for item in items for rank in item.ranks])


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
