"""Finds the shortest list of nodes to keep in float32 so that a program of lower precision is good enough."""

import os
from collections.abc import Mapping, Sequence
from functools import partial

import onnx_ir as ir
import torch

from filch.export import BackendError, Lowering, Precision, Program, as_program
from filch.export.backends import Backend
from filch.steal import Records, restore

from .._compare import make_engine, time_limit
from ..common._delta_debugging import smallest
from ..common._progress import step
from ..metrics._tolerance import Tolerance
from ..references._inputs import captured_calls
from ..results._precision import Goal, PrecisionReport
from ._sensitivity import local_costs, measured
from ._trial import Trial, results_of

_MEASURED = 32  # nodes are lowered alone; of the others, their own results tell the order
_SIMULATED = (
    "{} was simulated: each result was rounded, as on a GPU, where this backend computes on in float32; "
    "without that, the program with the same nodes kept: {}"
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

    The list is the shortest that was found, not the shortest there is: no node can be taken off it, which is checked by
    running. Every figure is measured by running a program.

    Args:
        reference: what the model did in float32, as for `compare`; its results are what the outputs are held against.
        program: in float32; what `optimize` returned for `int8` and `int4`.
        to: see `lower`.
        backend: what runs the programs.
        tolerance: how far the outputs may be off; None is that of `to` (float16 1e-2, bfloat16 5e-2).
        snr: instead, the signal-to-noise ratio in decibel that each output needs at least; the default of `int8` and
            `int4` is 20.
        calibration: for `int8`, see `lower`; None are the inputs of the stolen calls.
        simulate: see `lower`; None is True for ONNX Runtime's CPU provider, which does not round between nodes.
        measure: how many nodes are lowered alone, to order them by what that does to the outputs; None is 32.
        limit: see `compare`.

    Raises:
        FilchError: the two sides do not fit, the precision can't be had, or the backend can't run it.
    """
    held = reference if isinstance(reference, Records) else restore(reference)
    given, engine = as_program(program), make_engine(backend, None)
    stolen = captured_calls(held, given)
    goal = Goal.of(to, tolerance, snr)
    rounds = is_simulated(to, engine) if simulate is None else simulate
    ranges = calibration or [call.inputs for call in stolen.calls]
    trial_of = partial(Trial, stolen.calls, results_of(held, given, stolen.calls), backend=engine, goal=goal)
    trial = trial_of(Lowering(given, to, calibration=ranges, simulate=rounds))
    step("all nodes lowered", 0, 1)
    with time_limit(given, limit):
        before, best = trial.keeping(()), trial.keeping(trial.nodes)
        order = local_costs(given, to, engine, stolen.calls, simulate=rounds)
        if before.passes or best.passes:
            order = measured(trial, order, _MEASURED if measure is None else measure)
        names = list(dict.fromkeys((*(item.node for item in order), *trial.nodes)))  # the first ones cost most

        def enough(kept: Sequence[str]) -> bool:
            step(f"{len(kept)} of {len(names)} nodes kept", 0, 1)
            return trial.keeping(kept).passes

        keep = smallest(names, enough) if best.passes and not before.passes else []
        simulated = _SIMULATED.format(to, _real(trial_of(Lowering(given, to)), keep)) if rounds else None
        return PrecisionReport(
            to=to,
            backend=engine.name,
            goal=goal,
            before=before,
            after=trial.keeping(keep) if before.passes or best.passes else None,
            best=best,
            keep=tuple(node.name for node in given.graph.nodes if node.name in keep),
            without={name: trial.keeping([other for other in keep if other != name]) for name in keep},
            order=order,
            runs=trial.runs,
            notes=(*stolen.notes, *stolen.left_out, *([simulated] if simulated else [])),
        )


def is_simulated(to: Precision, backend: Backend) -> bool:
    """Whether a backend computes on in float32 where a precision is asked for, so that it has to be simulated."""
    return to in ("float16", "bfloat16") and backend.name == "onnxruntime-cpu"


def _real(trial: Trial, keep: Sequence[str]) -> str:
    """What the program gives that does not simulate the precision, or that the backend can't run it."""
    try:
        return str(trial.keeping(keep))
    except BackendError:
        return "can't be run"
