"""The methods of comparing that `comparing.py` measures: Filch, other tools, and plain runs as lower bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch
from capture import small_llama
from torch import nn

from filch.compare import compare
from filch.export import Program, export, load_program
from filch.steal import Capture, steal_forward

FILE = "llama.onnx"
CALLS = 5
BUFFER = 2**28
TOLERANCE, ISOLATED = "Filch by tolerance", "Filch, all nodes isolated"
MANY_CALLS = f"{TOLERANCE}, {CALLS} calls"


@dataclass(frozen=True)
class Context:
    """A model and its exported program, with captures and a session that are made once for all methods.

    Attributes:
        model: the model in eager PyTorch.
        ids: its input.
        program: the exported program.
        path: the program's ONNX file.
        buffer: the bytes of tensors that Filch may keep in memory.
    """

    model: nn.Module
    ids: torch.Tensor
    program: Program
    path: Path
    buffer: int = BUFFER

    def record(self, calls: int) -> Capture:
        """Call the model `calls` times, and record the inputs and outputs of all modules in memory."""
        with steal_forward(self.model, submodules=True) as capture:
            for _ in range(calls):
                self.model(self.ids)
        return capture

    @cached_property
    def capture_of_one(self) -> Capture:
        """Return a capture of one call."""
        return self.record(1)

    @cached_property
    def capture_of_many(self) -> Capture:
        """Return a capture of `CALLS` calls."""
        return self.record(CALLS)

    @cached_property
    def session(self) -> ort.InferenceSession:
        """Return a session with ONNX Runtime's default settings."""
        return ort.InferenceSession(self.path, providers=["CPUExecutionProvider"])

    @cached_property
    def feeds(self) -> dict[str, Any]:
        """Return the inputs of the session."""
        return {self.session.get_inputs()[0].name: self.ids.numpy()}


def export_llama(folder: Path, layers: int) -> None:
    """Export a Llama with `layers` layers, once for all processes."""
    model, ids = _llama(layers)
    export(model, (ids,)).save(folder / FILE)


def load_context(folder: Path, layers: int, buffer: int = BUFFER) -> Context:
    """Load what `export_llama` exported, and make its model again; nothing is left to load lazily."""
    model, ids = _llama(layers)
    program = load_program(folder / FILE)
    if program.original is not None:
        program.original.program  # noqa: B018  otherwise the first comparison loads it
    model(ids)  # torch initializes itself in the first call
    return Context(model, ids, program, folder / FILE, buffer)


def _llama(layers: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    workload = small_llama(1.0, layers)
    return workload.model, next(workload.inputs())


def run_eager(context: Context) -> object:
    """Run the model."""
    return context.model(context.ids)


def run_onnx_runtime(context: Context) -> object:
    """Run the existing session, with its default optimizations."""
    return context.session.run(None, context.feeds)


def filch(context: Context) -> object:
    """Compare the compiled graph for one call by float64, the default; this includes making the sessions."""
    return _compare(context, context.capture_of_one, "compiled")


def filch_calls(context: Context) -> object:
    """Compare the compiled graph for `CALLS` calls, by tolerance."""
    return _compare(context, context.capture_of_many, "compiled", tolerance="default")


def filch_both(context: Context) -> object:
    """Compare the exported and the compiled graph."""
    return _compare(context, context.capture_of_one, "exported", "compiled")


def filch_by_tolerance(context: Context) -> object:
    """Compare the compiled graph with the default tolerances instead of float64."""
    return _compare(context, context.capture_of_one, "compiled", tolerance="default")


def filch_isolated(context: Context) -> object:
    """Compare the compiled graph, and run each node in isolation."""
    return _compare(context, context.capture_of_one, "compiled", every_node=True)


def filch_with_capture(context: Context) -> object:
    """Record the model and compare the compiled graph."""
    return _compare(context, context.record(1), "compiled")


def _compare(context: Context, capture: Capture, *stages: Any, **options: Any) -> object:
    report = compare(capture, context.program, stages=stages, buffer=context.buffer, **options)
    if not report.close:
        raise RuntimeError(f"the comparison failed: {report.first_divergence}")
    return report


def run_aligned(context: Context) -> object:
    """Run onnx-diagnostic's `run_aligned` node by node, with its ONNX Runtime evaluator and torch tensors."""
    import onnx
    from onnx_diagnostic.reference import OnnxruntimeEvaluator
    from onnx_diagnostic.torch_onnx.sbs import run_aligned as run

    assert context.program.original is not None
    exported, model = context.program.original.program, onnx.load(context.path)
    records = run(exported, model, OnnxruntimeEvaluator, (context.ids,), use_tensor=True, atol=1e-4, rtol=1e-4)
    compared = sum(record.err_abs is not None for record in records)
    if not compared:
        raise RuntimeError("run_aligned compared nothing")
    print(f"note    onnx-diagnostic compared {compared} values of {len(model.graph.node)} nodes", flush=True)
    return compared


def polygraphy(context: Context) -> object:
    """Compare ONNX Runtime without and with optimizations in Polygraphy, with all values marked as outputs."""
    import onnx
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator
    from polygraphy.logger import G_LOGGER

    disabled, enabled = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    model = BytesFromOnnx(ModifyOutputs(onnx.load(context.path), outputs=constants.MARK_ALL))()
    runners = [OnnxrtRunner(SessionFromOnnx(model, graph_optimization_level=level)) for level in (disabled, enabled)]
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        results = Comparator.run(runners, data_loader=[context.feeds])
        return bool(Comparator.compare_accuracy(results))


Method = Callable[[Context], object]
PLAIN: dict[str, Method] = {"eager": run_eager, "ONNX Runtime": run_onnx_runtime}
FILCH: dict[str, Method] = {
    "Filch": filch,
    "Filch, both graphs": filch_both,
    "Filch, with capture": filch_with_capture,
    ISOLATED: filch_isolated,
    TOLERANCE: filch_by_tolerance,
    MANY_CALLS: filch_calls,
}
PEERS: dict[str, Method] = {"onnx-diagnostic": run_aligned, "Polygraphy": polygraphy}
