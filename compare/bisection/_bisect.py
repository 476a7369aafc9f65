"""Finds the transformations that are to blame for an error."""

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx_ir as ir

from filch.export import Precision, Program, as_program, fingerprint
from filch.export.backends import Backend, Switch, Switches
from filch.steal import Records, restore

from .._compare import make_engine, time_limit
from ..common._delta_debugging import smallest
from ..common._errors import CompareError
from ..metrics._limits import Limits
from ..metrics._tolerance import Tolerance
from ..precision._precision import is_simulated
from ..references._inputs import captured_calls
from ..results._bisection import BisectReport, Culprit, Step
from ._criterion import Criterion, against_model
from ._journal import Journal
from ._variant_runner import VariantRunner
from ._variants import AnyPass, ProgramVariants, named
from ._versions import versions

_LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "openvino")


def bisect(
    reference: str | os.PathLike[str] | Records,
    program: str | os.PathLike[str] | Program | ir.Model,
    *,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    tolerance: float | Tolerance | None = None,
    lower_precision: bool = False,
    value: str | None = None,
    passes: Sequence[AnyPass] | None = None,
    to: Precision | None = None,
    only: Collection[str] | None = None,
    journal: str | os.PathLike[str] | None = None,
    interpreters: Sequence[str | os.PathLike[str]] = (),
    limit: float | None = None,
) -> BisectReport:
    """Find the smallest set of transformations that has to be left out for an error to go.

    What is tried is what has changed the graph: steps of the backend's optimiser (ONNX Runtime's graph transformers and
    rewrite rules, Inductor's passes and fusions), its settings, the passes that are run before, the nodes that are
    lowered. Every figure is measured by running the program, undisturbed if no `value` is asked for. The set is
    smallest in the sense that the error is there again with any one of its members back.

    Args:
        reference: what the model did, as for `compare`.
        program: as for `compare`; with `passes` or `to`, as it is before these.
        backend: what runs it.
        options: what the backend, given by its name, is to be made with.
        tolerance: how far the outputs may be off, as for `compare`: the error is that they are not close.
        lower_precision: as for `compare`; `to` implies it.
        value: the name of a value of the exported graph to judge instead of the outputs.
        passes: passes to run first, see `optimize`; each that changes the graph can be to blame.
        to: lower the program first, see `lower`; each node that is lowered can be to blame. On ONNX Runtime's CPU
            provider float16 and bfloat16 are simulated, as for `keep_precise`.
        only: names of what is to be tried; None is all that has changed the graph.
        journal: a file to which each run is written when it is over; those that are in it already are not made again.
        interpreters: paths of Pythons with other versions of the backend's library (ONNX Runtime): the report says with
            which of them the error shows. Nothing else is needed there.
        limit: as for `compare`; a run without some transformations that takes longer is no pass.

    Returns:
        the report. Without an error, and if nothing helps, it has no culprits, and says which.

    Raises:
        FilchError: the two sides do not fit, the backend can't run the program, a name in `only` has no effect, what is
            to blame has no effect on the graph, or the journal is of something else.
    """
    held = reference if isinstance(reference, Records) else restore(reference)
    given, engine = as_program(program), make_engine(backend, options)
    stolen = captured_calls(held, given)
    simulate = to is not None and is_simulated(to, engine)
    making = ProgramVariants(given, tuple(passes or ()), to, [call.inputs for call in stolen.calls], simulate)
    limits = Limits(making.made(frozenset())[0].graph, tolerance, lower_precision=lower_precision or to is not None)
    with time_limit(given, limit):
        criterion = against_model(held, given, stolen.calls, limits, value)
        about = _about(making, engine, criterion, options)
        rig = VariantRunner(making, engine, criterion, Journal(None if journal is None else Path(journal), about))
        before = rig.without(())
        if value is not None and before.outcome.problem:
            raise CompareError(f"{value!r} can't be judged on {engine.name}: {before.outcome.problem}")
        report = BisectReport(
            backend=engine.name,
            reference=held.source if held.source != "memory" else "the capture",
            program=str(given.path) if given.path else given.model_type.rpartition(":")[2] or "the program",
            value=value,
            before=before.outcome,
            after=None,
            best=None,
            culprits=(),
            candidates=_candidates(before, only),
            steps=rig.steps,
        )
        if not report.close and report.candidates:
            report = _searched(report, rig, grow=only is None)
        notes = [*stolen.notes, *stolen.left_out, *rig.notes]
        if not isinstance(engine, Switches):
            notes.append(f"backend {engine.name!r} has no steps of its own that could be left out")
        if simulate:
            notes.append(f"{to} was simulated: each result was rounded, as on a GPU")
        if rig.resumed:
            notes.append(f"{rig.resumed} of {len(rig.steps)} runs are from the journal")
        elsewhere = versions([os.fspath(one) for one in interpreters], making.made(frozenset())[0], engine, criterion)
    return replace(report, steps=rig.steps, notes=tuple(notes), versions=tuple(elsewhere))


def _candidates(before: Step, only: Collection[str] | None) -> tuple[Switch, ...]:
    names = [one.name for one in before.switches]
    for name in only or ():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"what has: {', '.join(names) or 'nothing'}"
            raise CompareError(f"leaving out {name!r} has no effect: nothing of that name changed this graph; {hint}")
    return tuple(one for one in before.switches if only is None or one.name in only)


def _searched(report: BisectReport, rig: VariantRunner, *, grow: bool) -> BisectReport:
    candidates = list(report.candidates)
    best = rig.without(candidates)
    while grow and not best.outcome.passes:
        # What was left out may have kept another one from the graph, which now does the same.
        more = [one for one in best.switches if one not in candidates]
        if not more:
            break
        candidates += more
        best = rig.without(candidates)
    report = replace(report, candidates=tuple(candidates), best=best.outcome)
    if not best.outcome.passes:
        return report
    # The last ones are left out first: what only makes room for the culprit, and comes before it, stays.
    half = (len(candidates) + 1) // 2
    blamed = smallest(candidates[::-1], lambda some: rig.without(some).outcome.passes, guess=half)[::-1]
    after = rig.without(blamed)
    culprits = tuple(_culprit(one, rig.without([other for other in blamed if other != one]), after) for one in blamed)
    return replace(report, after=after.outcome, culprits=culprits)


def _culprit(one: Switch, on: Step, off: Step) -> Culprit:
    """What one of them does, all others left out."""
    if one.changes_graph and on.fingerprint == off.fingerprint:
        raise CompareError(
            f"leaving out {one.name!r} has no effect on the graph, though the error is gone without it: "
            "the backend's results vary from run to run"
        )
    with_it, without = on.ops or {}, off.ops or {}
    names = sorted({*with_it, *without})
    more = {name: with_it.get(name, 0) - without.get(name, 0) for name in names}
    return Culprit(
        one.kind,
        one.name,
        on.outcome,
        {name: count for name, count in more.items() if count > 0},
        {name: -count for name, count in more.items() if count < 0},
        (sum(with_it.values()), sum(without.values())),
    )


def _about(
    making: ProgramVariants, engine: Backend, criterion: Criterion, options: Mapping[str, Any] | None
) -> dict[str, str]:
    """What a journal has to be of."""
    told = getattr(engine, "options", dict(options or {}))
    passes = [one.name for one in named(making.passes)]
    return {
        "program": fingerprint(making.program.model),
        "reference_or_tolerance": f"{criterion.identity()} {sorted(criterion.watch)}",
        "backend_or_options": f"{engine.name} {told!r}",
        "list_of_passes_or_precision": f"{passes} {making.to} {making.simulate}",
        "version_of_a_library": ", ".join(filter(None, map(_version, _LIBRARIES))),
    }


def _version(distribution: str) -> str:
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return ""
