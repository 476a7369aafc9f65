"""Align GPT-2 with a re-implementation of it in several sizes: time, peak memory, and which of two bugs are named.

The weights are like those after training: heavy tails and a few large norm gains. Each size runs in a new process. The
limit is the time of two runs of both models in float64, with conversion of their weights, in the same process:
alignment can't do without them.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path

import torch
from _default_models import trained_like
from _measure import GIB, describe_environment, format_target, peak_memory, run_in_subprocess, table
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from filch.compare import align

# The model of the port lives with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ports.gpt2 import port_of

LAYERS = (3, 6, 12, 24)
COLUMNS = ("parameters", "two runs s", "clean s", "ratio", "two bugs s", "above the models GiB", "clean", "bugs named")
TOKENS, BIAS, EPSILON = 16, 0.05, 1e-3
PARAMETERS, MOST_SECONDS, MOST_MEMORY = 124e6, 60.0, 2.0
MOST_GROWTH = 1.3


def measure(layers: int) -> None:
    """Align a model of a number of layers with its port, and print the results as JSON."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, attn_implementation="eager", use_cache=False)).eval()
    trained_like(model)
    port = port_of(model).eval()
    ids = torch.randint(0, model.config.vocab_size, (1, TOKENS))
    before = peak_memory()
    start = time.perf_counter()
    clean = align(model, port, ids)
    clean_seconds = time.perf_counter() - start
    above = peak_memory() - before
    first, second = layers // 3, 2 * layers // 3
    with torch.no_grad():
        port.blocks[first].o.bias[5] += BIAS
    port.blocks[second].between.eps = EPSILON
    start = time.perf_counter()
    buggy = align(model, port, ids)
    named = {departure.module for departure in buggy.departures}
    bugs = {f"blocks.{first}.o", f"blocks.{second}.between"}
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "limit": 2 * sum(float64_seconds(item, ids) for item in (model, port)),
                "clean": clean_seconds,
                "bugs": seconds,
                "above": above,
                "is clean": clean.close and not clean.departures,
                "named": len(named & bugs),
                "more": len(named - bugs),
            }
        )
    )


def float64_seconds(model: nn.Module, ids: torch.Tensor) -> float:
    """Return the seconds of a run in float64 with the conversion of the weights."""
    start = time.perf_counter()
    with torch.no_grad():
        copy.deepcopy(model).double()(ids)
    return time.perf_counter() - start


def main() -> int:
    """Measure; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        measure(options.one)
        return 0
    results = [run_in_subprocess(__file__, "--one", layers) for layers in options.layers]
    print(table(COLUMNS, map(cells, results)), end="\n\n")
    nearest = min(results, key=lambda result: abs(result["parameters"] - PARAMETERS))
    first, last = results[0], results[-1]
    growth = (last["clean"] / first["clean"]) / (last["parameters"] / first["parameters"])
    targets = {
        f"seconds of {nearest['parameters'] / 1e6:.0f} M parameters": (nearest["clean"], MOST_SECONDS),
        f"GiB above both models of {nearest['parameters'] / 1e6:.0f} M parameters": (
            nearest["above"] / GIB,
            MOST_MEMORY,
        ),
        "growth of seconds, relative to that of parameters": (growth, MOST_GROWTH),
        "bugs that are not named": (sum(2 - result["named"] for result in results), 0),
        "named, but no bug": (sum(result["more"] for result in results), 0),
        "clean runs that differ": (sum(not result["is clean"] for result in results), 0),
    }
    for text, (value, most) in targets.items():
        print(format_target(text, value, at_most=most))
    print(describe_environment("torch", "transformers"))
    return int(any(value > most for value, most in targets.values()))


def cells(result: dict[str, float]) -> list[str]:
    """Return the row of one size."""
    return [
        f"{result['parameters'] / 1e6:.0f} M",
        f"{result['limit']:.1f}",
        f"{result['clean']:.1f}",
        f"{result['clean'] / result['limit']:.1f}",
        f"{result['bugs']:.1f}",
        f"{result['above'] / GIB:.2f}",
        "same" if result["is clean"] else "DIFFERS",
        f"{result['named']} of 2" + (f", {result['more']} MORE" if result["more"] else ""),
    ]


if __name__ == "__main__":
    sys.exit(main())
