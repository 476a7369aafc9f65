"""Compare files of ONNX Runtime GenAI's model builder with the Hugging Face model, token by token, and plant faults.

Its runtime decodes the same tokens, so that what is named can be told from what its users get. It needs the environment
that `genai.py` describes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import genai
import numpy as np
import onnx
import onnxruntime_genai
import torch
from transformers import LlamaConfig, MistralConfig, Phi3Config, PreTrainedConfig, Qwen2Config

from filch.compare import Decoding, compare_decode, map_to_export
from filch.export import Program, cached_call, export
from filch.steal import steal_forward

LENGTH, FIRST, WINDOW = 40, 8, 12
_PHI3 = {**genai.SIZES, "original_max_position_embeddings": 64}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**genai.SIZES),
    "qwen2": Qwen2Config(**genai.SIZES),
    "phi3": Phi3Config(**_PHI3),
    "mistral": MistralConfig(**genai.SIZES, sliding_window=None),
    "mistral, window": MistralConfig(**genai.SIZES, sliding_window=WINDOW),
    "phi3, window": Phi3Config(**_PHI3, sliding_window=WINDOW),
}
WRONG = ("mistral, window", "phi3, window")  # the builder leaves out the window
Plant = Callable[[onnx.ModelProto], None]
ATTENTION = "layers.0/attn/GroupQueryAttention"


class Subject:
    """A model and what it computes.

    Attributes:
        model: the model.
        tokens: int64 in the shape [2, 40].
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        """Take the configuration of the model."""
        self.model = genai.make(config)
        self.tokens = torch.randint(3, config.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(1))
        self._exported = export(self.model, (self.tokens,), cache="dynamic")
        with torch.no_grad(), steal_forward(self.model, submodules=True) as self._capture:
            self.model(**cached_call(self.model, self.tokens))

    def decoding(self, file: onnx.ModelProto) -> Decoding:
        """Compare a file, token by token."""
        program: Program = map_to_export(file, exported=self._exported, reference=self._capture)
        options: dict[str, Any] = {"tokens": LENGTH, "prefill": FIRST, "stages": ["exported"]}
        return compare_decode(self.model, self.tokens, program=program, **options)

    def in_runtime(self, folder: Path) -> str:
        """Return from which position on the logits of the library's own runtime are wrong, and whether it fails."""
        path = folder / "genai_config.json"
        settings = json.loads(path.read_text())
        settings["model"]["eos_token_id"] = 2  # that of the tokenizer, which is not the model's, is no token
        path.write_text(json.dumps(settings))
        with torch.no_grad():
            expected = self.model(self.tokens[:1]).logits[0]
        runtime = onnxruntime_genai.Model(str(folder))
        parameters = onnxruntime_genai.GeneratorParams(runtime)
        parameters.set_search_options(max_length=LENGTH)
        generator, wrong = onnxruntime_genai.Generator(runtime, parameters), None
        for start, end in ((0, FIRST), *((position, position + 1) for position in range(FIRST, LENGTH))):
            try:
                generator.append_tokens(self.tokens[:1, start:end].numpy().astype(np.int32))
                logits = torch.tensor(np.array(generator.get_output("logits")[0, -1]))
            except RuntimeError:
                return f"wrong from {wrong}, fails at {start}"
            if wrong is None and not torch.allclose(logits, expected[end - 1], rtol=1e-3, atol=1e-4):
                wrong = end - 1
        return "right" if wrong is None else f"wrong from {wrong}"


def repeated(start: int, table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a table of angles in which each position from `start` on has those of the one before."""
    return np.concatenate([table[:start], table[start - 1 : -1]])


def exchanged(file: onnx.ModelProto) -> None:
    """Give the past keys of the second layer to the first, and the other way round."""
    names = {f"past_key_values.{layer}.key": f"past_key_values.{1 - layer}.key" for layer in range(2)}
    for node in file.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]


def faults() -> Iterator[tuple[str, int, str, Plant]]:
    """Yield faults of positions, windows and caches: the first wrong position, how the node ends, and the change."""
    for table, start in (("cos_cache", 9), ("sin_cache", 20)):
        yield "positions repeat", start, ATTENTION, genai.edit(table, partial(repeated, start))
    yield "window of 6", 6, ATTENTION, genai.attribute(ATTENTION, "local_window_size", 6)
    second = ATTENTION.replace("0", "1")
    yield "window of 16", 16, second, genai.attribute(second, "local_window_size", 16)
    yield "caches of layers exchanged", FIRST, ATTENTION, exchanged


def named(result: Decoding, node: str, position: int) -> bool:
    """Return whether a fault is named at its node and position."""
    first = result.first_break
    return first is not None and node in first.node and first.position == position


def main() -> int:
    """Build, judge, plant and judge again; return 1 if something is named that is right, or not named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CONFIGS, default=[*CONFIGS], metavar="MODEL")
    failed = False
    for name in parser.parse_args().models:
        subject = Subject(CONFIGS[name])
        with tempfile.TemporaryDirectory() as folder:
            file = genai.build(CONFIGS[name], Path(folder), ("fp32",))["fp32"]
            runtime = subject.in_runtime(Path(folder) / "fp32")
        result = subject.decoding(file)
        print(f"{name}: {result.headline}")
        print(f"  {result.judged} of {result.values} values judged; its own runtime: {runtime}", flush=True)
        if name in WRONG:
            failed |= not named(result, ATTENTION, WINDOW)
            genai.attribute("attn/GroupQueryAttention", "local_window_size", WINDOW)(file)
            result = subject.decoding(file)
            print(f"  with the window in the file: {result.headline}", flush=True)
        failed |= not result.close
        for kind, position, node, plant in faults() if name not in WRONG else ():
            changed = onnx.ModelProto.FromString(file.SerializeToString())
            plant(changed)
            result = subject.decoding(changed)
            is_named = named(result, node, position)
            print(f"  {'named' if is_named else 'MISSED'}: {kind}, from {position}: {result.headline}", flush=True)
            failed |= not is_named
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
