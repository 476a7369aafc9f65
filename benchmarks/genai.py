"""Judge the files of ONNX Runtime GenAI's model builder by the Hugging Face model, and the faults planted in them.

Tiny models with random weights are built offline, in float32, in float16 and with weights of 4 bits. It needs
onnxruntime-genai, which depends on plain onnxruntime: install both, and Filch, into an environment of their own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from filch.compare import Report, Row, compare, load_quantized, map_to_export
from filch.export import export
from filch.steal import steal_forward

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "initializer_range": 0.1, "tie_word_embeddings": False,
}  # fmt: skip
_PHI = {**SIZES, "num_key_value_heads": 4, "hidden_size": 128}  # half of 32 numbers are rotated: a multiple of 16
WRONG = "phi-1e5"  # the builder takes 1e-6, as it does not read the epsilon of this model
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "phi": PhiConfig(**_PHI, layer_norm_eps=1e-6),
    WRONG: PhiConfig(**_PHI, layer_norm_eps=1e-5),
    "tied": LlamaConfig(**{**SIZES, "tie_word_embeddings": True}),  # so that the embedding is quantized, too
    "phi3": Phi3Config(**SIZES, original_max_position_embeddings=64),
}
PRECISIONS = {"fp32": "cpu", "fp16": "cuda", "int4": "cpu"}  # for which provider; all run on that of the CPU
FLOAT16 = ("llama", "phi3")  # the file of qwen3 needs CUDA: its attention has norms inside
LAYER = "layers.1/"
NODE, NOTE, MISSED = "the first row", "a note on the weights", "missed"
Array = np.ndarray[Any, Any]
Fault = tuple[str, str, Callable[[onnx.ModelProto], None]]  # what it is, how the node's name begins, and its change


def make(config: PreTrainedConfig) -> torch.nn.Module:
    """Return a model whose norms have random gains."""
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def build(config: PreTrainedConfig, folder: Path, precisions: Sequence[str]) -> dict[str, onnx.ModelProto]:
    """Return what the builder makes of a model, by precision."""
    make(config).save_pretrained(folder / "model")
    words = Tokenizer(models.WordLevel({f"t{index}": index for index in range(config.vocab_size)}))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder / "model")  # the builder wants one
    for precision in precisions:
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", PRECISIONS[precision]]
        command += ["-p", precision]
        paths = ["-i", folder / "model", "-o", folder / precision, "-c", folder / "cache"]
        subprocess.run([*command, *paths], check=True, capture_output=True)
    return {precision: onnx.load(folder / precision / "model.onnx") for precision in precisions}


class Judge:
    """Compares the files of a model with it; an export is kept as long as the weights are the same."""

    def __init__(self, config: PreTrainedConfig) -> None:
        """Take the configuration of the model."""
        self._config = config
        self._recorded: dict[str, Any] = {}

    def report(self, file: onnx.ModelProto, precision: str) -> tuple[Report, Sequence[str]]:
        """Return the report of a file, and the notes on its weights."""
        notes: Sequence[str] = ()
        lower = precision == "int4"
        if lower or not self._recorded:
            model = make(self._config)
            model = model.half() if precision == "fp16" else model
            notes = load_quantized(model, file) if lower else ()
            torch.manual_seed(1)
            ids = torch.randint(3, self._config.vocab_size, (2, 6))
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": True}
            with torch.no_grad(), steal_forward(model, submodules=True) as capture:
                model(**given)
            self._recorded = {"exported": export(model, (), given), "reference": capture}
        program = map_to_export(file, **self._recorded, lower_precision=lower)
        options = {"stages": ("exported",), "lower_precision": lower, "every_node": lower}
        report = compare(self._recorded["reference"], program, **options)
        return report, notes


def edit(name: str, change: Callable[[Array], Array]) -> Callable[[onnx.ModelProto], None]:
    """Return the change of a file's weight."""

    def apply(file: onnx.ModelProto) -> None:
        (tensor,) = (tensor for tensor in file.graph.initializer if tensor.name == name)
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))

    return apply


def attribute(node: str, name: str, value: float) -> Callable[[onnx.ModelProto], None]:
    """Return the change of an attribute of the nodes whose names end with a text."""

    def apply(file: onnx.ModelProto) -> None:
        for item in file.graph.node:
            for found in item.attribute if item.name.endswith(node) else ():
                if found.name == name:
                    found.CopyFrom(onnx.helper.make_attribute(name, value))

    return apply


def shifted(table: Array) -> Array:
    """Return a table in which positions from 2 on have the angles of the one before."""
    return np.concatenate([table[:2], table[1:-1]])


def scaled(place: tuple[Any, ...], factor: float) -> Callable[[Array], Array]:
    """Return the change of some numbers of a weight."""

    def change(weight: Array) -> Array:
        weight[place] *= factor
        return weight

    return change


def reordered(weight: Array, order: Array) -> Array:
    """Return a weight, or what belongs to it, with its outputs in another order; those of float32 are its columns."""
    return weight[:, order] if weight.shape[-1] == len(order) and weight.ndim > 1 else weight[order]


def values_of(report: Report) -> list[Row]:
    """Return the rows of the floating-point values that nodes compute: the model has no lengths of sequences."""
    return [row for row in report.rows if row.kind == "node" and (row.dtype or "").startswith("float")]


def faults(name: str, file: onnx.ModelProto, precision: str) -> Iterator[Fault]:
    """Yield faults to plant in a file, in the second layer where that is possible."""
    config, weights = CONFIGS[name], {tensor.name for tensor in file.graph.initializer}
    attention, skip = "attn/GroupQueryAttention", "input_layernorm/SkipLayerNorm"
    for table in ("cos_cache", "sin_cache"):
        yield table, f"layers.0/{attention}", edit(table, shifted)
    yield "epsilon", LAYER + skip, attribute(LAYER + skip, "epsilon", 1e-3)
    yield "scale", LAYER + attention, attribute(LAYER + attention, "scale", 0.3)
    yield "window", LAYER + attention, attribute(LAYER + attention, "local_window_size", 3)
    yield "interleaved", LAYER + attention, attribute(LAYER + attention, "rotary_interleaved", 1)
    size = config.hidden_size // config.num_attention_heads
    queries, keys = config.hidden_size, config.num_key_value_heads * size
    rows = np.arange(queries + 2 * keys)
    q, k, v = np.split(rows, [queries, queries + keys])
    orders = {
        "heads of keys": [q, np.roll(k, size), v],
        "keys first": [k, q, v],
        "heads of queries": [np.roll(q, size), k, v],
    }
    joined = sorted(weight for weight in weights if weight.startswith("model.layers.1.attn.qkv_proj"))
    for kind, order in orders.items():
        changes = [edit(weight, partial(reordered, order=np.concatenate(order))) for weight in joined]
        yield kind, f"{LAYER}attn/qkv_proj/MatMul", lambda file, changes=changes: [change(file) for change in changes]
    mlp = "fc1" if any("mlp.fc1" in weight for weight in weights) else "up_proj"
    products = {"attn.qkv_proj": queries + 3, f"mlp.{mlp}": 5}
    for product, column in products.items():
        weight, node = f"model.layers.1.{product}.MatMul.weight", f"{LAYER}{product.replace('.', '/')}/MatMul"
        if precision != "int4":
            yield "weight column", node, edit(weight, scaled((slice(None), column), 1.1))
        else:
            yield "block scale", node, edit(f"{weight}_scales", scaled((column, 0), 1.25))
    if name == "qwen3":
        node = f"{LAYER}attn/q_norm/SimplifiedLayerNormalization"
        yield "epsilon", node, attribute(node, "epsilon", 1e-2)
    yield "gain", "layers.2/final_norm", edit("model.layers.2.final_norm_layernorm.weight", scaled((3,), 1.1))


def plant_faults(judge: Judge, name: str, file: onnx.ModelProto, precision: str) -> Iterator[tuple[str, int]]:
    """Yield where each fault is named, and how many values are judged then; print those that are missed."""
    for kind, node, plant in faults(name, file, precision):
        changed = onnx.ModelProto.FromString(file.SerializeToString())
        plant(changed)
        report, notes = judge.report(changed, precision)
        first = report.first_divergence
        result = MISSED
        if first is not None and node in first.node:
            result = NODE
        elif any(node in note for note in notes):
            result = NOTE
        else:
            print(f"MISSED {name} {precision}, {kind}: {node}\n    first: {first}; {notes[1:]}", flush=True)
        yield result, sum(row.judged for row in values_of(report))


def main() -> int:
    """Build, judge, plant and judge again; return 1 if a sound file is flagged, or too little is judged or named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CONFIGS, default=[*CONFIGS], metavar="MODEL")
    options = parser.parse_args()
    planted, named, failed = 0, 0, False
    print("model   precision  values  judged  inferred  flagged  faults named               values judged behind them")
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            precisions = [item for item in PRECISIONS if item != "fp16" or name in FLOAT16]
            files = build(CONFIGS[name], Path(folder), precisions)
        for precision, file in files.items():
            judge = Judge(CONFIGS[name])
            report, _ = judge.report(file, precision)
            rows = values_of(report)
            judged, inferred = sum(row.judged for row in rows), sum(row.evidence == "inferred" for row in rows)
            alarms = len(report.diverged) + sum(row.introduced for row in report.rows if not row.diverged)
            results = [*plant_faults(judge, name, file, precision)] if name != WRONG else []
            count, by_note = (sum(result in kinds for result, _ in results) for kinds in ((NODE, NOTE), (NOTE,)))
            line = f"{name:7} {precision:9} {len(rows):7} {judged:7} {inferred:9} {alarms:8}"
            if results:
                text = f"{count} of {len(results)}" + (f" ({by_note} by a note)" if by_note else "")
                print(f"{line}  {text:25} {min(least for _, least in results):15}", flush=True)
            else:
                introduced = dict.fromkeys(row.node for row in report.rows if row.introduced)
                print(f"{line}  {', '.join(introduced)}", flush=True)
            planted, named = planted + len(results), named + count
            failed |= judged < len(rows) or (alarms > 0) == (name != WRONG)
    print(f"\n{named} of {planted} faults named")
    return int(failed or named < planted)


if __name__ == "__main__":
    sys.exit(main())
