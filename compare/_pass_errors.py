"""Compare a program with its reference before all passes and after each, to find the pass that adds an error."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from filch.export import Graph, Program, fingerprint
from filch.export.backends import Backend, Stage
from filch.steal import FilchError, Records, restore

from ._compare import compare, resolve_backend
from .common._errors import CompareError
from .metrics._tolerance import ToleranceOption
from .results._passes import PassErrors, PassRow, pass_row
from .results._report import Report

_EXPORTED_ONLY: tuple[Stage, ...] = ("exported",)
# Floating-point dtypes of 16 bits or fewer, such as `float8e4m3fn`, and integers of 8 or fewer.
_COARSE = re.compile(r"(b?float(16|8|4)|u?int(8|4|2))(?!\d).*")


class CompareInstrument:
    """Compare the program with a capture before all passes and after each (for `PassContext.instrument`).

    The backend runs the program node by node, without its own optimizations, which would be mistaken for the pass's.
    After a pass that changes nothing, nothing is run.

    Args:
        dump: a capture or dump of the model, or the path of a dump.
        backend: the backend that runs the program. The default also supports ONNX Runtime's own fused operators, which
            the `reference` backend does not.
        options: keyword arguments of the backend; only for a backend given by name.
        tolerance: see `compare`.
        lower_precision: see `compare`. None allows it from the first pass that lowers the precision of a value.
        limit: see `compare`.
        print_stdout: print the table after the last pass, or after one that fails.

    Raises:
        FilchError: the backend does not exist, or cannot run the exported graph.
    """

    def __init__(
        self,
        dump: str | os.PathLike[str] | Records,
        *,
        backend: str | Backend = "onnxruntime-cpu",
        options: Mapping[str, Any] | None = None,
        tolerance: ToleranceOption = None,
        lower_precision: bool | None = None,
        limit: float | None = None,
        print_stdout: bool = False,
    ) -> None:
        self._records = dump if isinstance(dump, Records) else restore(dump)
        self._backend = resolve_backend(backend, options)
        if "exported" not in self._backend.stages:
            raise CompareError(
                f"backend {self._backend.name!r} cannot run exported graphs, so passes cannot be compared"
            )
        self._tolerance: ToleranceOption = tolerance
        self._limit = limit
        self._lower_precision, self._print = lower_precision, print_stdout
        self._rows: list[PassRow] = []
        self._seconds: float | None = None
        self._fingerprint = ""
        self._types: frozenset[str | None] = frozenset()

    @property
    def errors(self) -> tuple[PassRow, ...]:
        """One row for the initial program, and one for each pass of the latest run."""
        return tuple(self._rows)

    @property
    def culprit(self) -> PassRow | None:
        """The first pass that makes a value wrong, or after which nothing can be judged; None if there is none."""
        return self.result.culprit

    @property
    def close(self) -> bool:
        """Whether after each pass every judged value is within tolerance, and every output was judged."""
        return self.result.close

    def before_all_passes(self, program: Program) -> None:
        """Compare the initial program.

        Raises:
            FilchError: the dump does not match the program.
        """
        self._rows, self._seconds, self._fingerprint = [], None, ""
        self._types = _types(program.graph)
        self._add("Origin", program)

    def pass_took(self, _: str, seconds: float) -> None:
        """Record the time of the pass for its row."""
        self._seconds = seconds

    def after_pass(self, name: str, program: Program) -> None:
        """Compare the program after a pass."""
        self._add(name, program)

    def pass_failed(self, name: str, program: Program, error: Exception) -> None:
        """Add a row with the error of the pass."""
        text = next(iter(str(error).splitlines()), "")
        failure = f"it raised {type(error).__name__}: {text}"
        self._rows.append(PassRow(len(self._rows), name, len(program.graph.nodes), failure=failure))
        self.after_all_passes(program)

    def after_all_passes(self, _: Program) -> None:
        """Print the table if `print_stdout` is set."""
        if self._print:
            sys.stdout.write(f"{self}\n")

    def to_json(self) -> str:
        """The rows as JSON."""
        return self.result.to_json()

    def __str__(self) -> str:
        return str(self.result)

    @property
    def result(self) -> PassErrors:
        """The rows with their outcome."""
        return PassErrors(self.errors)

    def _add(self, name: str, program: Program) -> None:
        """Append the row of a pass; an unchanged program has the report of the row before it."""
        graph, current = program.graph, fingerprint(program.model)
        lower = self._is_lower(graph) if self._lower_precision is None else self._lower_precision
        is_unchanged = bool(self._rows) and current == self._fingerprint
        unchanged = (self._rows[-1].report, "") if is_unchanged else None
        report, failure = unchanged or self._compare(program, lower_precision=lower)
        self._fingerprint = current
        known = {"seconds": self._seconds, "lower_precision": lower}
        self._rows.append(pass_row(self._rows, name, graph, report, failure, **known))

    def _is_lower(self, graph: Graph) -> bool:
        """Return whether this pass or an earlier one introduced a coarser type than the initial program has."""
        new = _types(graph) - self._types
        already_lower = bool(self._rows) and self._rows[-1].lower_precision
        return already_lower or any(kind is not None and _COARSE.fullmatch(kind) for kind in new)

    def _compare(self, program: Program, *, lower_precision: bool) -> tuple[Report | None, str]:
        """Return the report of a program, and why there is none; only the initial program may not fail."""
        try:
            report = compare(
                self._records,
                program,
                backend=self._backend,
                tolerance=self._tolerance,
                lower_precision=lower_precision,
                stages=_EXPORTED_ONLY,
                limit=self._limit,
            )
        except FilchError as error:
            if not self._rows:
                raise
            return None, str(error)
        return report, ""


def _types(graph: Graph) -> frozenset[str | None]:
    """Return the dtypes of all values; None is among them if one is not known."""
    return frozenset(value.dtype for value in graph.values.values())
