"""Write a wrong node as a folder that shows its error without Filch."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from filch.export import Program, as_program
from filch.export.backends import Backend, Stage, unrolled
from filch.steal import Records, phase, restore

from .._compare import resolve_backend, time_limit
from ..common._errors import CompareError
from ..metrics._limits import Limits
from ..metrics._tolerance import Tolerance, tolerance_for
from ..references._inputs import CapturedCall, captured_calls
from ._find import find_fault_region
from ._folder import write_folder
from ._onnx_part import set_shapes
from ._reduce import Reduction
from ._result import Repro

_RUNS = {"onnx": 300, "torch": 16}  # of reduced parts; compiling one of torch takes seconds


def write_repro(
    reference: str | os.PathLike[str] | Records,
    program: str | os.PathLike[str] | Program,
    node: str,
    folder: str | os.PathLike[str],
    *,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    tolerance: float | Tolerance | None = None,
    call: int | None = None,
    stage: Stage | None = None,
    fails: bool = False,
    limit: float | None = None,
) -> Repro:
    """Write a small folder that shows without Filch that a node's result is wrong.

    The exported nodes that it computes are extracted and run on captured values, with their neighbors if the error
    needs them, as in a fusion. Then nodes are removed, dimensions reduced and numbers simplified while at least a tenth
    of the error remains. The expected values of the reduced part come from onnx's reference evaluator, else from the
    same runtime with its optimizations disabled, else from the PyTorch operations that the part was translated from:
    the first of these that agrees with the captured values. If no part differs from the captured values, because they
    have the same error, the expected values are those of float64.

    Args:
        reference: a capture or dump of the model (see `compare`).
        program: the program that was compared with it.
        node: the name of a node or value of the exported or the compiled graph.
        folder: the folder to create; it may exist if it is empty.
        backend: the backend that runs the program.
        options: the options of a backend that is given by its name.
        tolerance: see `compare`.
        call: the index of the model's call; None is the first one.
        stage: the graph that is wrong, `exported` or `compiled`; None is the first one with an error.
        fails: whether the folder shows that the backend can't run the compiled node, instead of a wrong result.
        limit: see `compare`.

    Returns:
        a description of the folder. It holds `repro.py`, which only needs torch, onnx and the runtime; `inputs.onnx`;
        `model.onnx`, for a runtime of ONNX; `expected.onnx`, unless the script computes the expected values with
        PyTorch; and `README.md` with the versions.

    Raises:
        CompareError: there is no such node, or its result is correct when it runs alone or in a separate process; then
            nothing is written.
        FilchError: reference, program and backend do not match (see `compare`).
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CompareError(f"{str(target)!r} exists already: give a new or an empty folder")
    records = reference if isinstance(reference, Records) else restore(reference)
    exported, resolved_backend = as_program(program), resolve_backend(backend, options)
    limits = Limits(exported.graph, tolerance)
    with time_limit(exported, limit):
        with phase("finding a part that is wrong alone"):
            captured = _call(records, exported, call)
            if stage != "compiled" and node not in exported.graph.node_indices:  # it may be in a branch or a loop
                exported, _ = unrolled(exported, resolved_backend, [captured.inputs])
            region = find_fault_region(
                records, exported, resolved_backend, captured, node=node, limits=limits, stage=stage, fails=fails
            )
        runner, source = region.runner, region.expected_source
        reduction = Reduction(region, runs=_RUNS[runner.script.takes])
        with phase("removing nodes"):
            reduction.remove_nodes()
        with phase("simplifying inputs"):
            reduction.simplify_inputs()
        case = reduction.case
        culprit, error = runner.culprit(case, source), runner.error(case, source)
        expected = runner.expected(case, source) or {}
    if case.model is not None:
        case = replace(case, model=set_shapes(case.model.clone(), {**case.inputs, **expected}))
    if source != "torch":  # else the script computes the expected values
        inputs = case.inputs if case.model is None else case.model_inputs
        case = replace(case, inputs=inputs, function=None, weights={}, recorded=expected)
    first = case.outputs[0]
    allowed = tolerance_for(expected[first].dtype, limits.of(first, expected[first].dtype)).harmonic
    script = target / "repro.py"
    repro = Repro(target, script, case.operators, error, source, culprit, before=region.case.size, after=case.size)
    with phase("running in a separate process"):
        write_folder(repro, case, runner, options or {}, allowed)
    return repro


def _call(records: Records, program: Program, index: int | None) -> CapturedCall:
    """Return a call of the model by its index; the first one for None."""
    calls = captured_calls(records, program).calls
    if found := next((call for call in calls if index in (None, call.index)), None):
        return found
    known = ", ".join(str(call.index) for call in calls)
    raise CompareError(f"there is no call {index} of the model that can be compared; there are {known}")
