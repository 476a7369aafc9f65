"""Measure what a comparison of a file without a model costs, in runs of the file: in wall time, and in CPU time.

The file has dilated convolutions with batch normalization on a long signal, as WaveNet-like models have. What a file
with one node costs is subtracted: it is what each comparison costs.

With `GOMP_SPINCOUNT=10000`, torch's threads wait for each other as they do in the command `filch`.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

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


class Seconds(NamedTuple):
    """How long something took.

    Attributes:
        wall: by the clock.
        cpu: of all processors together.
    """

    wall: float
    cpu: float

    @classmethod
    def of(cls, call: Callable[[], object]) -> Seconds:
        """Measure a call."""
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        return cls(time.perf_counter() - wall, time.process_time() - cpu)

    def runs(self, base: Seconds, run: Seconds) -> Seconds:
        """Return how many runs it took more than what each comparison takes."""
        return Seconds((self.wall - base.wall) / run.wall, (self.cpu - base.cpu) / run.cpu)


def middle(measured: Sequence[Seconds]) -> Seconds:
    """Return the medians."""
    return Seconds(*map(median, zip(*measured, strict=True)))


def run_seconds(path: Path, shape: list[int]) -> Seconds:
    """Return the time of a run of a file."""
    session, feeds = ort.InferenceSession(path), {"x": np.ones(shape, np.float32)}
    return middle([Seconds.of(lambda: session.run(None, feeds)) for _ in range(7)][1:])


def compare_seconds(path: Path) -> Seconds:
    """Return the time of a comparison of a file with itself, which has to be close."""

    def compare() -> None:
        assert compare_programs(path, path).close

    return Seconds.of(compare)


def main() -> None:
    """Print the cost; exit with 1 if it is more than `MOST_RUNS` or `MOST_MEMORY`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--length", type=int, default=7500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one = save(Path(folder) / "one.onnx", [helper.make_node("Relu", ["x"], ["y"])], "y", [1, 8], [])
        path = convolutions(Path(folder) / "all.onnx", options.layers, options.length)
        compare_seconds(one)  # imports
        before, rounds, peaks = peak(), [], []
        for _ in range(options.rounds):
            base, run = compare_seconds(one), run_seconds(path, [1, CHANNELS, options.length])
            whole = compare_seconds(path)
            peaks.append(peak() - before)
            rounds.append(whole.runs(base, run))
            print(
                f"run {run.wall:.3f} s, one node {base.wall:.2f} s, all {whole.wall:.2f} s: "
                f"{rounds[-1].wall:.1f} runs more, {rounds[-1].cpu:.1f} in CPU time; {peaks[-1]:.2f} GB more"
            )
    wall, cpu = middle(rounds)
    print(f"median: {wall:.1f} runs more, {cpu:.1f} in CPU time")
    sys.exit(wall > MOST_RUNS or peaks[0] > MOST_MEMORY)


def peak() -> float:
    """Return the largest memory of the process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
