"""Find the transformations that cause an error."""

import contextlib
import difflib
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, cast

from filch.export import Precision, Program, as_program, fingerprint
from filch.export.backends import Backend, Switch, Switches
from filch.steal import NotADumpError, Records, restore

from .._compare import ProgramLike, resolve_backend, time_limit
from .._compare_programs import Inputs, pair_programs
from ..common._delta_debugging import minimize
from ..common._errors import CompareError
from ..metrics._limits import Limits
from ..metrics._tolerance import ToleranceOption, given_limits
from ..models._drawn_inputs import Shapes
from ..precision._precision import is_simulated
from ..references._inputs import captured_calls
from ..results._bisection import BisectReport, Culprit, Step
from ._criterion import Criterion, make_criterion
from ._journal import Journal
from ._variant_runner import VariantRunner, run_versions
from ._variants import AnyPass, ProgramVariants, pass_switches

_LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "openvino")


def bisect(
    reference: ProgramLike | Records,
    program: ProgramLike,
    *,
    inputs: Inputs | None = None,
    seed: int = 0,
    shapes: Shapes | None = None,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    tolerance: ToleranceOption = None,
    lower_precision: bool = False,
    value: str | None = None,
    passes: Sequence[AnyPass] | None = None,
    to: Precision | None = None,
    only: Collection[str] | None = None,
    journal: str | os.PathLike[str] | None = None,
    interpreters: Sequence[str | os.PathLike[str]] = (),
    limit: float | None = None,
) -> BisectReport:
    """Find a smallest set of transformations that has to be disabled for an error to disappear.

    The candidates are the transformations that change the graph: steps of the backend's optimizer (ONNX Runtime's graph
    transformers and rewrite rules, Inductor's passes and fusions), its settings, the passes that run before it, and the
    nodes that are lowered. Every figure is measured by running the program; no intermediate value is read unless
    `value` is given. The set is minimal: the error reappears if any one of its members is enabled.

    Args:
        reference: a capture or dump of the model, as for `compare`; or a program, as for `compare_programs`.
        program: as for `compare`; the program before `passes` and `to` are applied.
        inputs: of two programs: see `compare_programs`.
        seed: likewise.
        shapes: likewise.
        backend: the backend that runs it.
        options: the options of a backend that is given by its name.
        tolerance: as for `compare`; there is an error if the outputs are not close.
        lower_precision: as for `compare`; `to` implies it.
        value: the name of a value of the exported graph to judge instead of the outputs.
        passes: passes to run first, see `optimize`; each that changes the graph is a candidate.
        to: the precision to lower the program to first, see `lower`; each lowered node is a candidate. On ONNX
            Runtime's CPU provider float16 and bfloat16 are simulated, as for `keep_precise`.
        only: names of the candidates; None is every transformation that changes the graph.
        journal: a file to which each run is written; the runs that it holds already are not repeated.
        interpreters: paths of Python interpreters with other versions of the backend's library (ONNX Runtime); the
            report has an outcome for each. They need no other package.
        limit: as for `compare`; a run with transformations disabled that takes longer counts as failed.

    Returns:
        the report. It has no culprits if there is no error, or if disabling all candidates does not remove it.

    Raises:
        FilchError: inputs are given although a dump has them, reference and program do not match, the backend can't run
            the program and no transformation is to blame for that, a name in `only` or a culprit has no effect on the
            graph, or the journal belongs to another bisection.
    """
    resolved_backend = resolve_backend(backend, options)
    drawn: dict[str, Any] = {"inputs": inputs, "seed": seed, "shapes": shapes}
    records, exported, name = _paired(
        reference, program, backend=resolved_backend, lower_precision=lower_precision, limit=limit, **drawn
    )
    captured = captured_calls(records, exported)
    simulate = to is not None and is_simulated(to, resolved_backend)
    variants = ProgramVariants(exported, tuple(passes or ()), to, [call.inputs for call in captured.calls], simulate)
    complete = variants.without(frozenset())[0]
    limits = Limits(complete.graph, given_limits(tolerance), lower_precision=lower_precision or to is not None)
    with time_limit(exported, limit):
        criterion = make_criterion(records, exported, captured.calls, limits, value)
        identity = _identity(variants, resolved_backend, criterion, options)
        saved = Journal(None if journal is None else Path(journal), identity)
        runner = VariantRunner(variants, resolved_backend, criterion, saved)
        before = runner.without(())
        if value is not None and before.outcome.problem:
            raise CompareError(f"{value!r} can't be judged on {resolved_backend.name}: {before.outcome.problem}")
        report = BisectReport(
            backend=resolved_backend.name,
            reference=name,
            program=str(exported.path) if exported.path else exported.model_type.rpartition(":")[2] or "the program",
            value=value,
            before=before.outcome,
            after=None,
            best=None,
            culprits=(),
            candidates=_candidates(before, only),
            steps=runner.steps,
        )
        if not report.close and report.candidates:
            report = search(report, runner, grow=only is None)
        notes = [*captured.notes, *captured.left_out, *runner.notes]
        if not isinstance(resolved_backend, Switches):
            notes.append(f"backend {resolved_backend.name!r} has no transformations that can be disabled")
        if simulate:
            notes.append(f"{to} was simulated: each result was rounded, as on a GPU")
        if runner.resumed:
            notes.append(f"{runner.resumed} of {len(runner.steps)} runs are from the journal")
        versions = tuple(
            run_versions([os.fspath(path) for path in interpreters], complete, resolved_backend, criterion)
        )
    return replace(report, steps=runner.steps, notes=tuple(notes), versions=versions)


def _paired(reference: ProgramLike | Records, program: ProgramLike, **given: Any) -> tuple[Records, Program, str]:
    """Return the records and the program to run, and the name of the reference; see `pair_programs` for two programs.

    Raises:
        CompareError: inputs are given although a dump has them.
    """
    records: Records | None = None
    with contextlib.suppress(NotADumpError):
        if isinstance(reference, Records | str | os.PathLike):
            records = reference if isinstance(reference, Records) else restore(reference)
    if records is not None:
        if given["inputs"] is not None or given["seed"] or given["shapes"]:
            raise CompareError("inputs, seed and shapes are only for two programs: a dump has the inputs")
        return records, as_program(program), records.source if records.source != "memory" else "the capture"
    pair = pair_programs(cast("ProgramLike", reference), program, **given)
    return pair.capture, pair.program, pair.reference


def _candidates(before: Step, only: Collection[str] | None) -> tuple[Switch, ...]:
    """Return the switches of a run that may be disabled; `only` restricts them to some names."""
    names = [switch.name for switch in before.switches]
    for name in only or ():
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"candidates: {', '.join(names) or 'none'}"
            raise CompareError(
                f"disabling {name!r} has no effect: no transformation of that name changed this graph; {hint}"
            )
    return tuple(switch for switch in before.switches if only is None or switch.name in only)


class Runner(Protocol):
    """Runs something with different sets of transformations disabled."""

    def without(self, off: Collection[Switch]) -> Step:
        """Run it with some transformations disabled; the same run is not repeated."""
        ...


def search(report: BisectReport, runner: Runner, *, grow: bool) -> BisectReport:
    """Return the report with its culprits; `grow` adds switches that change the graph only if others are disabled."""
    candidates = _named_in_failure(runner) or list(report.candidates)
    best = runner.without(candidates)
    while grow and not best.outcome.passes:
        # With some transformations disabled, others may change the graph instead, with the same error.
        more = [switch for switch in best.switches if switch not in candidates]
        if not more:
            break
        candidates += more
        best = runner.without(candidates)
    report = replace(report, candidates=tuple(candidates), best=best.outcome)
    if not best.outcome.passes and not best.outcome.problem:
        return report
    # Kinds by themselves first, the last one first: without all of them there may be other errors.
    kinds = dict.fromkeys(switch.kind for switch in reversed(candidates))
    groups = (*([switch for switch in candidates if switch.kind == kind] for kind in kinds), candidates)
    tried = groups if report.before.problem else (_dispensable(group, runner) for group in groups)
    candidates = next((group for group in tried if runner.without(group).outcome.passes), [])
    if not candidates:
        return report
    # Try the last ones first, so that a transformation that only prepares the graph for the culprit stays enabled.
    half = (len(candidates) + 1) // 2
    causes = minimize(candidates[::-1], lambda subset: runner.without(subset).outcome.passes, guess=half)[::-1]
    after = runner.without(causes)
    culprits = tuple(
        _culprit(switch, runner.without([other for other in causes if other != switch]), after) for switch in causes
    )
    return replace(report, after=after.outcome, culprits=culprits)


def _dispensable(switches: list[Switch], runner: Runner) -> list[Switch]:
    """Return those of some switches without which the backend can still compile and run the program."""
    if not switches or not runner.without(switches).outcome.problem:
        return switches
    half = len(switches) // 2
    halves = [_dispensable(part, runner) for part in (switches[:half], switches[half:])] if half else [[]]
    both = [switch for part in halves for switch in part]
    return both if not runner.without(both).outcome.problem else max(halves, key=len)


def _named_in_failure(runner: Runner) -> list[Switch]:
    """Return the switches that the backend names when it fails, without which it does not; none if others are needed.

    Other ones may prepare the graph for them, or remove what they change.
    """
    step, named = runner.without(()), list[Switch]()
    while not step.outcome.passes:
        more = [switch for switch in step.switches if switch not in named and _names(step.outcome.problem, switch)]
        if not more:
            return []
        named += more
        step = runner.without(named)
    return named


def _names(problem: str, switch: Switch) -> bool:
    """Return whether a message has the name of a switch, with or without the level at its end (`GeluFusionL1`)."""
    name = re.escape(re.sub(r"L\d$", "", switch.name))
    return re.search(rf"(?<![A-Za-z]){name}(L\d)?(?![A-Za-z\d])", problem) is not None


def _culprit(switch: Switch, enabled: Step, disabled: Step) -> Culprit:
    """Return the effect of one culprit, from the runs with it and without it; all other culprits are disabled."""
    if switch.changes_graph and enabled.fingerprint == disabled.fingerprint:
        raise CompareError(
            f"disabling {switch.name!r} has no effect on the graph, but the error disappears without it: "
            "the backend's results vary from run to run"
        )
    # A graph that the backend can't compile has no operators to compare with.
    ops_enabled, ops_disabled = Counter(enabled.ops or disabled.ops), Counter(disabled.ops or enabled.ops)
    return Culprit(
        switch.kind,
        switch.name,
        enabled.outcome,
        appears=dict(sorted((ops_enabled - ops_disabled).items())),
        disappears=dict(sorted((ops_disabled - ops_enabled).items())),
        nodes=(ops_enabled.total(), ops_disabled.total()),
    )


def _identity(
    variants: ProgramVariants, backend: Backend, criterion: Criterion, options: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the properties that a journal has to share with this bisection, by names that its error message shows."""
    used = getattr(backend, "options", dict(options or {}))
    passes = [switch.name for switch in pass_switches(variants.passes)]
    return {
        "program": fingerprint(variants.program.model),
        "reference_or_tolerance": f"{criterion.identity()} {sorted(criterion.watch)}",
        "backend_or_options": f"{backend.name} {used!r}",
        "list_of_passes_or_precision": f"{passes} {variants.to} {variants.simulate}",
        "version_of_a_library": ", ".join(filter(None, map(_version, _LIBRARIES))),
    }


def _version(distribution: str) -> str:
    """Return the name and version of an installed package; `""` if it is not installed."""
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return ""
