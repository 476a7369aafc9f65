"""Compares what a program computes with what the model did."""

import os

import onnx_ir as ir
import torch

from filch.export import Program, load_program
from filch.export.backends import Backend, Compiled, get_backend
from filch.steal import Records, restore

from ._errors import CompareError
from ._inputs import StolenCall, stolen_calls
from ._judge import Ran, judge
from ._modules import inferred_references, module_rows, result_references
from ._operators import operators_of
from ._origins import Origins
from ._progress import step
from ._references import References
from ._report import ModuleRow, Report, Row, Stage
from ._tolerance import Tolerance

Path = str | os.PathLike[str]


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
    held = reference if isinstance(reference, Records) else restore(reference)
    given = _program(program)
    engine = get_backend(backend) if isinstance(backend, str) else backend
    stolen = stolen_calls(held, given)
    calls = stolen.calls
    step(f"compiling for {engine.name}", 0, len(calls))
    source = References(held, given)
    stages: tuple[Stage, ...] = ("exported", "compiled") if engine.optimizes else ("exported",)
    compiled = [(stage, engine.compile(given, optimize=stage == "compiled")) for stage in stages]
    rows: list[Row] = []
    modules: list[ModuleRow] = []
    operators = []
    undisturbed = True
    for number, call in enumerate(calls):
        step(f"call {call.index}", number, len(calls))
        runs = [_run(engine, stage, made, call) for stage, made in compiled]
        undisturbed = undisturbed and all(
            _identical(run.outputs[name], run.values.get(name)) for run in runs for name in run.outputs
        )
        exported = runs[0]
        seen = list(module_rows(held, given, call, exported.values, tolerance))
        references = {
            **result_references(held, exported.graph, call),
            **source.of(call),
            **inferred_references(held, call, seen),
        }
        for run in runs:
            origins = None if run is exported else Origins(exported.graph, run.graph)
            rows += judge(run, references, origins, tolerance)
        modules += seen
        operators.append(
            operators_of(given, call, [row for row in rows if row.call == call.index and row.stage == "exported"])
        )
    return Report(
        backend=engine.name,
        reference=held.source if held.source != "memory" else "the capture",
        program=str(given.path) if given.path else given.model_type.rpartition(":")[2] or "the program",
        rows=tuple(rows),
        modules=tuple(modules),
        undisturbed=undisturbed,
        notes=(*source.notes, *stolen.notes, *stolen.left_out),
        calls=(len(calls), len(calls) + len(stolen.left_out)),
        operators=tuple(operators),
    )


def _run(engine: Backend, stage: Stage, made: Compiled, call: StolenCall) -> Ran:
    outputs = engine.run(made, call.inputs)
    values = engine.run(made, call.inputs, made.graph.producer)
    return Ran(call.index, stage, made.graph, {**call.inputs, **values}, outputs)


def _program(given: Path | Program | ir.Model) -> Program:
    if isinstance(given, Program):
        return given
    if isinstance(given, ir.Model):
        return Program(given)
    if isinstance(given, str | os.PathLike):
        return load_program(given)
    raise CompareError(f"compare takes a Program or the path of an ONNX file, not {type(given).__name__}")


def _identical(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
