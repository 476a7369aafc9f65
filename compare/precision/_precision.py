"""Find a minimal list of nodes to keep in float32 for a program of lower precision to meet a goal."""

import os
from collections.abc import Mapping, Sequence
from functools import partial

import onnx_ir as ir
import torch

from filch.export import BackendError, Precision, Program, as_program
from filch.export.backends import Backend
from filch.export.lowering._lower import Lowering
from filch.steal import Records, phase, restore

from .._compare import resolve_backend, time_limit
from ..common._delta_debugging import minimize
from ..metrics._tolerance import Tolerance
from ..references._inputs import captured_calls
from ..results._precision import Goal, PrecisionReport
from ._sensitivity import measure_alone, measure_isolated
from ._trial import Trial, expected_outputs

_MEASURED = 32  # nodes are lowered alone; the others are ordered by the error of their own results
_SIMULATED = (
    "{} was simulated by rounding each result, as a GPU does; this backend computes in float32 between nodes; "
    "the same program without the simulation: {}"
)


def keep_precise(
    reference: str | os.PathLike[str] | Records,
    program: str | os.PathLike[str] | Program | ir.Model,
    *,
    to: Precision,
    backend: str | Backend = "onnxruntime-cpu",
    tolerance: float | Tolerance | None = None,
    snr: float | None = None,
    calibration: Sequence[Mapping[str, torch.Tensor]] | None = None,
    simulate: bool | None = None,
    measure: int | None = None,
    limit: float | None = None,
) -> PrecisionReport:
    """Lower a program's precision, and find the nodes that have to stay in float32.

    The list is minimal but not necessarily the shortest: the goal is missed if any of its nodes is lowered too, which
    is checked. Every figure is measured by running a program.

    Args:
        reference: a capture or dump of the model in float32, as for `compare`; the outputs are compared with it.
        program: in float32; for `int8` and `int4`, the program that `optimize` returned.
        to: see `lower`.
        backend: the backend that runs the programs.
        tolerance: the tolerance of the outputs; None is that of `to` (float16 1e-2, bfloat16 5e-2).
        snr: instead, the least signal-to-noise ratio of each output in decibel; 20 by default for `int8` and `int4`.
        calibration: for `int8`, see `lower`; None are the inputs of the captured calls.
        simulate: see `lower`; None is True for ONNX Runtime's CPU provider, which does not round between nodes.
        measure: how many nodes are lowered one by one, to order them by the error of the outputs; None is 32.
        limit: see `compare`.

    Raises:
        FilchError: reference and program do not match, the program can't be lowered, or the backend can't run it.
    """
    records = reference if isinstance(reference, Records) else restore(reference)
    exported, resolved_backend = as_program(program), resolve_backend(backend, None)
    captured = captured_calls(records, exported)
    calls = captured.calls
    goal = Goal.of(to, tolerance, snr)
    simulated = is_simulated(to, resolved_backend) if simulate is None else simulate
    ranges = calibration or [call.inputs for call in calls]
    trial_of = partial(Trial, calls, expected_outputs(records, exported, calls), backend=resolved_backend, goal=goal)
    trial = trial_of(Lowering(exported, to, calibration=ranges, simulate=simulated))
    with time_limit(exported, limit):
        with phase("all nodes lowered"):
            before, best = trial.keeping(()), trial.keeping(trial.lowering.nodes)
            order = measure_isolated(exported, to, resolved_backend, calls, simulate=simulated)
        if before.passes or best.passes:  # else no nodes to keep are enough
            order = measure_alone(trial, order, _MEASURED if measure is None else measure)
        names = list(dict.fromkeys((*(item.node for item in order), *trial.lowering.nodes)))  # highest cost first

        def passes(kept: Sequence[str]) -> bool:
            with phase(f"{len(kept)} of {len(names)} nodes kept"):
                return trial.keeping(kept).passes

        keep = minimize(names, passes) if best.passes and not before.passes else []
        note = (_SIMULATED.format(to, _unsimulated(trial_of(Lowering(exported, to)), keep)),) if simulated else ()
        return PrecisionReport(
            to=to,
            backend=resolved_backend.name,
            goal=goal,
            before=before,
            after=trial.keeping(keep) if before.passes or best.passes else None,
            best=best,
            keep=tuple(node.name for node in exported.graph.nodes if node.name in keep),
            without={name: trial.keeping([other for other in keep if other != name]) for name in keep},
            order=order,
            runs=trial.runs,
            notes=(*captured.notes, *captured.left_out, *note),
        )


def is_simulated(to: Precision, backend: Backend) -> bool:
    """Return whether a backend computes in float32 between nodes, so that a precision has to be simulated."""
    return to in ("float16", "bfloat16") and backend.name == "onnxruntime-cpu"


def _unsimulated(trial: Trial, keep: Sequence[str]) -> str:
    """Return the outcome of the program without simulation, if the backend can run it."""
    try:
        return str(trial.keeping(keep))
    except BackendError:
        return "can't be run"
