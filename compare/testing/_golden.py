"""Golden dumps: stored records of a model, with which later runs are compared as they run."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from torch import nn

from filch.steal import Dump, Key, restore, steal_forward

from .._diff import diff, unmatched_rows, value_rows
from ..common._errors import CompareError
from ..float64._stored_level import StoredLevel
from ..metrics._summed_sizes import SummedSizes
from ..metrics._tolerance import Tolerance
from ..models._subject import Subject
from ..references._rerun import Rerun, repeat_calls
from ..results._dump_diff import DumpDiff
from ..results._rows import DiffRow
from ._cause import explain
from ._golden_file import GoldenRecord
from ._precision_loss import lost_precision

_HERE, _THERE = "this run", "the golden dump"
Model = nn.Module | tuple[str, nn.Module]


@dataclass(frozen=True)
class Golden:
    """A golden dump to compare a model with (see `Checks.golden`).

    Attributes:
        path: the dump.
        update: whether the dump is overwritten instead.
        tolerance: see `compare`; None judges by the rounding levels that are stored with the values.
        check_diff: called with the result of a run; raises if it is not close.
        report_update: called after an update with a message: whether the dump was stored, changed or unchanged.
        allow_less_precise: whether an update may store values that are further from float64 than the present ones.
    """

    path: Path
    update: bool
    tolerance: float | Tolerance | None
    check_diff: Callable[[DumpDiff], None]
    report_update: Callable[[str], None]
    allow_less_precise: bool = False

    def check(self, model: nn.Module, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> None:
        """Call the model once, without gradients, and compare the inputs and outputs of its modules with the dump.

        If a value differs, the model runs once more, and two or three times in float64, to tell why.

        Raises:
            AssertionError: something differs, is missing or is new; or an update would make the dump less precise.
            CompareError: there is no dump yet, or the model fails.
        """
        __tracebackhide__ = True
        subject = Subject.of(model, args, kwargs)
        with self._block(model, {}, lambda _: subject.run()):
            subject.run()

    def steal(self, model: Model, **options: Any) -> AbstractContextManager[None]:
        """Compare the inputs and outputs of the model's modules in the block with the dump.

        If a value differs, the model is called again with the inputs of the calls in the block, to tell why. What the
        block does between these calls is not repeated.

        Args:
            model: a module, or a `(name, module)` pair.
            options: of `steal_forward`: `include`, `exclude`, `iterations`, `operators` …

        Raises:
            AssertionError: as for `check`, at the end of the block.
        """
        __tracebackhide__ = True
        name, module = model if isinstance(model, tuple) else ("", model)
        return self._block(model, options, lambda dump: repeat_calls(name, module, dump))

    def _block(
        self, model: Model, options: dict[str, Any], repeat: Callable[[Dump], None]
    ) -> AbstractContextManager[None]:
        """Return the block that records a model, and compares the records with the dump or stores them.

        Args:
            model: see `steal`.
            options: of `steal_forward`.
            repeat: repeats the calls of the block, given the dump of these or of equal calls.
        """
        __tracebackhide__ = True
        if not self.update and not self.path.is_file():
            raise CompareError(f"there is no golden dump {str(self.path)!r}: pytest --filch-update stores it")
        recording = self._storing if self.update else self._comparing
        return _CheckedBlock(recording(model, {"submodules": True, **options}, repeat))

    @contextmanager
    def _storing(
        self, model: Model, options: dict[str, Any], repeat: Callable[[Dump], None]
    ) -> Iterator[Callable[[], None]]:
        """Store the records of the block; yield what reports this after a block that did not raise."""
        updates: list[_Update] = []  # the one that was made, once the block has ended

        def finish() -> None:
            __tracebackhide__ = True
            (update,) = updates
            if update.refusal:
                raise AssertionError(update.refusal)
            self.report_update(update.message)

        rerun = _rerun(model)
        with self._temporary_folder() as folder:
            new = folder / self.path.name
            with steal_forward(model, dump_file=new, strict=True, on_error="raise", **options):
                yield finish
            updates.append(self._store(new, rerun, repeat))

    @contextmanager
    def _comparing(
        self, model: Model, options: dict[str, Any], repeat: Callable[[Dump], None]
    ) -> Iterator[Callable[[], None]]:
        """Compare the records of the block; yield what checks the result after a block that did not raise."""
        rerun = _rerun(model)
        golden = restore(self.path)
        record = GoldenRecord.of(golden)
        levels = record.levels if record is not None and self.tolerance is None else {}
        sink = ComparingSink(golden, self.tolerance, levels)

        def finish() -> None:
            __tracebackhide__ = True
            result = sink.result()
            if result.diverged:
                rerun.finish(lambda: repeat(golden))
                result = replace(result, **vars(explain(result, golden, record, rerun, sink.rows)))
            self.check_diff(result)

        with steal_forward(model, sink=sink, strict=True, **options):
            yield finish

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        """Create a folder on the file system of the golden dump; if nothing is stored, no new folder is left."""
        missing = [folder for folder in self.path.parents if not folder.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".filch-") as folder:
                yield Path(folder)
        finally:
            for place in missing:
                with suppress(OSError):  # it is not empty
                    place.rmdir()

    def _store(self, new: Path, rerun: Rerun, repeat: Callable[[Dump], None]) -> "_Update":
        """Replace the golden dump by a new one, unless its numbers are the same, so that git sees no change."""
        changes = diff(self.path, new, tolerance=0) if self.path.is_file() else None
        former = GoldenRecord.of(restore(self.path)) if changes is not None else None
        is_same = changes is not None and not changes.diverged and all(row.judged for row in changes.rows)
        if is_same and former is not None:
            return _Update(f"unchanged {self.path}")
        dump = restore(new)
        rerun.finish(lambda: repeat(dump))
        levels, problem = rerun.levels(dump)
        record = GoldenRecord(levels, rerun.weights(), rerun.draws_random, problem)
        refusal = ""
        if changes is not None and former is not None and not self.allow_less_precise:
            refusal = lost_precision((restore(self.path), former), (dump, record), changes)
        if refusal:
            return _Update(refusal=refusal)
        record.write(new)
        self._move(new)
        problem = f"; not all values have a rounding level: {record.problem}" if record.problem else ""
        if changes is None:
            return _Update(f"stored {self.path}{problem}")
        what = f"{changes.headline}; the first is {changes.first_divergence}"
        what = "the same values, now with rounding levels" if is_same else what
        return _Update(f"changed {self.path}: {what}{problem}")

    def _move(self, new: Path) -> None:
        """Move a dump to the place of the golden dump, and remove the data of the former one."""
        former = set(restore(self.path).files) if self.path.is_file() else set()
        files = {self.path.parent / file.name: file for file in sorted(new.parent.iterdir(), reverse=True)}
        for place in files:
            if place.exists() and place not in former:
                raise CompareError(f"{str(place)!r} exists, and is not of the golden dump: move it elsewhere")
        for place, file in files.items():  # the external data first
            shutil.move(file, place)
        for place in former - files.keys():
            place.unlink()


@dataclass(frozen=True)
class _Update:
    """An update of a golden dump.

    Attributes:
        message: whether the dump was stored, changed or unchanged.
        refusal: why it may not be overwritten, or `""`.
    """

    message: str = ""
    refusal: str = ""


def _rerun(model: Model) -> Rerun:
    """Return what runs a model again from the state that it has now."""
    name, module = model if isinstance(model, tuple) else ("", model)
    return Rerun(name, module)


class _CheckedBlock:
    """A block that is checked at its end; not a generator, whose frames would be in the traceback of each failure."""

    def __init__(self, recording: AbstractContextManager[Callable[[], None]]) -> None:
        self._recording = recording

    def __enter__(self) -> None:
        __tracebackhide__ = True
        self._finish = self._recording.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self._recording.__exit__(kind, error, trace)
        if error is None:
            self._finish()


class ComparingSink:
    """A sink of `steal_forward` that compares each record with a dump's, and keeps only the rows.

    Args:
        expected: the dump.
        tolerance: see `compare`.
        levels: the rounding levels of the dump's values (see `GoldenRecord`), which judge them instead.
    """

    def __init__(
        self,
        expected: Dump,
        tolerance: float | Tolerance | None = None,
        levels: Mapping[str, StoredLevel] = MappingProxyType({}),
    ) -> None:
        self._expected, self._tolerance, self._levels = expected, tolerance, levels
        self._sizes = SummedSizes(expected)
        self._rows: dict[Key, tuple[DiffRow, ...]] = {}

    def __call__(self, key: Key, value: Any) -> None:
        """Compare a record."""
        self._rows[key] = self.rows(key, value)

    def rows(self, key: Key, value: Any) -> tuple[DiffRow, ...]:
        """Return the rows of a record."""
        if key not in self._expected:
            return unmatched_rows(key, value, _THERE)
        rows = value_rows(
            *(key, self._expected[key], value, self._tolerance), second=_HERE, levels=self._levels, sizes=self._sizes
        )
        return tuple(rows)

    def result(self) -> DumpDiff:
        """Return the rows in the dump's order, including records that this run lacks; extra records come last."""
        rows: list[DiffRow] = []
        for key in self._expected:
            found = self._rows.get(key)  # no rows if it has no tensors
            rows += unmatched_rows(key, self._expected[key], _HERE) if found is None else found
        rows += [row for key, extra in self._rows.items() if key not in self._expected for row in extra]
        return DumpDiff(self._expected.source, _HERE, tuple(rows))
