"""Golden dumps: stored records of a model, with which later runs are compared as they run."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from filch.steal import Dump, Key, restore, steal_forward

from .._diff import diff, unmatched_row, value_rows
from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..models._subject import Subject
from ..results._dump_diff import DiffRow, DumpDiff

_HERE, _THERE = "this run", "the golden dump"


@dataclass(frozen=True)
class Golden:
    """A golden dump to compare a model with (see `Checks.golden`).

    Attributes:
        path: the dump.
        update: whether the dump is overwritten instead.
        tolerance: see `compare`.
        check_diff: called with the result of a run; raises if it is not close.
        report_update: called after an update with a message: whether the dump was stored, changed or unchanged.
    """

    path: Path
    update: bool
    tolerance: float | Tolerance | None
    check_diff: Callable[[DumpDiff], None]
    report_update: Callable[[str], None]

    def check(self, model: nn.Module, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> None:
        """Call the model once, without gradients, and compare the inputs and outputs of its modules with the dump.

        Raises:
            AssertionError: something differs, is missing or is new.
            CompareError: there is no dump yet, or the model fails.
        """
        __tracebackhide__ = True
        subject = Subject.of(model, args, kwargs)
        with self.steal(model):
            subject.run()

    def steal(self, model: nn.Module | tuple[str, nn.Module], **options: Any) -> AbstractContextManager[None]:
        """Compare the inputs and outputs of the model's modules in the block with the dump.

        Args:
            model: a module, or a `(name, module)` pair.
            options: of `steal_forward`: `include`, `exclude`, `iterations`, `operators` …

        Raises:
            AssertionError: as for `check`, at the end of the block.
        """
        __tracebackhide__ = True
        if not self.update and not self.path.is_file():
            raise CompareError(f"there is no golden dump {str(self.path)!r}: pytest --filch-update stores it")
        return _Block(self._recording(model, {"submodules": True, **options}))

    @contextmanager
    def _recording(self, model: Any, options: dict[str, Any]) -> Iterator[Callable[[], None]]:
        """Compare or store the records of the block; yield a function to call after a block that did not raise."""
        if self.update:
            with _update(self.path, model, options) as message:
                yield lambda: self.report_update(*message)
            return
        sink = ComparingSink(restore(self.path), self.tolerance)

        def finish() -> None:
            __tracebackhide__ = True
            self.check_diff(sink.result())

        with steal_forward(model, sink=sink, strict=True, **options):
            yield finish


class _Block:
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
    """A sink of `steal_forward` that compares each record with a dump's, and keeps only the rows."""

    def __init__(self, expected: Dump, tolerance: float | Tolerance | None = None) -> None:
        self._expected = expected
        self._tolerance = tolerance
        self._rows: dict[Key, tuple[DiffRow, ...]] = {}

    def __call__(self, key: Key, value: Any) -> None:
        """Compare a record."""
        if key in self._expected:
            rows = value_rows(key, self._expected[key], value, self._tolerance, second=_HERE)
            self._rows[key] = tuple(rows)
        else:
            self._rows[key] = (unmatched_row(key, value, _THERE),)

    def result(self) -> DumpDiff:
        """Return the rows in the dump's order, including records that this run lacks; extra records come last."""
        rows: list[DiffRow] = []
        for key in self._expected:
            rows += self._rows.get(key) or (unmatched_row(key, self._expected[key], _HERE),)
        rows += [row for key, extra in self._rows.items() if key not in self._expected for row in extra]
        return DumpDiff(self._expected.source, _HERE, tuple(rows))


@contextmanager
def _update(path: Path, model: Any, options: dict[str, Any]) -> Iterator[list[str]]:
    """Store a dump of the block; keep the former file if its numbers are the same, so that git sees no change.

    Yields:
        a list that gets a message at the end: whether the dump was stored, changed or unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    message: list[str] = []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".filch-") as folder:  # on the same file system
        new = Path(folder) / path.name
        with steal_forward(model, dump_file=new, on_error="raise", strict=True, **options):
            yield message
        changes = diff(path, new, tolerance=0) if path.is_file() else None
        if changes is not None and not changes.diverged and all(row.judged for row in changes.rows):
            message.append(f"unchanged {path}")
            return
        for former in path.parent.glob(f"{path.name}*.data"):
            former.unlink()
        for file in sorted(Path(folder).iterdir(), reverse=True):  # the external data first
            shutil.move(file, path.parent / file.name)
        if changes is None:
            message.append(f"stored {path}")
        else:
            message.append(f"changed {path}: {changes.headline}; the first is {changes.first_divergence}")
