"""Tell why a run differs from a golden dump: the code, the environment, the inputs, or a run that can't be repeated.

The model runs once more in its own dtypes, and in float64. Another environment (threads, instruction set, version of a
library) changes float64 values by about 1e-13 of their size; other code or weights change them by far more. The golden
dump has fingerprints of the float64 values of its run, so that the two can be compared.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch

from filch.steal import Dump, Key, environment, tensors

from ..common._complex import complex_as_real
from ..float64._stored_level import StoredLevel
from ..float64._verdict import SUSPICIOUS, WRONG, format_ratio
from ..references._rerun import Rerun
from ..results._dump_diff import DumpDiff
from ..results._rows import DiffRow
from ._golden_file import GoldenRecord

Cause = Literal["code", "environment", "both", "inputs", "not reproducible", "unknown"]
# Why a value differs; `_SENTENCES` says what each means.
Kind = Literal["structure", "weights", "function", "precision", "environment", "unknown"]
# Two float64 values of the same function differ by less, in rounding levels; float64 itself has units of 2**-29 of
# float32's. A model in float64 has no finer reference.
_SAME, _SAME_FLOAT64, _FLOAT64_UNIT = 2.0**-12, SUSPICIOUS, 2.0**-50
# Weights that differ by so many units change a value by so many rounding levels at most, and its worst element more.
_PER_UNIT, _PER_UNIT_LARGEST = 2.0, 16.0
_NOT_NUMERICAL = frozenset({"onnx", "platform", "python", "time"})  # entries of the environment


@dataclass(frozen=True)
class GoldenCause:
    """Why a run differs from a golden dump.

    Attributes:
        cause: in a word.
        reasons: in sentences.
        causes: the reason for each value that differs, by its place.
    """

    cause: Cause
    reasons: tuple[str, ...]
    causes: Mapping[str, Kind]


def explain(
    result: DumpDiff, golden: Dump, record: GoldenRecord | None, rerun: Rerun, rows_of: Callable[..., Iterable[DiffRow]]
) -> GoldenCause:
    """Return why a run differs from a golden dump.

    Args:
        result: the comparison of the run with the golden dump.
        golden: the golden dump.
        record: what it stores besides the values.
        rerun: repeats the run.
        rows_of: compares a record with that of the golden dump, given its key and value.
    """
    if record is None:
        reason = "The golden dump has no rounding levels, as it was stored by an older version of Filch."
        return GoldenCause("unknown", (reason,), {})
    try:
        return _Examination(result, golden, record, rerun, rows_of).explanation()
    except Exception as error:  # noqa: BLE001  the model may raise anything; the difference must be reported anyway
        text = next(iter(str(error).splitlines()), "")
        reason = f"The cause can't be told, because the model could not run again: {type(error).__name__}: {text}."
        return GoldenCause("unknown", (reason,), {})


@dataclass(frozen=True)
class _Evidence:
    """What is known of a tensor of the golden dump.

    Attributes:
        level: its rounding level.
        change: how far its float64 value is from the one of the golden dump, in rounding levels.
        distance: how far the golden dump's value is from the float64 value of this run.
        error: how far the value of this run is from that, in rounding levels of the golden dump.
        is_coarser: whether it is computed in a lower precision than the golden dump's.
        is_decided: whether rounding may change a decision that it depends on (see `Decisions`).
    """

    level: StoredLevel
    change: float
    distance: float
    error: float
    is_coarser: bool
    is_decided: bool

    @property
    def is_same_function(self) -> bool:
        """Whether float64 computes what it computed for the golden dump."""
        return self.change <= (_SAME_FLOAT64 if 0 < self.level.unit < _FLOAT64_UNIT else _SAME)


class _EnvironmentChange(NamedTuple):
    """An entry of the environment that may affect numbers, at the time of the golden dump and now."""

    name: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.name} was {self.before} and is {self.now}"


class _Examination:
    """Runs a model again, and tells from its values why those of a run differ; see `explain` for the arguments.

    A second run in the model's own dtypes shows whether the run can be repeated, one in float64 whether the model is
    the same function as for the golden dump. `row.place` names a value: the label of its key, and its path.
    """

    def __init__(
        self,
        result: DumpDiff,
        golden: Dump,
        record: GoldenRecord,
        rerun: Rerun,
        rows_of: Callable[..., Iterable[DiffRow]],
    ) -> None:
        self._rows, self._golden, self._record, self._rerun = result.rows, golden, record, rerun
        self._evidence: dict[str, _Evidence] = {}
        self._again: dict[str, DiffRow] = {}
        self._environment = _environment_changes(golden)
        self._float64 = rerun.float64()
        rerun.into(lambda key, value: self._add(key, value, rows_of(key, value)), submodules=True)

    def _add(self, key: Key, value: Any, rows: Iterable[DiffRow]) -> None:
        """Add the evidence of a record, as the repeated run computes it."""
        self._again |= {row.place: row for row in rows}
        if key not in self._golden:
            return
        actual = tensors(value)
        for path, expected in tensors(self._golden[key]).items():
            place = key.label + path
            level, float64 = self._record.levels.get(place), self._float64.get(place)
            tensor = actual.get(path)
            if level is None or float64 is None or tensor is None or not _are_alike(tensor, expected, float64.value):
                continue
            self._evidence[place] = _Evidence(
                level,
                level.float64_change(expected, float64.value),
                level.ratio(expected, expected, float64.value),
                level.ratio(expected, tensor, float64.value),
                0 < level.unit < float64.unit,
                place in self._float64.changed_decisions,
            )

    def explanation(self) -> GoldenCause:
        """Return the explanation."""
        if reason := self._unrepeatable():
            return GoldenCause("not reproducible", (reason,), {})
        if reason := self._other_inputs():
            return GoldenCause("inputs", (reason,), {})
        kinds: dict[str, Kind] = {row.place: self._kind(row) for row in self._rows if row.diverged}
        found = {*kinds.values()}
        reasons = [self._sentence(kind, kinds) for kind in _SENTENCES if kind in found]
        is_code = not found.isdisjoint(("structure", "weights", "function", "precision"))
        moved = self._moved_before({place for place, kind in kinds.items() if kind != "environment"})
        code: Cause = "both" if moved else "code"
        cause = code if is_code else "unknown" if "unknown" in found else "environment"
        if cause == "both" and "environment" not in found:
            reasons.append(f"Rounding moved {len(moved)} earlier values, the first in {_where(moved[0].key)}.")
        return GoldenCause(cause, (*reasons, *self._remarks(is_code=is_code)), kinds)

    def _remarks(self, *, is_code: bool) -> Iterable[str]:
        """Yield sentences about the environment, and how it may be at fault even if the code is."""
        if self._rounding_of_inputs and self._environment:
            yield (
                f"{self._rounded_inputs_text}, as random numbers do in other environments. This hides smaller changes "
                "of the code: read them from a file instead."
            )
        if self._environment:
            yield f"The environment differs: {'; '.join(map(str, self._environment))}."
        owners = {info.type_name.partition(":")[0].partition(".")[0] for info in self._golden.modules.values()}
        packages = " or ".join(change.name for change in self._environment if change.name in owners)
        if is_code and packages:
            yield f"The code that changes may be that of {packages}, whose modules the model contains."
        if is_code and not self._environment:
            yield "The environment is the same, as far as the golden dump records it."

    def _unrepeatable(self) -> str:
        """Return why the run can't be repeated, or `""`."""
        drawn = self._rerun.draws_random
        if drawn and drawn != self._record.random:
            return "The model draws random numbers, from another state than for the golden dump: set the same seed."
        for row in self._rows:
            again = self._again.get(row.place)  # a model may compute a value once and keep it: then there is none
            if again is not None and _differs(row, again):
                return f"A second run with the same inputs computes another value in {_where(row.key)}: {again}."
        return ""

    def _other_inputs(self) -> str:
        """Return how the model's inputs differ by more than rounding, or `""`."""
        for row in self._rows:
            is_rounded = self._environment and self._input_change(row) <= WRONG
            if self._is_model_input(row.key) and row.diverged and not is_rounded:
                return f"The inputs differ, so that the code can't be compared: {row}."
        return ""

    def _is_model_input(self, key: Key) -> bool:
        """Return whether a record has the inputs of the model itself, not of a module in it."""
        return key.kind == "I" and key in self._golden and self._golden.records[key].origin.path == ""

    def _kind(self, row: DiffRow) -> Kind:
        """Return why a value differs."""
        if row.reason or (row.difference is not None and row.difference.problem):
            return "structure"
        if self._is_model_input(row.key):
            return "environment"  # other inputs are a cause of their own
        evidence = self._evidence.get(row.place)
        if evidence is None:
            return "unknown"
        if not evidence.is_same_function and not self._is_explained(evidence):
            return "weights" if self._changed_weights else "function"
        rounds_more = evidence.error > WRONG and evidence.level.reliable and not evidence.is_decided
        # In the same environment, only other code rounds the same function otherwise.
        if evidence.is_coarser or rounds_more or not self._environment:
            return "precision"
        return "environment"

    def _is_explained(self, evidence: _Evidence) -> bool:
        """Return whether weights and inputs that another environment rounds differently explain a float64 value."""
        units = self._rounding_of_inputs
        is_small = evidence.change <= _PER_UNIT * units and evidence.distance <= _PER_UNIT_LARGEST * units
        return bool(self._environment) and not self._changed_weights and is_small

    def _input_change(self, row: DiffRow) -> float:
        """Return how far an input of the model is from the golden dump's, in units in the last place; typically."""
        level = self._record.levels.get(row.place)
        if row.difference is None or row.difference.problem or level is None or not level.unit:
            return math.inf
        return row.difference.rms / level.unit

    @cached_property
    def _weight_changes(self) -> dict[str, float]:
        """How far weights have changed, by name, in units in the last place; those that are not bitwise equal."""
        now, before = self._rerun.weights(), self._record.weights
        changes = {name: before[name].change(now[name]) for name in before if name in now}
        return {name: change for name, change in changes.items() if before[name].digest != now[name].digest}

    @cached_property
    def _changed_weights(self) -> list[str]:
        """The names of weights that have changed by more than rounding, or in the same environment.

        Random weights change if they are drawn in another environment, by several units, and not one alone; what is
        computed from other numbers, such as the frequencies of rotary embeddings, changes by one.
        """
        are_drawn = len(self._weight_changes) >= max(2, len(self._record.weights) / 4)
        limit = (WRONG if are_drawn else SUSPICIOUS) if self._environment else 0.0
        return [name for name, change in self._weight_changes.items() if change > limit]

    @cached_property
    def _rounding_of_inputs(self) -> float:
        """How far weights and inputs of the model are from those of the golden dump, in units in the last place.

        Random numbers differ by some units between instruction sets, for example. 0 if all are bitwise equal.
        """
        changes = (self._input_change(row) for row in self._rows if self._is_model_input(row.key) and _moved(row))
        weights = (change for name, change in self._weight_changes.items() if name not in self._changed_weights)
        return max((*weights, *(change for change in changes if change <= WRONG)), default=0.0)

    def _moved_before(self, code: Collection[str]) -> list[DiffRow]:
        """Return the values that another environment has moved before the first of these places."""
        if not self._environment:
            return []
        # The rows of records that the golden dump does not have come last; this run has the order of these.
        orders = [row.place for row in self._rows if row.key in self._golden], [*self._again]
        before = [{*itertools.takewhile(lambda place: place not in code, order)} for order in orders]
        return [row for row in self._rows if self._is_moved(row) and all(row.place in places for places in before)]

    def _is_moved(self, row: DiffRow) -> bool:
        """Return whether another environment has changed a value, by however little."""
        evidence = self._evidence.get(row.place)
        return _moved(row) and evidence is not None and (evidence.is_same_function or self._is_explained(evidence))

    def _sentence(self, kind: Kind, kinds: Mapping[str, Kind]) -> str:
        """Return a sentence about the values of a kind."""
        rows = [row for row in self._rows if kinds.get(row.place) == kind]
        first = rows[0]
        what = first.reason or (first.difference.problem if first.difference else None)
        what = what or ("" if first.ratio is None else f"{format_ratio(first.ratio)} times its rounding level")
        count = f"{len(rows)} value{'s' * (len(rows) > 1)}, first in {_where(first.key)}: `{first.place}`"
        count += f" ({what})" if what else ""
        if kind == "weights":
            weight = self._changed_weights[0]
            owner = weight.rpartition(".")[0] or "(root)"
            more = f" and {len(self._changed_weights) - 1} others" if len(self._changed_weights) > 1 else ""
            return f"The weights differ: `{weight}` of module `{owner}`{more}. This changes {count}."
        return f"{_SENTENCES[kind]} {count}.{self._detail(kind, self._evidence.get(first.place))}"

    def _detail(self, kind: Kind, evidence: _Evidence | None) -> str:
        """Return a further sentence about the first value of a kind, with a blank in front; `""` if there is none."""
        if kind == "function" and evidence is not None:
            return f" The float64 value is {format_ratio(evidence.change)} times the rounding level from what it was."
        if kind == "precision" and evidence is not None:
            coarser = "; a lower precision is used on the way to it" if evidence.is_coarser else ""
            return f" It is {format_ratio(evidence.error)} times the rounding level from float64{coarser}."
        problem = self._float64.problem or self._record.problem
        return f" In float64: {problem}." if kind == "unknown" and problem else ""

    @property
    def _rounded_inputs_text(self) -> str:
        """How far weights or inputs are off by rounding, as the beginning of a sentence."""
        weights = [name for name in self._weight_changes if name not in self._changed_weights]
        others = f"{weights[0]}` and {len(weights) - 1} other weights" if weights[1:] else f"{''.join(weights)}`"
        what = f"The weights differ: `{others}" if weights else "The inputs differ"
        return f"{what} by up to {format_ratio(self._rounding_of_inputs)} units in the last place"


_SENTENCES: Mapping[Kind, str] = {
    "structure": "The model has other modules, calls, shapes or dtypes:",
    "weights": "The weights differ.",
    "function": "The modules compute something else, as float64 computes other values than for the golden dump:",
    "precision": "The modules compute the same in float64, but round more (a lower precision, or another algorithm):",
    "environment": "The modules compute the same in float64, and the environment rounds differently:",
    "unknown": "It can't be told whether the code or the environment changes, as float64 has no value to compare with:",
}


def _environment_changes(golden: Dump) -> list[_EnvironmentChange]:
    """Return the entries of the environment that differ and may affect numbers."""
    before = golden.environment
    now = environment(info.type_name for info in golden.modules.values())
    names = [name for name in now if name in before and name not in _NOT_NUMERICAL]
    return [_EnvironmentChange(name, before[name], now[name]) for name in names if before[name] != now[name]]


def _moved(row: DiffRow) -> bool:
    """Return whether a value differs at all, however little."""
    return row.difference is not None and row.difference.absolute > 0


def _where(key: Key) -> str:
    """Describe which code computes a value."""
    if key.kind == "I" and not key.name:
        return "the inputs of the model"
    if key.kind == "I":
        parent = key.name.rpartition(".")[0]
        return f"the code that calls module `{key.name}`" + (f" in `{parent}`" if parent else "")
    return f"module `{key.name or '(root)'}`"


def _differs(row: DiffRow, again: DiffRow) -> bool:
    """Return whether a repeated run gives another value than the first, by more than rounding."""
    if row.ratio is not None and again.ratio is not None:
        return row.ratio != again.ratio and abs(row.ratio - again.ratio) > SUSPICIOUS
    return row.diverged != again.diverged


def _are_alike(actual: torch.Tensor, expected: torch.Tensor, float64: torch.Tensor) -> bool:
    """Return whether three tensors can be compared element by element."""
    real = complex_as_real(expected)
    dtype = torch.float64 if real.is_floating_point() else real.dtype
    is_same = (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    return is_same and (float64.shape, float64.dtype) == (real.shape, dtype)
