"""Compare two dumps of the same model, for example from two machines or two versions."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from filch.steal import (
    AssembledRecords,
    Key,
    Layouts,
    Records,
    Skipped,
    Statistics,
    assemble,
    describe,
    missing_tensors,
    restore,
    tensors,
)
from filch.steal.values._structure import structure

from .alignment._value_map import MappedValue, ValueMap, load_value_map
from .common._complex import complex_as_real
from .common._errors import CompareError
from .engine._isolated_modules import isolated_modules
from .float64._levels_file import levels_of
from .float64._stored_level import StoredLevel
from .metrics._summed_sizes import SUMMED, SummedSizes, compare_summed
from .metrics._tolerance import Tolerance
from .ranks._rank_diff import RankDiff
from .references._rerun import Rerun, repeat_calls
from .results._dump_diff import DumpDiff, outermost
from .results._rows import DiffRow

_SECOND = "the second dump"
_Path = str | os.PathLike[str]
Dumps = _Path | Records | Sequence[_Path]


def diff(
    reference: Dumps,
    actual: Dumps,
    *,
    tolerance: float | Tolerance | None = None,
    layouts: Layouts | None = None,
    mapping: str | os.PathLike[str] | ValueMap | None = None,
    model: nn.Module | tuple[str, nn.Module] | None = None,
) -> DumpDiff:
    """Compare the values of two dumps or captures by key and path; no model is needed.

    If `actual` is the run of several processes, each value of the reference is compared with what the ranks have
    together (see `assemble`): first the parameters, then the forward pass, the backward pass and the final gradients.
    Plain tensors whose layout is not known are put together in the way that fits the reference best; a value of the
    forward pass or a final gradient that only a sum over the ranks explains is reported as not reduced. Replicas must
    be equal bit for bit.

    Args:
        reference: the reference: a dump or a capture; or the dumps of several processes, as their paths or a pattern
            such as `"run.*.onnx"`, which are put together first.
        actual: the dump, capture or dumps to compare with it.
        tolerance: see `compare`; by default, rounding levels judge the values if the reference has them (see
            `record_reference`).
        layouts: see `assemble`.
        mapping: if they are of two implementations: where module outputs of the reference are in the other one, as a
            `ValueMap` or its TOML file (see `align`); only these are compared.
        model: the model of the reference, or a `(name, module)` pair if the reference has calls of several; in the mode
            and on the device (the CPU) to run it. It is called on the inputs in the reference, in float64, so that
            values of the forward pass are judged by rounding levels, as if `record_reference` had stored them. Then
            each module whose output in `actual` is wrong is called on its inputs in `actual`: `DumpDiff.isolated` says
            whether the module computes its output wrong from these, or inherits the error. `reasons` of the result
            say what could not run.

    Returns:
        a `DumpDiff` with one row for each tensor, and for each record that only one of them has.

    Raises:
        DumpError: one of them cannot be read, or is a program (`NotADumpError`).
        CompareError: `model` has no name, and the reference has calls of several modules.
    """
    first, second = _opened(reference, layouts), _opened(actual, layouts)
    levels = levels_of(first) if tolerance is None else {}
    if model is None:
        return _Comparison(first, second, tolerance, levels).result(mapping)
    name, module = _named(model, first)
    notes: list[str] = []
    if tolerance is None and not levels:
        rerun = Rerun(name, module)
        rerun.finish(lambda: repeat_calls(name, module, first))
        levels, problem = rerun.levels(first)
        notes += [f"values without a rounding level were judged by tolerance: {problem}"] if problem else []
    result = _Comparison(first, second, tolerance, levels).result(mapping)
    if mapping is not None:  # the modules of the second dump are other ones
        return replace(result, reasons=(*result.reasons, *notes))
    if isinstance(second, AssembledRecords):
        # With how plain tensors belong together, as the comparison has found.
        layouts = replace(second.layouts, learned={**second.layouts.learned, **result.learned})
        second = AssembledRecords(second.dumps, layouts)

    def compare(key: Key, value: Any, other: Any, own_levels: Mapping[str, StoredLevel]) -> Iterator[DiffRow]:
        return value_rows(key, value, other, tolerance, levels=own_levels if tolerance is None else {})

    isolated, problems = isolated_modules(result.rows, second, name, module, compare)
    return replace(result, isolated=isolated, reasons=(*result.reasons, *notes, *problems))


def _named(model: nn.Module | tuple[str, nn.Module], records: Records) -> tuple[str, nn.Module]:
    """Return a model with its name in the keys: that of the only module of which records have calls."""
    if isinstance(model, tuple):
        return model
    names = {call.name for call in records.calls()}
    if len(names) != 1:
        raise CompareError(f"{records.source} has calls of {len(names)} modules: give model=(name, module)")
    return names.pop(), model


def _opened(dumps: "Dumps", layouts: Layouts | None) -> Records:
    """Return the records of a dump, or of those of several processes."""
    if isinstance(dumps, Records):
        return dumps
    paths = [dumps] if isinstance(dumps, str | os.PathLike) else list(dumps)
    if len(paths) > 1:
        return assemble(paths, layouts=layouts)
    path = os.fspath(paths[0])
    return restore(path) if Path(path).exists() or not has_magic(path) else assemble(path, layouts=layouts)


@dataclass(frozen=True)
class _Comparison:
    """Compares two dumps; see `diff`.

    Attributes:
        first: the reference.
        second: the dump to compare with it.
        tolerance: see `compare`; it judges tensors without a level.
        levels: the rounding levels of the tensors of the reference, by the record's label and the tensor's path.
    """

    first: Records
    second: Records
    tolerance: float | Tolerance | None
    levels: Mapping[str, StoredLevel]

    def result(self, mapping: str | os.PathLike[str] | ValueMap | None) -> DumpDiff:
        """Return the result; see `diff`."""
        if isinstance(self.second, AssembledRecords):
            return RankDiff(self.first, self.second, self.tolerance, self.levels).result()
        value_map = load_value_map(mapping) if isinstance(mapping, str | os.PathLike) else mapping
        rows = self._rows() if value_map is None else self._mapped_rows(value_map)
        return DumpDiff(self.first.source, self.second.source, tuple(rows))

    def _rows(self) -> Iterator[DiffRow]:
        """Yield the rows of the records of both dumps, and one row for each record that only one of them has."""
        first, second, sizes = self.first, self.second, SummedSizes(self.first)
        for key in first:
            if key in second:
                yield from value_rows(key, first[key], second[key], self.tolerance, levels=self.levels, sizes=sizes)
            else:
                yield from unmatched_rows(key, first[key], _SECOND)
        for key in second:
            if key not in first:
                yield from unmatched_rows(key, second[key], "the first dump")

    def _mapped_rows(self, mapping: ValueMap) -> Iterator[DiffRow]:
        """Yield a row for each module output of the first dump that a mapping finds in the second one.

        Outputs of the outermost modules, which are those of the model, have a row in any case: without a place in the
        mapping, one whose `same` is None, as nothing was compared.
        """
        keys = [key for key in self.first if key.kind == "O"]
        names = {key.name for key in keys}
        others = {
            f"{_called(key)}{path}": tensor
            for key in self.second
            if key.kind == "O"
            for path, tensor in tensors(self.second[key]).items()
        }
        for key in keys:
            for path, tensor in tensors(self.first[key]).items():
                mapped = mapping.values.get(f"{_called(key)}{path}")
                if mapped is not None:
                    yield from self._mapped_row(key, path, tensor, mapped, others.get(mapped.place))
                elif outermost(key.name, names) == key.name:
                    yield DiffRow(key, path, describe(tensor), "the mapping has no place for it", same=None)

    def _mapped_row(
        self, key: Key, path: str, tensor: torch.Tensor, mapped: MappedValue, other: torch.Tensor | None
    ) -> Iterator[DiffRow]:
        """Yield the row of a module output of the first dump.

        Args:
            key: the key of its record.
            path: its path in the record.
            tensor: the output.
            mapped: where it is in the second dump.
            other: the tensor at that place; None if there is none.
        """
        if other is None:
            yield DiffRow(key, path, describe(tensor), f"{_SECOND} does not have {mapped.place!r}")
            return
        try:
            own, part = complex_as_real(tensor), complex_as_real(other)
            part = (part if mapped.layout is None else mapped.layout.select(part)).reshape(own.shape)
        except (IndexError, RuntimeError):
            reason = f"{mapped.place!r} is {describe(other)}, which has no such part"
            yield DiffRow(key, path, describe(tensor), reason)
            return
        yield from value_rows(key, own, part, self.tolerance, place=path, levels=self.levels)


def _called(key: Key) -> str:
    """Return the path of a module with `@1` after its second call, as mappings name it."""
    return f"{key.name}@{key.iteration}" if key.iteration else key.name


def value_rows(
    key: Key,
    value: Any,
    other: Any,
    tolerance: float | Tolerance | None,
    *,
    place: str = "",
    second: str = _SECOND,
    levels: Mapping[str, StoredLevel] = MappingProxyType({}),
    sizes: SummedSizes | None = None,
) -> Iterator[DiffRow]:
    """Yield a row for each tensor of a record in both dumps, and one for the record if its structure differs.

    Args:
        key: the key of the record.
        value: its value in the first dump.
        other: its value in the second one.
        tolerance: see `compare`; it judges tensors without a level.
        place: the path of the value in the record.
        second: what the second dump is called.
        levels: the rounding levels of the tensors, by the record's label and the tensor's path.
        sizes: the sizes of what gradients of the first dump were summed from.
    """
    if structure(value) != structure(other):
        yield DiffRow(key, place, describe(value), f"it is {describe(other)} in {second}")
    others = tensors(other)
    for path, tensor in tensors(value).items():
        other_tensor, level = others.get(path), levels.get(key.label + place + path)
        size = partial(sizes.of, key, path, tensor.shape) if sizes is not None else float  # `float()` is 0: not known
        difference, is_rounding = compare_summed(other_tensor, tensor, size, tolerance=tolerance)
        ratio = None  # of the difference to the rounding level
        if level is not None and level.reliable and other_tensor is not None and not difference.problem:
            ratio = level.ratio(tensor, other_tensor)
        reason = SUMMED if is_rounding and ratio is None else ""
        yield DiffRow(key, place + path, describe(tensor), reason, difference, ratio=ratio)
    missing = missing_tensors(other)
    for path, stand_in in missing_tensors(value).items():
        yield _without_numbers(key, path, stand_in, missing.get(path), second)


def unmatched_rows(key: Key, value: Any, missing_from: str) -> tuple[DiffRow, ...]:
    """Return the row of a record that only one of two dumps has.

    It counts as a difference, unless only one of several processes has such a record: a gradient before it is reduced
    over all of them, or a collective. What hooks make of a caller's arguments may be computed elsewhere: no row.
    """
    if key.kind == "A":  # the caller's arguments, before hooks changed them
        return ()
    same = None if key.kind in ("GP", "C") else False  # a gradient after each accumulation; a collective
    return (DiffRow(key, "", describe(value), f"{missing_from} does not have it", same=same),)


def _without_numbers(
    key: Key, path: str, first: Skipped | Statistics, second: Skipped | Statistics | None, place: str
) -> DiffRow:
    """Return the row of a tensor whose numbers were not stored; tensors with statistics are compared by those.

    Args:
        key: the key of the record.
        path: the path of the tensor in the record.
        first: what the first dump has in place of the numbers.
        second: what the second one has; None if it has the numbers or no such tensor.
        place: what the second dump is called.
    """
    if isinstance(first, Statistics) and isinstance(second, Statistics):
        same = first.content == second.content
        reason = "" if same else f"{describe(first)} is {describe(second)} in {place}"
        return DiffRow(key, path, first.what, reason, same=same)
    reason = first.reason if isinstance(first, Skipped) else f"{place} has no statistics of it"
    return DiffRow(key, path, first.what, f"it was not stored: {reason}", same=None)
