"""What the fixture `filch` gives a test: comparisons that raise, with all that a reader of the failure needs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from filch.export import Program, load_program
from filch.export.backends import Backend, get_backend
from filch.steal import FilchError, Scratch
from filch.steal.text import for_terminal

from .._compare import compare
from .._compare_export import compare_runnable
from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..models._subject import Subject
from ..repro import write_comparison
from ..results._dump_diff import DumpDiff
from ..results._report import Report
from ._artifacts import ArtifactStore
from ._golden import Golden

_DEFAULT = "onnxruntime-cpu"
_AGAIN = "if that is meant, pytest --filch-update stores it anew"
Backends = str | Backend | Iterable[str | Backend] | None


class Checks:
    """Regression tests of models: the fixture `filch`.

    Attributes:
        backend: the backend that this test is for (`@pytest.mark.filch_backends`), or None.
    """

    def __init__(self, place: ArtifactStore, backend: str | None = None) -> None:
        self.backend = backend
        self._place = place

    def check(
        self,
        model: nn.Module,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        backends: Backends = None,
        dynamic_shapes: Any = None,
        program: Program | str | Path | None = None,
        tolerance: float | Tolerance | None = None,
        lower_precision: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Report, ...]:
        """Steal from a model, export it, and compare it on each backend, node by node.

        Args:
            model: in eval mode, usually.
            args: its positional arguments.
            kwargs: its keyword arguments.
            backends: names or backends; None is the test's own (`@pytest.mark.filch_backends`), else ONNX Runtime.
            dynamic_shapes: see `export`.
            program: what to compare instead of the exported model: a program, or the path of an ONNX file.
            tolerance: see `compare`.
            lower_precision: see `compare`.
            options: what the named backends are made with (see `get_backend`).

        Returns:
            a report for each backend.

        Raises:
            AssertionError: with all that any backend got wrong, or why it could not be compared.
            FilchError: the model fails, or can't be exported.
        """
        __tracebackhide__ = True
        subject = Subject.of(model, args, kwargs, dynamic_shapes)
        with Scratch() as folder:
            dump = folder / "reference.onnx"
            subject.steal(dump)
            told = self._place.reports is not None  # every page is kept
            given = _Given(
                dump, _program(subject, program), tolerance, options or {}, lower_precision, told, program is None
            )
            found = [self._compared(given, backend) for backend in self._chosen(backends)]
        problems = [problem for _, problem in found if problem]
        if problems:
            raise AssertionError(for_terminal("\n\n".join(problems)))
        return tuple(report for report, _ in found if report is not None)

    def golden(self, name: str, *, tolerance: float | Tolerance | None = None) -> Golden:
        """The golden dump of a name, to hold a model against.

        `filch.golden("encoder").check(model, x)` calls the model; `with filch.golden("encoder").steal(model):` follows
        what the block does with it. `pytest --filch-update` stores the dump.

        Args:
            name: a file's, without its ending; each test file has a folder of its own.
            tolerance: see `compare`.
        """
        if re.fullmatch(r"\w[\w.-]*", name) is None:
            raise CompareError(f"a golden dump has a name like 'encoder' or 'encoder-2', not {name!r}")
        path = self._place.golden / f"{name}.onnx"

        def judge(found: DumpDiff) -> None:
            __tracebackhide__ = True
            self._judge(name, found)

        def told(changes: DumpDiff | None, is_new: bool) -> None:  # noqa: FBT001  Golden alone calls it
            self._place.stored.add(path)
            self._place.say("golden", _stored(path, changes, is_new=is_new))

        # What a second test of this run takes for the same is held against what the first one stored.
        return Golden(path, self._place.update and path not in self._place.stored, tolerance, judge, told)

    def _chosen(self, backends: Backends) -> list[str | Backend]:
        if backends is None:
            return [self.backend or _DEFAULT]
        chosen = list(backends) if isinstance(backends, Iterable) and not isinstance(backends, str) else [backends]
        if not chosen:
            raise CompareError("backends is empty: nothing would be compared")
        return chosen

    def _compared(self, given: "_Given", backend: str | Backend) -> tuple[Report | None, str]:
        """The report of one backend, and what is wrong."""
        name = backend if isinstance(backend, str) else backend.name
        self._place.say("backend", name)
        try:
            report, given = given.compared(backend)
        except FilchError as error:
            self._place.say("result", "failed")
            self._place.say("first_divergence", str(error))
            return None, f"{name} could not be compared: {error}"
        if not report.close and not given.statistics:  # its page is read
            report, given = replace(given, statistics=True).compared(backend)
        self._told(report)
        label = self._place.numbered(_file_name(name))
        page = self._place.write(report, label)
        if report.close:
            return report, ""
        lines = [f"{report.program} on {report.backend} is not close to {report.reference}", report.headline()]
        lines += [
            "",
            *report.verdict(),
            "",
            report.excerpt(),
            "",
            f"report: {page}",
            self._repro(given, backend, label),
        ]
        return report, "\n".join(lines)

    def _repro(self, given: "_Given", backend: str | Backend, label: str) -> str:
        if not isinstance(backend, str):
            return "repro: none, as the backend was not given by name"
        try:
            script = given.repro(backend, self._place.folder() / f"{label}-repro")
        except (FilchError, OSError) as error:
            return f"repro: none, as {error}"
        self._place.say("repro", str(script))
        return f"repro: python {script}"

    def _judge(self, name: str, found: DumpDiff) -> None:
        __tracebackhide__ = True
        self._place.say("backend", f"golden:{name}")
        self._told(found)
        page = self._place.write(found, self._place.numbered(f"golden-{name}"))
        if not found.close:
            first = found.first_divergence or "nothing could be judged"
            lines = [f"this run is not what the golden dump {name!r} holds: {found.headline()}; {_AGAIN}", ""]
            lines += [f"First: {first}", "", found.excerpt(), "", f"report: {page}"]
            raise AssertionError(for_terminal("\n".join(lines)))

    def _told(self, found: Report | DumpDiff) -> None:
        errors = [row.difference.error_max for row in found.rows if row.difference and not row.difference.problem]
        self._place.say("result", "close" if found.close else "different")
        self._place.say("worst_error", f"{max(errors):.1e}" if errors else "")
        first = found.first_divergence
        interface = found.interface if isinstance(found, Report) else ()
        told = "" if first is None else str(first)
        self._place.say("first_divergence", told or next(iter(interface), ""))


@dataclass(frozen=True)
class _Given:
    """What each backend is compared with."""

    dump: Path
    program: Program
    tolerance: float | Tolerance | None
    options: Mapping[str, Any]
    lower_precision: bool
    statistics: bool
    exported: bool  # not given by the user: it may be optimised, if the backend can't run it otherwise

    def compared(self, backend: str | Backend) -> tuple[Report, "_Given"]:
        """The report, and what was compared in the end."""
        engine = get_backend(backend, **self.options) if isinstance(backend, str) else backend
        how: dict[str, Any] = {
            "backend": engine,
            "tolerance": self.tolerance,
            "lower_precision": self.lower_precision,
            "statistics": self.statistics,
        }
        if self.exported:
            report, ran = compare_runnable(self.dump, self.program, **how)
        else:
            report, ran = compare(self.dump, self.program, **how), self.program
        # Where the dump was matters to nobody.
        return replace(report, reference="eager PyTorch"), replace(self, program=ran)

    def repro(self, backend: str, folder: Path) -> Path:
        return write_comparison(
            self.dump,
            self.program,
            backend,
            folder,
            options=self.options,
            tolerance=self.tolerance,
            lower_precision=self.lower_precision,
        )


def _program(subject: Subject, given: Program | str | Path | None) -> Program:
    if given is None:
        return subject.export()
    return given if isinstance(given, Program) else load_program(given)


def _stored(path: Path, changes: DumpDiff | None, *, is_new: bool) -> str:
    if changes is None:
        return f"stored {path}"
    if not is_new:
        return f"unchanged {path}"
    return f"changed {path}: {changes.headline()}; the first is {changes.first_divergence}"


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
