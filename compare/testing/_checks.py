"""The object behind the fixture `filch`: comparisons that raise an `AssertionError` if a value differs."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from filch.export import CacheKind, Precision, Program, load_program
from filch.export.backends import Backend, get_backend
from filch.steal import FilchError
from filch.steal.files._scratch import Scratch
from filch.steal.text._visible import for_terminal

from .._align import align
from .._compare import compare
from .._compare_export import compare_with_fallback
from .._decode import compare_decode
from .._invariance import check_invariance
from .._quantized_relation import Caches
from ..alignment._value_map import ValueMap
from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance, ToleranceOption
from ..models._subject import Subject
from ..rendering._result import Result
from ..repro._again import write_comparison
from ..results._alignment import Alignment
from ..results._decoding import Decoding
from ..results._dump_diff import DumpDiff
from ..results._invariance import Invariance
from ..results._report import EAGER_PYTORCH, Report
from ._artifacts import ArtifactStore
from ._golden import Golden

_DEFAULT = "onnxruntime-cpu"
_UPDATE_HINT = "if the change is intended, run pytest --filch-update"
Accepted = Mapping[str, str] | None
T = TypeVar("T", bound=Result)
Backends = str | Backend | Iterable[str | Backend] | None


def _first(result: Result) -> str:
    """Return the first difference of a result that does not pass, or else what was not judged."""
    return result.first_difference or next(iter(result.gap_sentences()), result.headline)


def _explained(result: Result) -> list[str]:
    """Return the lines of the message about a result that does not pass."""
    return [result.headline, "", f"First: {_first(result)}", "", result.table(width=80)]


def _explained_golden(name: str, result: DumpDiff) -> list[str]:
    """Return the lines of the message about a run that differs from a golden dump."""
    cause = f" (cause: {result.cause})" if result.cause else ""
    title = f"this run differs from the golden dump {name!r}{cause}: {result.headline}"
    return [title, "", *result.reasons, "", f"First: {_first(result)}", "", result.excerpt()]


class Checks:
    """Regression tests of models: the fixture `filch`.

    Attributes:
        backend: the backend that this test is for (`@pytest.mark.filch_backends`), or None.
    """

    def __init__(self, artifacts: ArtifactStore, backend: str | None = None) -> None:
        self.backend = backend
        self._artifacts = artifacts

    def check(
        self,
        model: nn.Module,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        backends: Backends = None,
        dynamic_shapes: Any = None,
        program: Program | str | Path | None = None,
        tolerance: ToleranceOption = None,
        lower_precision: bool = False,
        options: Mapping[str, Any] | None = None,
        accepted: Accepted = None,
    ) -> tuple[Report, ...]:
        """Record a model, export it, and compare it on each backend, node by node.

        Args:
            model: in eval mode, usually.
            args: its positional arguments.
            kwargs: its keyword arguments.
            backends: names or backends; None is the test's own (`@pytest.mark.filch_backends`), else ONNX Runtime.
            dynamic_shapes: see `export`.
            program: the program to compare instead of the exported model, or the path of its ONNX file.
            tolerance: see `compare`.
            lower_precision: see `compare`.
            options: options of the backends that are given by name (see `get_backend`).
            accepted: reasons why a value may stay without a judgment, by its name (see `Report`).

        Returns:
            a report for each backend.

        Raises:
            AssertionError: a backend's values differ, or it could not be compared; the message covers all backends.
            FilchError: the model fails, or can't be exported.
        """
        __tracebackhide__ = True
        subject = Subject.of(model, args, kwargs, dynamic_shapes)
        with Scratch() as folder:
            dump = folder / "reference.onnx"
            subject.steal(dump)
            is_exported = program is None
            if program is None:
                program = subject.export()
            elif not isinstance(program, Program):
                program = load_program(program)
            statistics = self._artifacts.reports is not None  # every page is written
            reasons = self._reasons(accepted)
            judged = {"tolerance": tolerance, "lower_precision": lower_precision}
            setup = _Setup(dump, program, options or {}, judged, statistics, is_exported, reasons)
            results = [self._check_backend(setup, backend) for backend in self._list_backends(backends)]
        if problems := [problem for _, problem in results if problem]:
            raise AssertionError(for_terminal("\n\n".join(problems)))
        return tuple(report for report, _ in results if report is not None)

    def check_port(
        self,
        reference: nn.Module,
        actual: nn.Module,
        args: Any,
        actual_args: Any = None,
        *,
        kwargs: Mapping[str, Any] | None = None,
        actual_kwargs: Mapping[str, Any] | None = None,
        mapping: str | Path | ValueMap | None = None,
        parts: Mapping[str, str] | None = None,
        accepted: Accepted = None,
    ) -> Alignment:
        """Check that another implementation of a model, with the same weights, computes the same; see `align`.

        Args:
            reference: the reference implementation, A.
            actual: the implementation to compare with it, B.
            args: the positional arguments of A, or its only one.
            actual_args: those of B; None if they are the same.
            kwargs: the keyword arguments of A.
            actual_kwargs: those of B.
            mapping: where module outputs of A are in B; its rows are checked.
            parts: what B has of outputs of A, if not all of them.
            accepted: reasons why a value may stay without a judgment, by its name (see `Report`).

        Returns:
            the alignment.

        Raises:
            AssertionError: the outputs of B are not those of A, or a row of the mapping is wrong.
        """
        __tracebackhide__ = True
        result = align(
            reference,
            actual,
            args,
            actual_args,
            kwargs=kwargs,
            actual_kwargs=actual_kwargs,
            mapping=mapping,
            parts=parts,
        )
        return self._judge(result, "port", "port", accepted)

    def check_invariance(
        self,
        model: nn.Module,
        args: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        only: Collection[str] | None = None,
        attentions: Sequence[str] = ("sdpa",),
        backends: Sequence[str | Backend] = (),
        quantized: Caches = (),
        bitwise: bool = False,
        accepted: Accepted = None,
    ) -> Invariance:
        """Check that a language model computes the same however it is called; see `filch.compare.check_invariance`.

        Args:
            model: the model.
            args: the tokens, int64 in the shape [sequences, length]; None if they are in `kwargs`.
            kwargs: the keyword arguments of a call.
            only: names of relations to check; None for all.
            attentions: attention implementations to compare with `"eager"`.
            backends: backends that decode the model's program.
            quantized: quantized caches that have to hold what they are given.
            bitwise: whether also the bits have to be the same.
            accepted: reasons why a value may stay without a judgment, by its name (see `Report`).

        Returns:
            the result.

        Raises:
            AssertionError: a way to call the model gives other numbers.
        """
        __tracebackhide__ = True
        options: dict[str, Any] = {"attentions": attentions, "backends": backends, "quantized": quantized}
        result = check_invariance(model, args, kwargs, only=only, bitwise=bitwise, **options)
        return self._judge(result, "invariance", "invariance", accepted)

    def check_decode(
        self,
        model: nn.Module,
        args: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        program: Program | None = None,
        backend: str | Backend = "onnxruntime-cpu",
        tokens: int = 32,
        prefill: int | None = None,
        cache: CacheKind = "dynamic",
        to: Precision | None = None,
        accepted: Accepted = None,
    ) -> Decoding:
        """Check that a program with a cache decodes what the model does; see `filch.compare.compare_decode`.

        Args:
            model: a causal language model of transformers.
            args: the tokens, int64 in the shape [sequences, length]; None if they are in `kwargs`.
            kwargs: the keyword arguments of a call.
            program: the program; None exports the model.
            backend: the backend.
            tokens: the number of tokens of each sequence.
            prefill: the number of tokens of the first step; see `compare_decode`.
            cache: the kind of the cache, if the model is exported here.
            to: lowers the program to this precision.
            accepted: reasons why a value may stay without a judgment, by its name (see `Report`).

        Returns:
            the result.

        Raises:
            AssertionError: a value is wrong at some position, or the model itself decodes something else.
        """
        __tracebackhide__ = True
        options: dict[str, Any] = {"program": program, "backend": backend, "tokens": tokens, "prefill": prefill}
        result = compare_decode(model, args, kwargs, cache=cache, to=to, **options)
        return self._judge(result, f"decode on {result.backend}", "decode", accepted)

    def golden(self, name: str, *, tolerance: float | Tolerance | None = None, accepted: Accepted = None) -> Golden:
        """Return the golden dump of a name, to compare a model with.

        `filch.golden("encoder").check(model, x)` calls the model; `with filch.golden("encoder").steal(model):` compares
        the calls in the block. `pytest --filch-update` stores the dump.

        The dump contains the rounding level of each value. A value is close if its difference from the stored one is at
        most twice that level. If one is not, the message says whether the code, the environment or other inputs cause
        the difference.

        Args:
            name: a file name without suffix; each test file has its own folder.
            tolerance: judges all values instead of the rounding levels (see `compare`).
            accepted: reasons why a value may stay without a judgment, by its name (see `Report`).
        """
        if re.fullmatch(r"\w[\w.-]*", name) is None:
            raise CompareError(f"a golden dump has a name like 'encoder' or 'encoder-2', not {name!r}")
        path = self._artifacts.golden / f"{name}.onnx"

        def check_diff(result: DumpDiff) -> None:
            __tracebackhide__ = True
            explained = partial(_explained_golden, name)
            self._judge(result, f"golden:{name}", f"golden-{name}", accepted, explained, f"update: {_UPDATE_HINT}")

        def report_update(message: str) -> None:
            self._artifacts.stored.add(path)
            self._artifacts.record("golden", message)

        # A second test of this run with the same name is compared with the dump that the first one stored.
        update = self._artifacts.update and path not in self._artifacts.stored
        allowed = self._artifacts.allow_less_precise
        return Golden(path, update, tolerance, check_diff, report_update, allow_less_precise=allowed)

    def _judge(
        self,
        result: T,
        backend: str,
        name: str,
        accepted: Accepted,
        explained: Callable[[T], Iterable[str]] = _explained,
        *after: str,
    ) -> T:
        """Record a result of two implementations, calls or runs, and return it.

        Args:
            result: the result.
            backend: what it is called in a table of results.
            name: the name of its files.
            accepted: reasons for what was not judged.
            explained: returns the lines of the message about one that does not pass.
            *after: further lines, below the path of its page.

        Raises:
            AssertionError: it does not pass.
        """
        __tracebackhide__ = True
        result = replace(result, accepted=self._reasons(accepted))
        self._artifacts.record("backend", backend)
        self._record(result)
        page = self._artifacts.write(result, self._artifacts.unique_name(name))
        if not result.passes:
            raise AssertionError(for_terminal("\n".join([*explained(result), "", f"report: {page}", *after])))
        return result

    def _reasons(self, accepted: Accepted) -> dict[str, str]:
        """Return the reasons of one comparison and those of all."""
        return {**self._artifacts.accepted, **(accepted or {})}

    def _list_backends(self, backends: Backends) -> list[str | Backend]:
        """Return the argument `backends` of `check` as a list; by default the test's own backend."""
        if backends is None:
            return [self.backend or _DEFAULT]
        chosen = list(backends) if isinstance(backends, Iterable) and not isinstance(backends, str) else [backends]
        if not chosen:
            raise CompareError("backends is empty: nothing would be compared")
        return chosen

    def _check_backend(self, setup: "_Setup", backend: str | Backend) -> tuple[Report | None, str]:
        """Return the report of one backend, and a message if it failed."""
        name = backend if isinstance(backend, str) else backend.name
        self._artifacts.record("backend", name)
        try:
            report, setup = setup.compare(backend)
        except FilchError as error:
            self._artifacts.record("result", "failed")
            self._artifacts.record("first_divergence", str(error))
            return None, f"{name} could not be compared: {error}"
        if not report.passes and not setup.statistics:  # the page of a failure shows them
            report, setup = replace(setup, statistics=True).compare(backend)
        self._record(report)
        label = self._artifacts.unique_name(re.sub(r"[^\w.-]+", "-", name))
        page = self._artifacts.write(report, label)
        if report.passes:
            return report, ""
        title = f"{report.program} on {report.backend} is not close to {report.reference}"
        lines = [title, report.headline, "", *report.verdict(), "", report.excerpt(), "", f"report: {page}"]
        return report, "\n".join([*lines, self._write_repro(setup, backend, label)])

    def _write_repro(self, setup: "_Setup", backend: str | Backend, label: str) -> str:
        """Write a repro if possible, and return a line about it."""
        if not isinstance(backend, str):
            return "repro: none, as the backend was not given by name"
        try:
            script = setup.write_repro(backend, self._artifacts.folder() / f"{label}-repro")
        except (FilchError, OSError) as error:
            return f"repro: none, as {error}"
        self._artifacts.record("repro", str(script))
        return f"repro: python {script}"

    def _record(self, result: Result) -> None:
        """Record the outcome of a comparison as properties of the test."""
        self._artifacts.record("result", result.outcome)
        if isinstance(result, Report | DumpDiff):
            errors = [row.error for row in result.rows if row.error is not None]
            self._artifacts.record("worst_error", f"{max(errors):.1e}" if errors else "")
        if isinstance(result, DumpDiff) and result.cause:
            self._artifacts.record("cause", result.cause)
        self._artifacts.record("first_divergence", "" if result.passes else _first(result))


@dataclass(frozen=True)
class _Setup:
    """A model's dump and program, and the options with which each backend is compared (see `Checks.check`).

    Attributes:
        dump: the dump of the model, in a temporary folder.
        program: the program to compare with it.
        options: the options of backends that are given by name.
        judged: the tolerance, and whether a lower precision is allowed.
        statistics: whether pages with statistics are written.
        is_exported: whether `check` exported the program: then it may be optimized if a backend can't run it otherwise.
        accepted: see `Result`.
    """

    dump: Path
    program: Program
    options: Mapping[str, Any]
    judged: Mapping[str, Any]
    statistics: bool
    is_exported: bool
    accepted: Mapping[str, str]

    def compare(self, backend: str | Backend) -> tuple[Report, "_Setup"]:
        """Return the report, and the setup with the program that was compared in the end."""
        resolved_backend = get_backend(backend, **self.options) if isinstance(backend, str) else backend
        options: dict[str, Any] = {**self.judged, "backend": resolved_backend, "statistics": self.statistics}
        if self.is_exported:
            report, program = compare_with_fallback(self.dump, self.program, **options)
        else:
            report, program = compare(self.dump, self.program, **options), self.program
        # The path of the dump is a temporary one.
        report = replace(report, reference=EAGER_PYTORCH, accepted=self.accepted)
        return report, replace(self, program=program)

    def write_repro(self, backend: str, folder: Path) -> Path:
        """Write a repro of the comparison on a backend, and return its script."""
        return write_comparison(self.dump, self.program, backend, folder, options=self.options, **self.judged)
