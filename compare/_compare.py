"""Compares what a program computes with what the model did."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import onnx_ir as ir

from filch.export import BackendError, Program, load_program
from filch.export.backends import Backend, Compiled, get_backend
from filch.steal import Records, restore

from ._errors import CompareError
from ._inputs import StolenCall, stolen_calls
from ._judge import Ran, judge, limits_of
from ._modules import inferred_references, module_rows, result_references
from ._operators import operators_of
from ._origins import Origins
from ._progress import step
from ._references import References, in_pairs, stolen_tensors
from ._report import ModuleRow, Operator, Report, Row, Stage
from ._tolerance import Tolerance

Path = str | os.PathLike[str]
T = TypeVar("T")


def compare(
    reference: Path | Records,
    program: Path | Program | ir.Model,
    *,
    backend: str | Backend = "onnxruntime-cpu",
    tolerance: float | Tolerance | None = None,
) -> Report:
    """Run `program` on what the stolen model was given, and hold every value against what the model had.

    Args:
        reference: a capture or dump of the model itself, with as many of its submodules as one likes; or a dump's path.
        program: what `export` returned, or any ONNX file.
        backend: what runs it: one of `filch.export.backends.backend_names()`, or a backend itself.
        tolerance: how far values may be apart: None is by dtype (float32 1e-5, float16 1e-2 …), a number is the
            harmonic error allowed, a `Tolerance` is both limits.

    Returns:
        the report: rows for each value of the exported graph and of the graph that the backend made of it, for each
        call of the model.

    Raises:
        FilchError: the files, the backend, or the two sides do not fit; in one sentence.
    """
    if not isinstance(reference, Records | str | os.PathLike):
        kind = type(reference).__name__
        raise CompareError(f"the reference comes first: a capture, a dump or its path, not a {kind}")
    held = reference if isinstance(reference, Records) else restore(reference)
    given = _program(program)
    engine = get_backend(backend) if isinstance(backend, str) else backend
    stolen = stolen_calls(held, given)
    comparison = _Comparison(held, given, engine, tolerance)
    found = []
    for number, call in enumerate(stolen.calls):
        step(f"call {call.index}", number, len(stolen.calls))
        found.append(comparison.of(call))
    return Report(
        backend=engine.name,
        reference=held.source if held.source != "memory" else "the capture",
        program=str(given.path) if given.path else given.model_type.rpartition(":")[2] or "the program",
        rows=tuple(row for one in found for row in one.rows),
        modules=tuple(row for one in found for row in one.modules),
        undisturbed=all(one.undisturbed for one in found),
        notes=(*comparison.notes, *stolen.notes, *stolen.left_out),
        calls=(len(stolen.calls), len(stolen.calls) + len(stolen.left_out)),
        failed=tuple(dict.fromkeys(comparison.failed)),
        operators=tuple(one.operators for one in found),
    )


@dataclass(frozen=True)
class _Found:
    """What there is to say of one call."""

    rows: list[Row]
    modules: list[ModuleRow]
    operators: tuple[Operator, ...]
    undisturbed: bool


class _Comparison:
    """A program on a backend, ready for one call after the other."""

    def __init__(self, held: Records, given: Program, engine: Backend, tolerance: float | Tolerance | None) -> None:
        self._held = held
        self._given = given
        self._engine = engine
        self._tolerance = tolerance
        self._references = References(held, given)
        self.failed: list[str] = []
        self._exported = engine.compile(given, optimize=False)
        self._compiled = self._or_failed(lambda: engine.compile(given, optimize=True)) if engine.optimizes else None

    @property
    def notes(self) -> list[str]:
        """What came up on the way."""
        return self._references.notes

    def of(self, call: StolenCall) -> _Found:
        """Run the program on what one call was given, and judge every value."""
        exported = self._run("exported", self._exported, call)
        self._count_results(call, len(exported.graph.outputs))
        limits = limits_of(exported, self._tolerance)
        modules = list(module_rows(self._held, self._given, call, exported.values, limits))
        references = {
            **result_references(self._held, exported.graph, call),
            **self._references.of(call),
            **inferred_references(self._held, call, modules),
        }
        rows = list(judge(exported, references, None, limits))
        operators = operators_of(self._given, call, rows)
        undisturbed = exported.undisturbed
        made = self._compiled
        if made is not None and (ran := self._or_failed(lambda: self._run("compiled", made, call))) is not None:
            rows += judge(ran, references, Origins(exported.graph, ran.graph), limits)
            undisturbed = undisturbed and ran.undisturbed
        return _Found(rows, modules, operators, undisturbed)

    def _count_results(self, call: StolenCall, count: int) -> None:
        _, given = stolen_tensors(self._held, call.keys["", 0])
        if len(given) != count:
            self.failed.append(f"the model gives {len(given)} tensors, the graph has {count} outputs")

    def _run(self, stage: Stage, made: Compiled, call: StolenCall) -> Ran:
        outputs = self._engine.run(made, call.inputs)
        values = {**call.inputs, **self._engine.run(made, call.inputs, made.graph.producer)}
        paired = [{name: in_pairs(tensor) for name, tensor in held.items()} for held in (values, outputs)]
        return Ran(call.index, stage, made.graph, *paired)

    def _or_failed(self, run: Callable[[], T]) -> T | None:
        """What the backend makes of the optimised graph; if it refuses, the exported one is judged all the same."""
        try:
            return run()
        except BackendError as error:
            self.failed.append(str(error))
            return None


def _program(given: Path | Program | ir.Model) -> Program:
    if isinstance(given, Program):
        return given
    if isinstance(given, ir.Model):
        return Program(given)
    if isinstance(given, str | os.PathLike):
        return load_program(given)
    raise CompareError(f"compare takes a Program or the path of an ONNX file, not {type(given).__name__}")
