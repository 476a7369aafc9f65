"""Ask other tools about a case; each is a command of `_exam.py`, and answers whether it flags the case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from museum._bug import OnnxBug, ToolBug, TorchBug
from museum._prove import called, copies, install, made

Answer = dict[str, Any]
# What is installed for these questions.
NEEDS = ("polygraphy==0.53.6", "onnx-diagnostic==0.9.3", "scipy==1.16.3")
TOLERANCE = 1e-4  # of onnx-diagnostic's comparisons, absolute and relative


def _results(bug: TorchBug, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Return what each call of a user returns and changes, with gradients if they are wrong."""
    calls = [arguments] + ([bug.again()] if bug.again is not None else [])
    return [called(function, copies(given), backward=bug.backward) for given in calls]


def assert_close(bug: TorchBug, way: str) -> Answer:
    """Compare the results with torch.testing.assert_close."""
    install(bug, way)
    model, arguments = made(bug, way)
    expected, actual = _results(bug, model, arguments), _results(bug, torch.compile(model), arguments)
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return {"flagged": True, "says": str(error)[:200]}
    return {"flagged": False}


def same(bug: TorchBug, way: str) -> Answer:
    """Compare the results with Dynamo's `same`, against a run in float64."""
    from torch._dynamo.utils import same

    install(bug, way)
    return {"flagged": not _is_same(bug, way, same, torch.compile)}


def _is_same(bug: TorchBug, way: str, rule: Callable[..., bool], compiler: Callable[..., Any]) -> bool:
    """Return whether a rule takes compiled results for those of eager PyTorch."""
    model, arguments = made(bug, way)
    expected, actual = _results(bug, model, arguments), _results(bug, compiler(model), arguments)
    try:
        exact = _results(bug, made(bug, way)[0].double(), torch.utils._pytree.tree_map(_double, arguments))
    except RuntimeError:  # it doesn't run in float64
        exact = None
    return rule(expected, actual, exact, equal_nan=True)


def _double(item: Any) -> Any:
    is_float = isinstance(item, torch.Tensor) and item.is_floating_point()
    return item.detach().double().requires_grad_(item.requires_grad) if is_float else item


def bisector(bug: TorchBug, way: str) -> Answer:
    """Bisect with CompilerBisector, which Dynamo's `same` tells good from bad."""
    from torch._dynamo.utils import same
    from torch._inductor.compiler_bisector import CompilerBisector

    install(bug, way)

    def is_good() -> bool:
        torch._dynamo.reset()
        backend = CompilerBisector.get_backend() or "inductor"
        return _is_same(bug, way, same, lambda model: torch.compile(model, backend=backend))

    if is_good():
        return {"flagged": False}
    found = CompilerBisector.do_bisect(is_good)
    return {"flagged": True, "says": "nothing" if found is None else f"{found.backend}, {found.subsystem}"}


def minifier(bug: TorchBug, way: str) -> Answer:
    """Call the model with the minifier's check of accuracy."""
    from torch._dynamo import config

    install(bug, way)
    model, arguments = made(bug, way)
    with config.patch(repro_after="aot", repro_level=4):
        try:
            _results(bug, torch.compile(model), arguments)
        except Exception as error:  # noqa: BLE001  Dynamo wraps it
            return {"flagged": "Bad accuracy" in str(error) or "AccuracyError" in repr(error), "says": str(error)[:200]}
    return {"flagged": False}


def polygraphy(bug: OnnxBug, way: str) -> Answer:
    """Compare ONNX Runtime without and with optimizations in Polygraphy, with all values marked as outputs."""
    return _polygraphy(bug, way, marked=True)


def polygraphy_outputs(bug: OnnxBug, way: str) -> Answer:
    """Compare the outputs of ONNX Runtime without and with optimizations in Polygraphy."""
    return _polygraphy(bug, way, marked=False)


def _polygraphy(bug: OnnxBug, way: str, *, marked: bool) -> Answer:
    import onnxruntime as ort
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator

    model, feed = bug.control() if way == "control" and bug.control is not None else (bug.make(), bug.inputs())
    data = BytesFromOnnx(ModifyOutputs(model, outputs=constants.MARK_ALL) if marked else model)()
    levels = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    runners = [OnnxrtRunner(SessionFromOnnx(data, graph_optimization_level=level)) for level in levels]
    return {"flagged": not Comparator.compare_accuracy(Comparator.run(runners, data_loader=[dict(feed)]))}


def onnx_diagnostic(bug: OnnxBug, way: str) -> Answer:
    """Compare the outputs of ONNX Runtime with those of onnx-diagnostic's reference evaluator, by its `max_diff`."""
    import onnxruntime as ort
    from onnx_diagnostic.helpers import max_diff
    from onnx_diagnostic.reference import ExtendedReferenceEvaluator

    model, feed = bug.control() if way == "control" and bug.control is not None else (bug.make(), bug.inputs())
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = max_diff(ExtendedReferenceEvaluator(model).run(None, dict(feed)), session.run(None, dict(feed)))
    differs = found["abs"] > TOLERANCE and found["rel"] > TOLERANCE
    return {"flagged": bool(differs or found.get("dnan")), "says": str(found)[:200]}


def verification(bug: ToolBug, way: str) -> Answer:
    """Export with `verify=True`, and look at the report of torch.onnx."""
    from torch.onnx.verification import verify_onnx_program

    given, values = bug.make() if way == "buggy" else bug.harmless()
    if not isinstance(given, torch.nn.Module):
        return {"error": "it verifies exports only"}
    program = torch.onnx.export(given, tuple(values), dynamo=True, optimize=False, verbose=False)
    infos = verify_onnx_program(program, tuple(values), compare_intermediates=False)
    return {"flagged": any(not (i.max_abs_diff < 5e-3 and i.max_rel_diff < 1e-1) for i in infos)}


PEERS: dict[type, dict[str, Callable[[Any, str], Answer]]] = {
    TorchBug: {"assert_close": assert_close, "same": same, "CompilerBisector": bisector, "minifier": minifier},
    OnnxBug: {"Polygraphy": polygraphy, "Polygraphy, outputs": polygraphy_outputs, "onnx-diagnostic": onnx_diagnostic},
    ToolBug: {"torch.onnx": verification},
}
