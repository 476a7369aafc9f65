"""Writes a node that is wrong as a folder that shows it without Filch."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from filch.export import Program, as_program
from filch.export.backends import Backend, Stage
from filch.steal import Records, restore

from .._compare import make_engine, time_limit
from ..common._errors import CompareError
from ..common._progress import step
from ..metrics._limits import Limits
from ..metrics._tolerance import Tolerance, tolerance_for
from ..references._inputs import CapturedCall, captured_calls
from ._find import find
from ._folder import Told, write_folder
from ._onnx_part import shaped
from ._reduce import Reduction
from ._result import Repro

_RUNS = {"onnx": 300, "torch": 16}  # compiling takes seconds


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
    limit: float | None = None,
) -> Repro:
    """Write what a node computes as a folder small enough to send, which shows without Filch that the result is wrong.

    The nodes of the exported graph that it computes are cut out and fed with what the model had; where the fault needs
    its neighbours, as a fusion does, they come along. Then nodes are left out, dimensions made smaller and numbers
    simpler, as long as the result stays wrong, by a tenth of what it was at least. What a smaller part should give is
    said by onnx's reference evaluator, else by the same runtime with its optimisations off, else by the operations of
    PyTorch that the part was translated from: by the first that gives what the model gave, on what the model had.

    Args:
        reference: a capture or dump of the model (see `compare`).
        program: what was compared with it.
        node: a node of the exported graph or of the compiled one, or a value that one makes.
        folder: where to; it is made, and may be there if it is empty.
        backend: what runs the program.
        options: what the backend, given by its name, is to be made with.
        tolerance: how far values may be apart; see `compare`.
        call: which call of the model; None is the first one.
        stage: which graph is wrong, the `exported` or the `compiled` one; None is the first in which something is.
        limit: see `compare`.

    Returns:
        what was written, and how small it is. The folder holds `repro.py`, which needs torch, onnx and the runtime
        alone; `inputs.onnx`; `model.onnx`, for a runtime of ONNX; `expected.onnx`, unless PyTorch itself says in the
        script what is expected; and `README.md` with the versions.

    Raises:
        CompareError: there is no such node, or what it gives is not wrong when it is run alone, or not in a process of
            its own; nothing is written then.
        FilchError: the files or the backend do not fit (see `compare`).
    """
    to = Path(folder)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise CompareError(f"{str(to)!r} is there already: give a folder that is new, or empty")
    held = reference if isinstance(reference, Records) else restore(reference)
    given, engine = as_program(program), make_engine(backend, options)
    limits = Limits(given.graph, tolerance)
    with time_limit(given, limit):
        step("what is wrong alone", 0, 4)
        found = find(held, given, engine, _call(held, given, call), node=node, limits=limits, stage=stage)
        reduction = Reduction(found.runner, found.wrong, runs=_RUNS[found.script.takes])
        step("fewer nodes", 1, 4)
        reduction.fewer_nodes(found.parts.case)
        step("smaller", 2, 4)
        reduction.smaller()
        case, truth = reduction.case, found.wrong.truth
        error = found.runner.error(case, truth)
        expected = found.runner.expected(case, truth) or {}
    if case.model is not None:
        case = replace(case, model=shaped(case.model.clone(), {**case.inputs, **expected}))
    if truth != "torch":  # whose script computes what is expected
        inputs = case.inputs if case.model is None else case.fed
        case = replace(case, inputs=inputs, function=None, weights={}, recorded=expected)
    dtype = expected[case.outputs[0]].dtype
    told = Told(
        backend=engine.name,
        options=options or {},
        script=found.script,
        optimize=found.optimize,
        truth=truth,
        culprit=found.runner.culprit(reduction.case, truth),
        before=found.wrong.case.size,
        harmonic=tolerance_for(dtype, limits.of(case.outputs[0], dtype)).harmonic,
    )
    step("in a process of its own", 3, 4)
    write_folder(case, error, told, to)
    return Repro(to, to / "repro.py", case.operators, error, truth, told.culprit, told.before, case.size)


def _call(held: Records, program: Program, index: int | None) -> CapturedCall:
    calls = captured_calls(held, program).calls
    found = next((call for call in calls if index in (None, call.index)), None)
    if found is None:
        there = ", ".join(str(call.index) for call in calls)
        raise CompareError(f"there is no call {index} of the model that can be compared, there is {there}")
    return found
