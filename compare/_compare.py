"""Compares what a program computes with what the model did."""

import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import onnx
import onnx_ir as ir

from filch.export import Graph, Program, TimeLimit, as_program, default_limit
from filch.export.backends import Backend, Stage, get_backend, limit_backend
from filch.steal import Records, restore

from .common._errors import CompareError
from .common._progress import step
from .engine._compare_call import CallResult, compare_call
from .engine._interface import UNKNOWN, interface_problems
from .engine._options import CompareOptions
from .engine._prepare import Prepared, prepare
from .engine._value_comparator import largest_effect
from .metrics._tolerance import Tolerance, as_pair
from .references._inputs import captured_calls
from .results._report import Report

BUFFER = 2**28
Path = str | os.PathLike[str]
ProgramLike = Path | Program | Graph | ir.Model | onnx.ModelProto


def compare(
    reference: Path | Records,
    program: ProgramLike,
    *,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    tolerance: float | Tolerance | None = None,
    lower_precision: bool = False,
    stages: Collection[Stage] | None = None,
    profile: bool = False,
    statistics: bool = False,
    truth: Literal["float64"] | None = None,
    repeats: int = 1,
    buffer: int = BUFFER,
    limit: float | None = None,
) -> Report:
    """Run `program` on what the stolen model was given, and hold every value against what the model had.

    Values are compared as they come and then let go, where the backend can show them so.

    Args:
        reference: a capture or dump of the model itself, with as many of its submodules as one likes; or a dump's path.
        program: what `export` returned, the path of any ONNX file, an ONNX model, or a graph that was read from one.
        backend: what runs it: one of `filch.export.backends.backend_names()`, or a backend itself.
        options: what the backend, given by its name, is to be made with.
        tolerance: how far values may be apart: None is by dtype (float32 1e-5, float16 1e-2 …), a number is the
            harmonic error allowed, a `Tolerance` is both limits.
        lower_precision: let values be of a coarser floating-point type than the model's, or quantised: the numbers are
            compared, and the default tolerance is that of the coarsest type on the way (of 8-bit integers, 0.1 of the
            tensor's largest number, of 4-bit ones half of it).
        stages: which graphs are run: `exported` (the program as it stands), `compiled` (what the backend made of it);
            None is all that the backend has.
        profile: measure how long each node takes, too, in an undisturbed run.
        statistics: say what each value and its reference are like, too: least, largest, mean, deviation, a histogram of
            both. A comparison takes about a third longer with it.
        truth: `float64` runs the exported program in float64, too, and judges each value by how much further it is from
            that than the model's own is: no tolerance has to be guessed (`Row.float64`). Each node is also run in
            isolation, on its reference inputs, to tell an error from one that is inherited (`Row.isolated`).
        repeats: how often everything is run: what changes from run to run is told from what is wrong.
        buffer: bytes of values that may be held on either side, where the backend can show them in parts; a node's own
            are held however large.
        limit: seconds that the backend may take to run the program, or the next part of it; ten times as long to
            compile it. None is 60, and 60 more for each GB of weights; `math.inf` is no limit. What takes longer is
            stopped and reported as an error. Native code that can't be stopped (a kernel, a compilation) ends by
            itself: the error is raised then. The command line ends the process.

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
    engine = make_engine(backend, options)
    stolen = captured_calls(held, given)
    wanted = _in_order(engine, engine.stages if stages is None else stages)
    how = CompareOptions(wanted, tolerance, lower_precision, profile, statistics, buffer, truth=truth, repeats=repeats)
    found = []
    with time_limit(given, limit):
        prepared = prepare(held, given, engine, how)
        for number, call in enumerate(stolen.calls):
            step(f"call {call.index}", number, len(stolen.calls))
            found.append(compare_call(prepared, call))
    return Report(
        backend=engine.name,
        reference=held.source if held.source != "memory" else "the capture",
        program=str(given.path) if given.path else given.model_type.rpartition(":")[2] or "the program",
        rows=tuple(row for one in found for row in one.rows),
        modules=tuple(row for one in found for row in one.modules),
        observer_effect=largest_effect(one.observer_effect for one in found),
        notes=(*_notes(prepared, found), *([UNKNOWN] if given.is_foreign else []), *stolen.notes, *stolen.left_out),
        calls=(len(stolen.calls), len(stolen.calls) + len(stolen.left_out)),
        failed=_unique(prepared.failed, *(one.failed for one in found)),
        interface=(*interface_problems(given, prepared.compiled), *_unique(*(one.exchanged for one in found))),
        operators=tuple(one.operators for one in found),
        outcomes=prepared.outcomes,
        graphs=prepared.graphs,
        options=options or {},
        tolerance=None if tolerance is None else as_pair(tolerance),
        lower_precision=lower_precision,
    )


def make_engine(backend: str | Backend, options: Mapping[str, Any] | None) -> Backend:
    """A backend by its name and options, or as it was given; its steps are limited in time (see `time_limit`)."""
    if isinstance(backend, str):
        return limit_backend(get_backend(backend, **(options or {})))
    if options:
        raise CompareError(f"options are for a backend that is given by its name; this one is made already: {backend}")
    return limit_backend(backend)


def time_limit(program: Program, limit: float | None) -> TimeLimit:
    """What limits the steps of backends that run `program`; see `compare`."""
    return TimeLimit(default_limit(program.model) if limit is None else limit)


def _in_order(engine: Backend, stages: Collection[Stage]) -> tuple[Stage, ...]:
    """The stages in the order in which they run, and after them those that the backend does not have."""
    return (*(one for one in engine.stages if one in stages), *(one for one in stages if one not in engine.stages))


def _notes(prepared: Prepared, found: Sequence[CallResult]) -> tuple[str, ...]:
    allowed = ["values of a lower precision were allowed"] if prepared.options.lower_precision else []
    compiled = (note for made in prepared.compiled.values() for note in made.notes)
    return (*allowed, *_unique(*(one.notes for one in found)), *prepared.references.notes, *compiled)


def _unique(*texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in the order of their first occurrences."""
    return tuple(dict.fromkeys(itertools.chain(*texts)))
