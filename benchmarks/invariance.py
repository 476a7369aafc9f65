"""Check in which ways language models of transformers can be called, all of which have to give the same numbers.

The models are small and have random weights; each runs in float64, too, so that a relation that breaks is no rounding.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _measure import describe_environment, table

from filch.compare import Invariance, check_invariance

# The models live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.models.zoo import build

TOKENS, WORDS, SEQUENCES = 20, 96, 3
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": WORDS, "pad_token_id": 0}
ATTENTION = SIZES | {"intermediate_size": 48, "num_attention_heads": 4}
GROUPED = ATTENTION | {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"head_dim": 8}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": WORDS, "bos_token_id": 1}
WHISPER = {"d_model": 32, "num_mel_bins": 8, "max_source_positions": 15, "max_target_positions": 40}
WHISPER |= {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
WHISPER |= {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": GROUPED,
    "Qwen2ForCausalLM": GROUPED,
    "Qwen3ForCausalLM": EXPERTS,
    "MistralForCausalLM": GROUPED | {"sliding_window": 5},
    "Gemma2ForCausalLM": EXPERTS | {"sliding_window": 5},
    "GPTNeoXForCausalLM": ATTENTION,
    "GPT2LMHeadModel": GPT | {"eos_token_id": 2, "pad_token_id": 0},
    "MixtralForCausalLM": GROUPED | {"num_local_experts": 4},
    "Qwen3MoeForCausalLM": EXPERTS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "MambaForCausalLM": SIZES | {"state_size": 8},
    "Mamba2ForCausalLM": SIZES | {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    "BambaForCausalLM": GROUPED | MAMBA | {"attn_layer_indices": [1]},
    "JambaForCausalLM": GROUPED
    | {"num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    "T5ForConditionalGeneration": {
        "d_model": 32,
        "d_ff": 48,
        "d_kv": 8,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": WORDS,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
    "WhisperForConditionalGeneration": WHISPER,
}


def arguments(name: str) -> dict[str, torch.Tensor]:
    """Return the arguments of a model: tokens, and the inputs of an encoder."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, WORDS, (SEQUENCES, TOKENS), generator=generator)
    if name.startswith("Whisper"):
        return {"input_features": torch.randn(SEQUENCES, 8, 30, generator=generator), "decoder_input_ids": tokens}
    if name.startswith(("T5", "Bart")):
        words = torch.randint(3, WORDS, (SEQUENCES, 9), generator=generator)
        return {"input_ids": words, "decoder_input_ids": tokens}
    return {"input_ids": tokens}


def cells(result: Invariance, seconds: float) -> list[str]:
    """Return the row of a model."""
    counts = [sum(row.verdict == verdict for row in result.rows) for verdict in ("holds", "breaks", "fails", "not run")]
    compared = sum(row.compared for row in result.rows)
    return [result.model, *map(str, counts), str(compared), f"{seconds:.0f}"]


def main() -> int:
    """Check all models; print what breaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    rows = []
    for name in parser.parse_args().models:
        start = time.perf_counter()
        result = check_invariance(build(name, MODELS[name]), kwargs=arguments(name), quantized=["fp8"])
        rows.append(cells(result, time.perf_counter() - start))
        for row in result.rows:
            if row.verdict in ("breaks", "fails"):
                print(f"{row.verdict.upper()} {name}, {row.relation}: {row.first or row.note}", flush=True)
    print()
    print(table(("model", "hold", "break", "fail", "not run", "values", "seconds"), rows), end="\n\n")
    print(describe_environment("torch", "transformers"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
