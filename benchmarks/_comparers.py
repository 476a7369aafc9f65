"""The ways of comparing that `comparing.py` times: Filch's, its peers', and the plain runs that are the least of it."""

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
TRUTH = "Filch, by float64"


@dataclass(frozen=True)
class Setting:
    """A model, its program, and what is held ready for all who compare: a capture, a session.

    Attributes:
        model: in eager PyTorch.
        ids: what it is called with.
        program: what was exported from it.
        path: its ONNX file.
        buffer: what Filch may hold.
    """

    model: nn.Module
    ids: torch.Tensor
    program: Program
    path: Path
    buffer: int = BUFFER

    def captured(self, calls: int) -> Capture:
        """Call the model so often, and keep all that its modules take and give, in memory."""
        with steal_forward(self.model, submodules=True) as capture:
            for _ in range(calls):
                self.model(self.ids)
        return capture

    @cached_property
    def once(self) -> Capture:
        """A capture of one call."""
        return self.captured(1)

    @cached_property
    def often(self) -> Capture:
        """A capture of `CALLS` calls."""
        return self.captured(CALLS)

    @cached_property
    def session(self) -> ort.InferenceSession:
        """ONNX Runtime as its users have it."""
        return ort.InferenceSession(self.path, providers=["CPUExecutionProvider"])

    @cached_property
    def feeds(self) -> dict[str, Any]:
        """What the session takes."""
        return {self.session.get_inputs()[0].name: self.ids.numpy()}


def make(folder: Path, layers: int) -> None:
    """Export the Llama with so many layers, once for all processes."""
    model, ids = _llama(layers)
    export(model, (ids,)).save(folder / FILE)


def load(folder: Path, layers: int, buffer: int = BUFFER) -> Setting:
    """What `make` exported, and its model, made anew with the same weights; whatever is loaded late is loaded now."""
    model, ids = _llama(layers)
    program = load_program(folder / FILE)
    if program.original is not None:
        program.original.program  # noqa: B018  else the first comparison would pay for it
    model(ids)  # what torch does once
    return Setting(model, ids, program, folder / FILE, buffer)


def _llama(layers: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    subject = small_llama(1.0, layers)
    return subject.model, next(subject.inputs())


def eager(setting: Setting) -> object:
    """The model itself."""
    return setting.model(setting.ids)


def onnx_runtime(setting: Setting) -> object:
    """A session that is ready, with its default optimisations."""
    return setting.session.run(None, setting.feeds)


def filch(setting: Setting) -> object:
    """The compiled graph, observed, of one call; sessions are made too."""
    return _filch(setting, setting.once, "compiled")


def filch_often(setting: Setting) -> object:
    """The same of several calls."""
    return _filch(setting, setting.often, "compiled")


def filch_both(setting: Setting) -> object:
    """The exported and the compiled graph."""
    return _filch(setting, setting.once, "exported", "compiled")


def filch_truth(setting: Setting) -> object:
    """The compiled graph, judged by float64, each node run by itself, too."""
    return _filch(setting, setting.once, "compiled", truth="float64")


def filch_all(setting: Setting) -> object:
    """The capture too."""
    return _filch(setting, setting.captured(1), "compiled")


def _filch(setting: Setting, capture: Capture, *stages: Any, **how: Any) -> object:
    report = compare(capture, setting.program, stages=stages, buffer=setting.buffer, **how)
    if not report.close:
        raise RuntimeError(f"the comparison does not pass: {report.first_divergence}")
    return report


def run_aligned(setting: Setting) -> object:
    """onnx-diagnostic's, node by node beside the exported program, by its ONNX Runtime engine and torch tensors."""
    import onnx
    from onnx_diagnostic.reference import OnnxruntimeEvaluator
    from onnx_diagnostic.torch_onnx.sbs import run_aligned as run

    assert setting.program.original is not None
    exported, model = setting.program.original.program, onnx.load(setting.path)
    records = run(exported, model, OnnxruntimeEvaluator, (setting.ids,), use_tensor=True, atol=1e-4, rtol=1e-4)
    compared = sum(record.err_abs is not None for record in records)
    if not compared:
        raise RuntimeError("run_aligned compared nothing")
    print(f"note    onnx-diagnostic compared {compared} values of {len(model.graph.node)} nodes", flush=True)
    return compared


def polygraphy(setting: Setting) -> object:
    """Polygraphy's ONNX Runtime with optimisations off and on, all values marked as outputs, and its comparator."""
    import onnx
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator
    from polygraphy.logger import G_LOGGER

    off, on = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    marked = BytesFromOnnx(ModifyOutputs(onnx.load(setting.path), outputs=constants.MARK_ALL))()
    runners = [OnnxrtRunner(SessionFromOnnx(marked, graph_optimization_level=level)) for level in (off, on)]
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        results = Comparator.run(runners, data_loader=[setting.feeds])
        return bool(Comparator.compare_accuracy(results))


Way = Callable[[Setting], object]
PLAIN: dict[str, Way] = {"eager": eager, "ONNX Runtime": onnx_runtime}
OURS: dict[str, Way] = {
    "Filch": filch,
    f"Filch, {CALLS} calls": filch_often,
    "Filch, both graphs": filch_both,
    TRUTH: filch_truth,
    "Filch, capture too": filch_all,
}
PEERS: dict[str, Way] = {
    "onnx-diagnostic": run_aligned,
    "Polygraphy": polygraphy,
}
