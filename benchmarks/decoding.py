"""Measure what it costs to compare a decode: against the model and the program decoding the same tokens, uncompared."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from _measure import describe_environment, table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from filch.compare import compare_decode
from filch.export import Program, cached_call, export
from filch.export.backends import get_backend

ROWS = 2


def llama(layers: int, width: int) -> nn.Module:
    """Return a Llama with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        vocab_size=4000,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).eval()


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the least processor time of some runs; the machine may run other processes."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def spans(length: int, first: int) -> list[tuple[int, int]]:
    """Return the first position of each call, and the one after its last."""
    return [(0, first), *((position, position + 1) for position in range(first, length))]


def decode_eagerly(model: nn.Module, tokens: torch.Tensor, first: int) -> None:
    """Call the model step by step in eager PyTorch."""
    cache = None
    for start, end in spans(tokens.shape[1], first):
        with torch.no_grad():
            cache = model(tokens[:, start:end], past_key_values=cache, use_cache=True).past_key_values


def decode_program(program: Program, inputs: dict[str, torch.Tensor], first: int) -> Callable[[], None]:
    """Return a function that runs a program step by step in ONNX Runtime."""
    backend = get_backend("onnxruntime-cpu", threads=1)
    compiled = backend.compile(program, optimize=True)
    past = [name for name in program.graph.inputs if name.startswith("past_key_values.")]

    def run() -> None:
        cache = {name: inputs[name] for name in past}
        for start, end in spans(inputs["input_ids"].shape[1], first):
            step = {name: inputs[name][:, start:end] for name in ("input_ids", "position_ids")}
            outputs = backend.run(compiled, {**step, "attention_mask": inputs["attention_mask"][:, :end], **cache})
            cache = {name: outputs[f"present.{name.removeprefix('past_key_values.')}"] for name in past}

    return run


def measured(layers: int, length: int, width: int, repeats: int) -> tuple[object, ...]:
    """Return the row of one model and number of tokens."""
    model, first = llama(layers, width), length // 4
    tokens = torch.randint(3, 4000, (ROWS, length))
    program = export(model, (tokens,), cache="dynamic")
    call = cached_call(model, tokens)
    inputs = {name: item for name, item in call.items() if isinstance(item, torch.Tensor)}
    for index, layer in enumerate(call["past_key_values"].layers):
        inputs |= {f"past_key_values.{index}.key": layer.keys, f"past_key_values.{index}.value": layer.values}
    decode_eagerly(model, tokens, first)
    eager = seconds(lambda: decode_eagerly(model, tokens, first), repeats)
    run = decode_program(program, inputs, first)
    run()
    alone = seconds(run, repeats)
    results = []
    compared = seconds(
        lambda: results.append(
            compare_decode(model, tokens, program=program, tokens=length, first=first, options={"threads": 1})
        ),
        repeats,
    )
    ratio = compared / (eager + alone)
    verdict = "close" if all(result.close for result in results) else "DIFFERENT"
    size = sum(parameter.numel() for parameter in model.parameters())
    numbers = (f"{eager:.2f}", f"{alone:.2f}", f"{compared:.2f}", f"{ratio:.1f}")
    return layers, length, f"{size / 1e6:.0f}", *numbers, results[0].judged, verdict


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024, help="hidden size")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8], help="numbers of layers")
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 64, 128], help="numbers of tokens")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    rows = [measured(options.layers[-1], tokens, options.width, options.repeats) for tokens in options.tokens]
    rows += [measured(layers, options.tokens[0], options.width, options.repeats) for layers in options.layers[:-1]]
    header = ("layers", "tokens", "million", "eager s", "program s", "compared s", "ratio", "values", "result")
    print(table(header, rows), end="\n\n")
    print(describe_environment("torch", "transformers", "onnxruntime"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
