"""Small language models of many families of transformers, with random weights, and what they are called with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

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


LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
LATENT = ATTENTION | {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1}
BART = {"d_model": 32, "max_position_embeddings": 64, "vocab_size": WORDS, "pad_token_id": 0, **ENDS}
BART |= {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
BART |= {"decoder_start_token_id": 2}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64}
LONG |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
HYBRIDS: dict[str, dict[str, Any]] = {
    "FalconH1ForCausalLM": GROUPED | MAMBA | {"mamba_d_ssm": 64, "head_dim": 8},
    "Lfm2ForCausalLM": GROUPED | {"layer_types": ["conv", "full_attention"]},
}
FURTHER: dict[str, dict[str, Any]] = {
    "PhiForCausalLM": GROUPED,
    "Phi3ForCausalLM": GROUPED | ENDS | {"max_position_embeddings": 128, "rope_parameters": LONG},
    "GemmaForCausalLM": EXPERTS,
    "Gemma3ForCausalLM": EXPERTS | LAYERS,
    "CohereForCausalLM": GROUPED | ENDS | {"use_qk_norm": True},
    "Cohere2ForCausalLM": GROUPED | ENDS | LAYERS,
    "StableLmForCausalLM": GROUPED | {"use_qkv_bias": True, "qk_layernorm": True},
    "Olmo2ForCausalLM": GROUPED,
    "Olmo3ForCausalLM": GROUPED | LAYERS,
    "FalconForCausalLM": SIZES | {"num_attention_heads": 4, "multi_query": True},
    "BloomForCausalLM": SIZES | {"n_head": 4},
    "MptForCausalLM": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": WORDS},
    "OPTForCausalLM": ATTENTION | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "GPTJForCausalLM": GPT | {"rotary_dim": 4, "eos_token_id": 2},
    "GraniteForCausalLM": GROUPED | {"residual_multiplier": 0.3, "logits_scaling": 2.0, "attention_multiplier": 0.2},
    "GraniteMoeForCausalLM": GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoeHybridForCausalLM": GROUPED
    | MAMBA
    | {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 24,
        "layer_types": ["mamba", "attention"],
    },
    "GlmForCausalLM": EXPERTS | {"eos_token_id": 2},
    "Glm4ForCausalLM": EXPERTS | {"eos_token_id": 2},
    "Exaone4ForCausalLM": GROUPED | LAYERS,
    "SmolLM3ForCausalLM": GROUPED | ENDS | {"no_rope_layers": [1, 0]},
    "Starcoder2ForCausalLM": GROUPED | ENDS,
    "NemotronForCausalLM": GROUPED,
    "DeepseekV3ForCausalLM": LATENT
    | ROUTED
    | {"num_key_value_heads": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "GptOssForCausalLM": EXPERTS | LAYERS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2MoeForCausalLM": GROUPED
    | {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "Qwen3NextForCausalLM": EXPERTS
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
    | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    | {"layer_types": ["linear_attention", "full_attention"]},
    "Zamba2ForCausalLM": ATTENTION
    | {"mamba_d_state": 8, "mamba_ngroups": 2, "n_mamba_heads": 8, "chunk_size": 4, "hybrid_layer_ids": [1]}
    | {"num_mem_blocks": 1, "adapter_rank": 4, "use_mem_rope": True, "layers_block_type": ["mamba", "hybrid"]},
    "BartForConditionalGeneration": BART,
    "BartForCausalLM": BART | {"is_decoder": True},
    "PegasusForConditionalGeneration": BART,
    "MBartForConditionalGeneration": BART,
    "BlenderbotSmallForConditionalGeneration": BART,
    "MT5ForConditionalGeneration": MODELS["T5ForConditionalGeneration"],
}


def make(name: str) -> nn.Module:
    """Return a model by the name of its class."""
    return build(name, (MODELS | HYBRIDS | FURTHER)[name])


def arguments(name: str) -> dict[str, torch.Tensor]:
    """Return the arguments of a model: tokens, and the inputs of an encoder."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, WORDS, (SEQUENCES, TOKENS), generator=generator)
    if name.startswith("Whisper"):
        return {"input_features": torch.randn(SEQUENCES, 8, 30, generator=generator), "decoder_input_ids": tokens}
    if name.endswith("ForConditionalGeneration"):
        words = torch.randint(3, WORDS, (SEQUENCES, 9), generator=generator)
        return {"input_ids": words, "decoder_input_ids": tokens}
    return {"input_ids": tokens}
