"""Compares what a program computes with what the model did."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import onnx_ir as ir

from filch.export import BackendError, Program, load_program
from filch.export.backends import Backend, Compiled, Stage, get_backend
from filch.steal import Records, restore

from ._errors import CompareError
from ._inputs import StolenCall, cast_inputs, cast_notes, stolen_calls
from ._judge import Ran, judge, limits_of, worst_effect
from ._lowered import count_clipped, given_references, stand_ins
from ._metrics import Difference
from ._modules import inferred_references, module_rows, result_references
from ._operators import operators_of
from ._origins import Origins
from ._progress import step
from ._references import References, in_pairs, stolen_tensors
from ._report import ModuleRow, Operator, Report, Row
from ._tolerance import Tolerance

Path = str | os.PathLike[str]
T = TypeVar("T")


def compare(
    reference: Path | Records,
    program: Path | Program | ir.Model,
    *,
    backend: str | Backend = "onnxruntime-cpu",
    tolerance: float | Tolerance | None = None,
    lower_precision: bool = False,
) -> Report:
    """Run `program` on what the stolen model was given, and hold every value against what the model had.

    Args:
        reference: a capture or dump of the model itself, with as many of its submodules as one likes; or a dump's path.
        program: what `export` returned, or any ONNX file.
        backend: what runs it: one of `filch.export.backends.backend_names()`, or a backend itself.
        tolerance: how far values may be apart: None is by dtype (float32 1e-5, float16 1e-2 …), a number is the
            harmonic error allowed, a `Tolerance` is both limits.
        lower_precision: let values be of a coarser floating-point type than the model's, or quantised: the numbers are
            compared, and the default tolerance is that of the coarsest type on the way (of 8-bit integers, 0.1 of the
            tensor's largest number, of 4-bit ones half of it).

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
    given = as_program(program)
    engine = get_backend(backend) if isinstance(backend, str) else backend
    stolen = stolen_calls(held, given)
    comparison = _Comparison(held, given, engine, tolerance, lower_precision=lower_precision)
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
        effect=worst_effect(one.effect for one in found),
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
    effect: Difference | None


class _Comparison:
    """A program on a backend, ready for one call after the other."""

    def __init__(
        self,
        held: Records,
        given: Program,
        engine: Backend,
        tolerance: float | Tolerance | None,
        *,
        lower_precision: bool,
    ) -> None:
        self._lower_precision = lower_precision
        self._held = held
        self._given = given
        self._engine = engine
        self._tolerance = tolerance
        self._references = References(held, given, lower_precision=lower_precision)
        self.failed: list[str] = []
        self._cast: dict[str, None] = {}
        self._made: dict[Stage, Compiled] = {}
        for stage in engine.stages:
            made = self._tried(partial(engine.compile, given, optimize=stage == "compiled"), needed=not self._made)
            if made is not None:
                self._made[stage] = made

    @property
    def notes(self) -> list[str]:
        """What came up on the way."""
        return [*self._references.notes, *self._cast]

    def of(self, call: StolenCall) -> _Found:
        """Run the program on what one call was given, and judge every value."""
        exported = self._given.graph
        self._count_results(call, len(exported.outputs))
        runs: list[Ran] = []
        for stage, made in self._made.items():
            ran = self._tried(partial(self._run, stage, made, call), needed=not runs)
            runs += [] if ran is None else [ran]
        known = {**result_references(self._held, exported, call), **self._references.of(call)}
        if self._lower_precision:
            known = given_references(self._given, call) | known
            runs = [replace(ran, same={**stand_ins(ran, self._given, known), **ran.same}) for ran in runs]
        values = {runs[0].same.get(name, name): tensor for name, tensor in runs[0].values.items()}
        limits = limits_of(
            exported,
            {name: item.tensor for name, item in known.items()} | values | dict(runs[0].values),
            self._tolerance,
            lower_precision=self._lower_precision,
        )
        modules = list(
            module_rows(self._held, self._given, call, values, limits, lower_precision=self._lower_precision)
        )
        references = {**known, **inferred_references(self._held, call, modules)}
        rows: list[Row] = []
        for ran in runs:
            origins = Origins(exported, self._made["compiled"]) if ran.stage == "compiled" else None
            judged = judge(ran, references, origins, limits)
            rows += count_clipped(judged, ran, self._given, references) if self._lower_precision else judged
        return _Found(rows, modules, operators_of(self._given, call, rows), worst_effect(ran.effect for ran in runs))

    def _count_results(self, call: StolenCall, count: int) -> None:
        _, given = stolen_tensors(self._held, call.keys["", 0])
        if len(given) != count:
            self.failed.append(f"the model gives {len(given)} tensors, the graph has {count} outputs")

    def _run(self, stage: Stage, made: Compiled, call: StolenCall) -> Ran:
        inputs = call.inputs
        if self._lower_precision:
            inputs = cast_inputs(made.graph, call.inputs)
            self._cast |= dict.fromkeys(cast_notes(made.graph, call.inputs))
        outputs = self._engine.run(made, inputs)
        values = {**inputs, **self._engine.run(made, inputs, made.graph.producer)}
        values, outputs = ({name: in_pairs(tensor) for name, tensor in held.items()} for held in (values, outputs))
        return Ran(call.index, stage, made.graph, values, outputs, made.same, self._lower_precision)

    def _tried(self, run: Callable[[], T], *, needed: bool) -> T | None:
        """What a stage gives; if the backend refuses one of two, the other is judged all the same."""
        try:
            return run()
        except BackendError as error:
            if needed:
                raise
            self.failed.append(str(error))
            return None


def as_program(given: Path | Program | ir.Model) -> Program:
    if isinstance(given, Program):
        return given
    if isinstance(given, ir.Model):
        return Program(given)
    if isinstance(given, str | os.PathLike):
        return load_program(given)
    raise CompareError(f"compare takes a Program or the path of an ONNX file, not {type(given).__name__}")
