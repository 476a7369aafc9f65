"""Measure what a comparison of a file without a model costs, in runs of the file.

The file has dilated convolutions with batch normalization on a long signal, as WaveNet-like models have. What a file
with one node costs is subtracted: it is what each comparison costs.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from filch.compare import compare_programs

CHANNELS, KERNEL = 64, 3
MOST_RUNS, MOST_MEMORY = 20.0, 1.0  # times a run of the file, and GB


def convolutions(path: Path, layers: int, length: int) -> Path:
    """Save a file of convolutions with dilations 1, 2, 4, …, each with batch normalization and a ReLU."""
    rng, nodes, last = np.random.default_rng(0), [], "x"
    weights = [numpy_helper.from_array((1 + rng.random(CHANNELS)).astype(np.float32), name) for name in "gbmv"]
    for i in range(layers):
        weight = rng.standard_normal((CHANNELS, CHANNELS, KERNEL)) / (CHANNELS * KERNEL) ** 0.5
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
        nodes += [
            helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], pads=[2**i] * 2, dilations=[2**i]),
            helper.make_node("BatchNormalization", [f"c{i}", *"gbmv"], [f"n{i}"]),
            helper.make_node("Relu", [f"n{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    return save(path, nodes, last, [1, CHANNELS, length], weights)


def save(
    path: Path, nodes: list[onnx.NodeProto], output: str, shape: list[int], weights: list[onnx.TensorProto]
) -> Path:
    """Save a file with one input, `x`, and one output of the same shape."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", output)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def run_seconds(path: Path, shape: list[int]) -> float:
    """Return the shortest time of a run of a file."""
    session, feeds = ort.InferenceSession(path), {"x": np.ones(shape, np.float32)}
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def compare_seconds(path: Path) -> float:
    """Return the time of a comparison of a file with itself, which has to be close."""
    begin = time.perf_counter()
    assert compare_programs(path, path).close
    return time.perf_counter() - begin


def main() -> None:
    """Print the cost; exit with 1 if it is more than `MOST_RUNS` or `MOST_MEMORY`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--length", type=int, default=7500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one = save(Path(folder) / "one.onnx", [helper.make_node("Relu", ["x"], ["y"])], "y", [1, 8], [])
        path = convolutions(Path(folder) / "all.onnx", options.layers, options.length)
        compare_seconds(one)  # imports
        base, before = compare_seconds(one), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run, whole = run_seconds(path, [1, CHANNELS, options.length]), compare_seconds(path)
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    runs = (whole - base) / run
    print(f"run {run:.3f} s, one node {base:.2f} s, all {whole:.2f} s: {runs:.1f} runs more, {memory:.2f} GB more")
    sys.exit(runs > MOST_RUNS or memory > MOST_MEMORY)


if __name__ == "__main__":
    main()
