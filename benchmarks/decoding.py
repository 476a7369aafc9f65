"""Measure what it costs to compare a decode: against the model and the program decoding the same tokens, uncompared.

With `--families` or `--further`, programs of small models of many families are judged instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import linear_regression

import torch
from _families import FURTHER, HYBRIDS, MODELS, arguments, make
from _measure import describe_environment, table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from filch.compare import Decoding, compare_decode
from filch.export import CacheKind, Program, cache_argument, cached_call, export
from filch.export.backends import get_backend
from filch.export.exporting._model_cache import returned_cache

ROWS = 2
STATIC = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MistralForCausalLM", "MixtralForCausalLM")
WINDOWS = ("MistralForCausalLM", "Gemma2ForCausalLM")
RUNS: list[tuple[str, CacheKind, str]] = [
    *((name, "dynamic", "onnxruntime-cpu") for name in MODELS | HYBRIDS),
    *((name, "static", "onnxruntime-cpu") for name in STATIC),
    *((name, "window", "onnxruntime-cpu") for name in WINDOWS),
    *((name, "static-window", "onnxruntime-cpu") for name in WINDOWS),
    ("LlamaForCausalLM", "static", "inductor"),
]
FURTHER_RUNS: list[tuple[str, CacheKind, str]] = [(name, "dynamic", "onnxruntime-cpu") for name in FURTHER]


def llama(layers: int, width: int) -> nn.Module:
    """Return a Llama with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=width // 64, vocab_size=4000, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def seconds(run: Callable[[], object]) -> float:
    """Return the processor time of a run; the machine may run other processes."""
    start = time.process_time()
    run()
    return time.process_time() - start


def spans(length: int, first: int) -> list[tuple[int, int]]:
    """Return the first position of each call, and the one after its last."""
    return [(0, first), *((position, position + 1) for position in range(first, length))]


def decode_eagerly(model: nn.Module, tokens: torch.Tensor, first: int) -> None:
    """Call the model step by step in eager PyTorch."""
    name, cache = cache_argument(model), None
    for start, end in spans(tokens.shape[1], first):
        with torch.no_grad():
            cache = returned_cache(model(tokens[:, start:end], use_cache=True, **{name: cache}), name)


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


def measured(layers: int, length: int, width: int, rounds: int) -> Cost:
    """Return the least costs of one model and number of tokens; all are measured in each round."""
    model, first = llama(layers, width), length // 4
    tokens = torch.randint(3, 4000, (ROWS, length))
    program = export(model, (tokens,), cache="dynamic")
    call = cached_call(model, tokens)
    inputs = {name: item for name, item in call.items() if isinstance(item, torch.Tensor)}
    for index, layer in enumerate(call[cache_argument(model)].layers):
        inputs |= {f"past_key_values.{index}.key": layer.keys, f"past_key_values.{index}.value": layer.values}
    start = time.process_time()
    run = decode_program(program, inputs, first)
    load = time.process_time() - start
    results: list[Decoding] = []

    def compare() -> None:
        options = {"threads": 1}
        results.append(compare_decode(model, tokens, program=program, tokens=length, prefill=first, options=options))

    runs = (lambda: decode_eagerly(model, tokens, first), run, compare)
    run()
    times = [[seconds(item) for item in runs] for _ in range(rounds)]
    eager, alone, compared = (min(column) for column in zip(*times, strict=True))
    size = sum(parameter.numel() for parameter in model.parameters())
    close = all(result.close for result in results)
    return Cost(layers, length, size, eager, alone, load, compared, results[0].judged, close)


@dataclass(frozen=True)
class Cost:
    """The processor seconds of one model and number of tokens.

    Attributes:
        layers: the number of layers.
        tokens: the number of tokens of each sequence.
        size: the number of parameters.
        eager: seconds that the model takes to decode the tokens in eager PyTorch.
        program: likewise its program.
        load: seconds that it takes to compile the program.
        compared: seconds of the comparison.
        values: the number of judged values.
        close: whether they are right.
    """

    layers: int
    tokens: int
    size: int
    eager: float
    program: float
    load: float
    compared: float
    values: int
    close: bool

    @property
    def cells(self) -> tuple[object, ...]:
        """The row of a table."""
        times = (f"{item:.2f}" for item in (self.eager, self.program, self.load, self.compared))
        decodes = self.eager + self.program
        ratios = (f"{self.compared / item:.1f}" for item in (decodes, decodes + self.load))
        verdict = "close" if self.close else "DIFFERENT"
        return self.layers, self.tokens, f"{self.size / 1e6:.0f}", *times, *ratios, self.values, verdict


def costs(options: argparse.Namespace) -> bool:
    """Print what comparisons cost; return whether all are close."""
    middle = options.tokens[len(options.tokens) // 2]
    points = [(options.layers[len(options.layers) // 2], tokens) for tokens in options.tokens]
    points += [(layers, middle) for layers in options.layers if (layers, middle) not in points]
    rows = [measured(layers, tokens, options.width, options.rounds) for layers, tokens in points]
    names = ("layers", "tokens", "million", "eager s", "program s", "load s", "compared s", "ratio", "with load")
    print(table((*names, "values", "result"), [row.cells for row in rows]), end="\n\n")
    for name, chosen in (
        ("token", rows[: len(options.tokens)]),
        ("layer", [row for row in rows if row.tokens == middle]),
    ):
        decodes, compared = ([getattr(row, f"{name}s") for row in chosen], [row.compared for row in chosen])
        if len(chosen) > 1:
            slope, fixed = linear_regression(decodes, compared)
            ratio = slope / linear_regression(decodes, [row.eager + row.program for row in chosen]).slope
            print(
                f"each further {name} costs {slope:.3f} s, {ratio:.1f} times the two decodes; {fixed:.1f} s are fixed"
            )
    return all(row.close for row in rows)


def families(options: argparse.Namespace) -> bool:
    """Print what is judged of the programs of small models of several families; return whether all are close."""
    rows, close = [], True
    for name, cache, backend in FURTHER_RUNS if options.further else RUNS:
        if options.only and name not in options.only:
            continue
        start = time.perf_counter()
        one = {"threads": 1} if backend.startswith("onnxruntime") else None
        result = compare_decode(
            make(name), kwargs=arguments(name), tokens=32, cache=cache, backend=backend, options=one
        )
        close &= result.close
        positions = sum(item.worst > 0 for item in result.positions)
        worst = max(item.logits for item in result.positions)
        cells = (f"{result.judged} of {result.values}", positions, len(result.decisions), f"{worst:.0e}")
        rows.append((name, cache, backend, *cells, f"{time.perf_counter() - start:.0f}", result.close))
        if not result.close:
            print(result, flush=True)
    header = ("model", "cache", "backend", "judged", "positions", "decisions", "logits", "seconds", "close")
    print(table(header, rows))
    return close


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", action="store_true", help="judge small models of several families instead")
    parser.add_argument("--further", action="store_true", help="judge models of further families instead")
    parser.add_argument(
        "--only", nargs="+", choices=MODELS | HYBRIDS | FURTHER, metavar="MODEL", help="some of the families"
    )
    parser.add_argument("--width", type=int, default=1024, help="hidden size")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8], help="numbers of layers")
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 64, 128], help="numbers of tokens")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    is_close = families(options) if options.families or options.further else costs(options)
    print()
    print(describe_environment("torch", "transformers", "onnxruntime"))
    return not is_close


if __name__ == "__main__":
    sys.exit(main())
