"""Compare what a program computes with what the original model computed."""

import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
import onnx_ir as ir

from filch.export import Graph, Program, as_program
from filch.export.backends import Backend, Stage, get_backend, unrolled
from filch.export.backends._limited import limit_backend
from filch.export.common._memory import returning_memory
from filch.export.common._time_limit import TimeLimit, default_limit
from filch.steal import Records, phase, restore

from ._mapped_records import mapped_records
from .alignment._value_map import ValueMap, load_value_map
from .common._errors import CompareError
from .decoding._stepwise import Stepwise
from .engine._coarser_dtypes import coarser_dtype
from .engine._compare_call import CallResult, compare_call
from .engine._interface import UNKNOWN_INTERFACE, interface_problems, unwritten_rows
from .engine._options import CompareOptions
from .engine._prepare import Prepared, prepare
from .engine._value_comparator import largest_effect
from .metrics._tolerance import ToleranceOption, as_tolerance, given_limits
from .references._inputs import CapturedCalls, captured_calls, cast_inputs
from .results._report import BY_MAPPING, Report
from .results._rows import Row

BUFFER = 2**28  # bytes
Path = str | os.PathLike[str]
ProgramLike = Path | Program | Graph | ir.Model | onnx.ModelProto


def compare(
    reference: Path | Records,
    program: ProgramLike,
    *,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    tolerance: ToleranceOption = None,
    lower_precision: bool = False,
    stages: Collection[Stage] | None = None,
    profile: bool = False,
    statistics: bool = False,
    every_node: bool = False,
    repeats: int = 1,
    buffer: int = BUFFER,
    limit: float | None = None,
    mapping: Path | ValueMap | None = None,
) -> Report:
    """Run a program on captured inputs and compare each value of its graph with the original model's.

    Args:
        reference: a capture or dump of the original model, or the path of a dump. Each captured submodule adds
            reference values.
        program: the result of `export`, the path of an ONNX file, an ONNX model, or a graph read from one.
        backend: the backend that runs the program: a name from `filch.export.backends.backend_names()`, or an instance.
        options: keyword arguments of the backend; only for a backend given by name. None is no arguments.
        tolerance: the largest difference that passes. A number is the allowed harmonic error; a `Tolerance` sets each
            limit; `"default"` selects the limits by dtype (float32 1e-5, float16 1e-2, ...). None needs no tolerance
            if the exported program is available, as in the result of `export` or a file saved with its `.pt2`: it is
            also evaluated in float64, and each value is judged by its error relative to the model's own rounding error
            (`Row.float64`). A node whose error rounding does not explain also runs in isolation on its reference
            inputs, which separates its own error from an inherited one (`Row.isolated`). Without the exported program,
            and for the few values that float64 gives no reference for, None is `"default"`.
        lower_precision: accept values whose floating-point type is coarser than the model's, or that are quantized.
            The default tolerance is then that of the coarsest type on the path to the value (8-bit integers: 0.1 of
            the tensor's largest magnitude; 4-bit: 0.5).
        stages: the graphs to run: `exported` (the program unchanged), `compiled` (the graph that the backend
            optimized). None is every stage that the backend has.
        profile: also measure the time of each node, in a run without instrumentation.
        statistics: also compute minimum, maximum, mean, standard deviation and a histogram of each value and its
            reference. This takes about a third longer.
        every_node: run every node in isolation, which also finds errors of a node that are smaller than the
            rounding errors that it inherits, and raises an error if the exported program is missing.
        repeats: how many times to run everything, to separate nondeterminism from errors.
        buffer: how many bytes of values each side may keep in memory, where the backend can return values in parts.
            The values of a single node are kept whatever their size.
        limit: seconds that the backend may take for the program, or for each part of it; compilation may take ten
            times as long. None is 60 plus 60 for each GB of weights; `math.inf` is no limit. Native code that cannot
            be interrupted (a kernel, a compilation) finishes first, then the error is raised; the command line ends
            the process instead.
        mapping: if `reference` is of another implementation than `program`: where its module outputs are in the modules
            of the program, as a `ValueMap` or its TOML file (see `align`). The program runs on the captured inputs, and
            these module outputs are judged, by tolerance: in float64, the program would be compared with itself.

    Returns:
        a `Report` with one row for each value of each stage's graph and each captured call.

    Raises:
        FilchError: a file is invalid, the backend fails, or the reference does not match the program.

    Example:
        >>> import torch
        >>> from filch.compare import compare
        >>> from filch.export import export
        >>> from filch.steal import steal_forward
        >>> model, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
        >>> with steal_forward(model) as capture:
        ...     _ = model(x)
        >>> compare(capture, export(model, (x,))).close
        True
    """
    if not isinstance(reference, Records | str | os.PathLike):
        kind = type(reference).__name__
        raise CompareError(f"reference must be a capture, a dump or the path of a dump, not {kind}")
    limits = given_limits(tolerance)
    records = reference if isinstance(reference, Records) else restore(reference)
    source = "the capture" if records.source == "memory" else records.source
    loaded = as_program(program).snapshot()
    notes: list[str] = []
    if mapping is not None:
        value_map = mapping if isinstance(mapping, ValueMap) else load_value_map(mapping)
        mapped = mapped_records(records, loaded, value_map)
        source += BY_MAPPING
        records, loaded, notes = mapped.capture, mapped.program.snapshot(), [mapped.note]
    resolved_backend = resolve_backend(backend, options)
    calls = captured_calls(records, loaded)
    wanted = _ordered_stages(resolved_backend, resolved_backend.stages if stages is None else stages)
    stepwise = backend if isinstance(backend, Stepwise) else None  # of `compare_decode`
    settings = CompareOptions(
        wanted,
        limits,
        lower_precision,
        profile,
        statistics,
        buffer,
        every_node=every_node,
        repeats=repeats,
        by_tolerance=tolerance is not None,
        on_row=None if stepwise is None else stepwise.positions.add,
        on_references=None if stepwise is None else stepwise.set_references,
    )
    results = []
    with time_limit(loaded, limit), returning_memory(loaded.model, above=buffer):
        judged = loaded
        if "exported" in wanted and stepwise is None:
            judged, bodies = _unrolled(loaded, resolved_backend, calls, lower_precision=lower_precision)
            notes += bodies
        # The backend optimizes `loaded`, with its branches and loops, and runs `judged` node by node.
        prepared = prepare(records, judged, resolved_backend, settings, written=loaded)
        with phase("call", len(calls.calls)) as progress:
            for call in calls.calls:
                progress.next()
                results.append(compare_call(prepared, call))
    report = Report(
        backend=resolved_backend.name,
        reference=source,
        program=str(loaded.path) if loaded.path else loaded.model_type.rpartition(":")[2] or "the program",
        rows=(
            *(row for one in results for row in one.rows),
            *unwritten_rows(loaded, tuple(prepared.compiled)[-1]),  # for the last stage
        ),
        modules=tuple(row for one in results for row in one.modules),
        observer_effect=largest_effect(one.observer_effect for one in results),
        notes=(
            *notes,
            *_notes(prepared, results),
            *([UNKNOWN_INTERFACE] if loaded.is_foreign else []),
            *calls.notes,
            *calls.left_out,
        ),
        calls=(len(calls.calls), len(calls.calls) + len(calls.left_out)),
        failed=_unique(prepared.failed, *(one.failed for one in results)),
        interface=(*interface_problems(loaded, prepared.compiled), *_unique(*(one.exchanged for one in results))),
        operators=tuple(one.operators for one in results),
        outcomes=prepared.outcomes,
        graphs=prepared.graphs,
        options=options or {},
        tolerance=None if limits is None else as_tolerance(limits),
        lower_precision=lower_precision,
    )
    first = report.first_divergence
    if first is None:
        return report
    lower = coarser_dtype(prepared, report.rows, first)
    return replace(report, changed_weights=_changed_weights(judged, first), coarser_dtype=lower)


def _unrolled(
    program: Program, backend: Backend, calls: CapturedCalls, *, lower_precision: bool
) -> tuple[Program, tuple[str, ...]]:
    """Return a program with the nodes of its branches and loops in their place, and why some are not."""
    inputs = [call.inputs for call in calls.calls]
    feeds = [cast_inputs(program.graph, feed) for feed in inputs] if lower_precision else inputs
    judged, notes = unrolled(program, backend, feeds)
    return judged.snapshot(), notes


def _changed_weights(program: Program, first: Row) -> tuple[str, ...]:
    """Return the weights behind the first divergence whose numbers are not the model's; see `Report.changed_weights`.

    They are those that its node reads, also through nodes that compute with constants alone.
    """
    if first.stage != "exported" or first.value not in program.graph.producer:
        return ()
    graph = program.graph
    reads = graph.producer[first.value].reads
    constants = [name for name in reads if name in graph.constant_values]
    cone = graph.cone(constants, ())
    return program.changed_weights(dict.fromkeys([*reads, *(name for node in cone for name in node.reads)]))


def resolve_backend(backend: str | Backend, options: Mapping[str, Any] | None) -> Backend:
    """Return a backend, created from its name and options if need be, whose steps respect `time_limit`."""
    if isinstance(backend, str):
        return limit_backend(get_backend(backend, **(options or {})))
    if options:
        raise CompareError(f"options need a backend given by name, not the instance {backend}")
    return limit_backend(backend)


def time_limit(program: Program, limit: float | None) -> TimeLimit:
    """Return the time limit of the backend steps that run `program`; see `compare`."""
    return TimeLimit(default_limit(program.model) if limit is None else limit)


def _ordered_stages(backend: Backend, stages: Collection[Stage]) -> tuple[Stage, ...]:
    """Return the stages in the order in which they run, then those that the backend lacks, which `prepare` refuses."""
    return (*(one for one in backend.stages if one in stages), *(one for one in stages if one not in backend.stages))


def _notes(prepared: Prepared, results: Sequence[CallResult]) -> tuple[str, ...]:
    """Return the remarks for the reader of the report: about precision, calls, references and compiled graphs."""
    allowed = ["values of a lower precision were allowed"] if prepared.options.lower_precision else []
    compiled = (note for item in prepared.compiled.values() for note in item.notes)
    return (*allowed, *_unique(*(one.notes for one in results)), *prepared.references.notes, *compiled)


def _unique(*texts: Iterable[str]) -> tuple[str, ...]:
    """Return each text once, in the order of first occurrence."""
    return tuple(dict.fromkeys(itertools.chain(*texts)))
