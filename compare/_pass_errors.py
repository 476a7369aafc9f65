"""Compares a program with what the model did before all passes and after each, and says which one does harm."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from filch.export import Graph, Program, fingerprint
from filch.export.backends import Backend, Stage
from filch.steal import FilchError, Records, restore

from ._compare import compare, make_engine
from .common._errors import CompareError
from .metrics._tolerance import Tolerance
from .results._passes import PassErrors, PassRow, row_after
from .results._report import Report

_AS_IT_STANDS: tuple[Stage, ...] = ("exported",)
_COARSE = re.compile(r"(b?float(16|8|4)|u?int(8|4|2))(?!\d).*")


class CompareInstrument:
    """Runs the program before all passes and after each on what the stolen model was given (`PassContext.instrument`).

    Each node runs by itself, as it stands after the pass, so that no optimisation of the backend's is taken for the
    pass's. After a pass that changes nothing, nothing is run.

    Args:
        dump: a capture or dump of the model, with as many of its submodules as one likes; or a dump's path.
        backend: what runs the program. The default also runs what ONNX Runtime's own optimisations make, which the
            `reference` backend does not know.
        options: what the backend, given by its name, is to be made with.
        tolerance: see `compare`.
        lower_precision: see `compare`; None is from the first pass on that makes values of a lower precision.
        limit: see `compare`.
        print_stdout: print the table when all passes are over, or one has failed.

    Raises:
        FilchError: there is no such backend, or what it is to run is not the ONNX graph.
    """

    def __init__(
        self,
        dump: str | os.PathLike[str] | Records,
        *,
        backend: str | Backend = "onnxruntime-cpu",
        options: Mapping[str, Any] | None = None,
        tolerance: float | Tolerance | None = None,
        lower_precision: bool | None = None,
        limit: float | None = None,
        print_stdout: bool = False,
    ) -> None:
        self._held = dump if isinstance(dump, Records) else restore(dump)
        self._engine = make_engine(backend, options)
        if "exported" not in self._engine.stages:
            raise CompareError(f"backend {self._engine.name!r} can't run a graph as it stands, so passes are not seen")
        self._tolerance, self._limit = tolerance, limit
        self._asked, self._print = lower_precision, print_stdout
        self._rows: list[PassRow] = []
        self._seconds: float | None = None
        self._seen = ""
        self._types: frozenset[str | None] = frozenset()

    @property
    def errors(self) -> tuple[PassRow, ...]:
        """A row for the program as it was given, and one for each pass of the latest run."""
        return tuple(self._rows)

    @property
    def culprit(self) -> PassRow | None:
        """The first pass after which a value is wrong that was not before, or nothing can be judged; None if none."""
        return self._found.culprit

    @property
    def close(self) -> bool:
        """Whether after each pass all is as it should be, as far as it could be judged, the results always."""
        return self._found.close

    def before_all_passes(self, program: Program) -> None:
        """Judge the program as it is given.

        Raises:
            FilchError: the dump and the program do not fit together.
        """
        self._rows, self._seconds, self._seen = [], None, ""
        self._types = _types(program.graph)
        self._add("Origin", program)

    def pass_took(self, _: str, seconds: float) -> None:
        """Note it for the row."""
        self._seconds = seconds

    def after_pass(self, name: str, program: Program) -> None:
        """Judge what the pass made."""
        self._add(name, program)

    def pass_failed(self, name: str, program: Program, error: Exception) -> None:
        """Note it as a row."""
        text = next(iter(str(error).splitlines()), "")
        failure = f"it raised {type(error).__name__}: {text}"
        self._rows.append(PassRow(len(self._rows), name, len(program.graph.nodes), failure=failure))
        self.after_all_passes(program)

    def after_all_passes(self, _: Program) -> None:
        """Print the table, if that is asked for."""
        if self._print:
            sys.stdout.write(f"{self}\n")

    def to_json(self) -> str:
        """The rows as JSON."""
        return self._found.to_json()

    def __str__(self) -> str:
        return str(self._found)

    @property
    def _found(self) -> PassErrors:
        return PassErrors(self.errors)

    def _add(self, name: str, program: Program) -> None:
        graph, seen = program.graph, fingerprint(program.model)
        lower = self._is_lower(graph) if self._asked is None else self._asked
        row = PassRow(len(self._rows), name, len(graph.nodes), seconds=self._seconds, lower_precision=lower)
        if self._rows and seen == self._seen:
            report = self._rows[-1].report
        else:
            report, failure = self._compared(program, lower_precision=lower)
            row = replace(row, failure=failure)
        self._seen = seen
        self._rows.append(row_after(self._rows, row, report, graph))

    def _is_lower(self, graph: Graph) -> bool:
        """Whether this pass or one before has brought in a coarser type than the program was given with."""
        new = _types(graph) - self._types
        was = bool(self._rows) and self._rows[-1].lower_precision
        return was or any(kind is not None and _COARSE.fullmatch(kind) for kind in new)

    def _compared(self, program: Program, *, lower_precision: bool) -> tuple[Report | None, str]:
        try:
            report = compare(
                self._held,
                program,
                backend=self._engine,
                tolerance=self._tolerance,
                lower_precision=lower_precision,
                stages=_AS_IT_STANDS,
                limit=self._limit,
            )
        except FilchError as error:
            if not self._rows:
                raise
            return None, str(error)
        return report, ""


def _types(graph: Graph) -> frozenset[str | None]:
    return frozenset(value.dtype for value in graph.values.values())
