"""Golden dumps: what a model did once, against which later runs are held while they run."""

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

from .._diff import diff, extra_row, missing_row, value_rows
from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..models._subject import Subject
from ..results._dump_diff import DiffRow, DumpDiff

_HERE, _THERE = "this run", "the golden dump"


@dataclass(frozen=True)
class Golden:
    """A golden dump, to hold a model against (see `Checks.golden`).

    Attributes:
        path: the dump.
        update: whether the dump is stored anew instead.
        tolerance: see `compare`.
        judge: called with what a run came to; it raises if that is not close.
        told: called when the dump was to be stored, with how the run differs from the former dump, None where there was
            none, and whether that was replaced.
    """

    path: Path
    update: bool
    tolerance: float | Tolerance | None
    judge: Callable[[DumpDiff], None]
    told: Callable[[DumpDiff | None, bool], None]

    def check(self, model: nn.Module, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> None:
        """Call the model once, without gradients, and hold what all its modules took and gave against the dump.

        Raises:
            AssertionError: something differs, is missing or is new.
            CompareError: there is no dump yet, or the model fails.
        """
        __tracebackhide__ = True
        subject = Subject.of(model, args, kwargs)
        with self.steal(model):
            subject.run()

    def steal(self, model: nn.Module | tuple[str, nn.Module], **options: Any) -> AbstractContextManager[None]:
        """Hold all that the model's modules take and give in the block against the dump.

        Args:
            model: a module, or a `(name, module)` pair.
            options: of `steal_forward`: `include`, `exclude`, `iterations`, `operators` …

        Raises:
            AssertionError: as `check`, at the end of the block.
        """
        __tracebackhide__ = True
        if not self.update and not self.path.is_file():
            raise CompareError(f"there is no golden dump {str(self.path)!r}: pytest --filch-update stores it")
        return _Block(self._opened(model, {"submodules": True, **options}))

    @contextmanager
    def _opened(self, model: Any, options: dict[str, Any]) -> Iterator[Callable[[], None]]:
        """Follow or store what the block does; yields what is to be called when it has ended well."""
        if self.update:
            with _stored(self.path, model, options) as changed:
                yield lambda: self.told(*changed)
            return
        follower = Follower(restore(self.path), self.tolerance)

        def judge() -> None:
            __tracebackhide__ = True
            self.judge(follower.result())

        with steal_forward(model, sink=follower, strict=True, **options):
            yield judge


class _Block:
    """A block that judges at its end; no generator, whose frames would stand in the traceback of each failure."""

    def __init__(self, opened: AbstractContextManager[Callable[[], None]]) -> None:
        self._opened = opened

    def __enter__(self) -> None:
        __tracebackhide__ = True
        self._judge = self._opened.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self._opened.__exit__(kind, error, trace)
        if error is None:
            self._judge()


class Follower:
    """A sink of `steal_forward` that holds each record against a dump's, and keeps of it how far it is off."""

    def __init__(self, expected: Dump, tolerance: float | Tolerance | None = None) -> None:
        self._expected = expected
        self._tolerance = tolerance
        self._rows: dict[Key, tuple[DiffRow, ...]] = {}

    def __call__(self, key: Key, value: Any) -> None:
        """Take a record."""
        if key in self._expected:
            rows = value_rows(key, self._expected[key], value, self._tolerance, second=_HERE)
            self._rows[key] = tuple(rows)
        else:
            self._rows[key] = (extra_row(key, value, first=_THERE),)

    def result(self) -> DumpDiff:
        """All that was found, and what never came; in the dump's order."""
        rows: list[DiffRow] = []
        for key in self._expected:
            rows += self._rows.get(key) or (missing_row(key, self._expected[key], second=_HERE),)
        rows += [row for key, found in self._rows.items() if key not in self._expected for row in found]
        return DumpDiff(self._expected.source, _HERE, tuple(rows))


@contextmanager
def _stored(path: Path, model: Any, options: dict[str, Any]) -> Iterator[list[Any]]:
    """Store a dump of the block; one that holds the same numbers is left alone, so that git sees no change.

    Yields:
        a list, which is filled at the end: how the new dump differs from the former one, and whether it was stored.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    result: list[Any] = []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".filch-") as folder:  # where it can be moved from
        made = Path(folder) / path.name
        with steal_forward(model, dump_file=made, on_error="raise", strict=True, **options):
            yield result
        changes = diff(path, made, tolerance=0) if path.is_file() else None
        is_new = changes is None or bool(changes.diverged) or not all(row.judged for row in changes.rows)
        if is_new:
            _put_in_place(Path(folder), path)
        result += [changes, is_new]


def _put_in_place(folder: Path, path: Path) -> None:
    """Move a dump and its data, if it has some beside it, over the former ones."""
    for former in path.parent.glob(f"{path.name}*.data"):
        former.unlink()
    for file in sorted(folder.iterdir(), reverse=True):  # the data first
        shutil.move(file, path.parent / file.name)
