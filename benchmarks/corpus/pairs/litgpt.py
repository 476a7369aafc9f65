"""Pythia and Llama of LitGPT."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from support.models.zoo import build

from ._pair import EAGER, Pair, State, joined, renamed, token_ids

HEADS = 4
SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": HEADS, "use_cache": False}
LIT = {"padded_vocab_size": 96, "n_layer": 4, "n_head": HEADS, "n_embd": 32, "block_size": 32}


def _port(**settings: Any) -> nn.Module:
    from litgpt import GPT, Config

    return GPT(Config(**LIT, **settings))


def _of_llama(state: State) -> dict[str, Tensor]:
    return renamed(
        joined(state, r".*\.#\.weight", ("q_proj", "k_proj", "v_proj"), "qkv"),
        (r"^model\.embed_tokens", "transformer.wte"),
        (r"^model\.layers", "transformer.h"),
        (r"^model\.norm", "transformer.ln_f"),
        (r"self_attn\.qkv", "attn.qkv"),
        (r"self_attn\.o_proj", "attn.proj"),
        (r"input_layernorm", "norm_1"),
        (r"post_attention_layernorm", "norm_2"),
        (r"gate_proj", "fc_1"),
        (r"up_proj", "fc_2"),
        (r"down_proj", "proj"),
    )


def _of_pythia(state: State) -> dict[str, Tensor]:
    found = renamed(
        state,
        (r"rotary_emb|attention\.(bias|masked_bias)", None),
        (r"^gpt_neox\.embed_in", "transformer.wte"),
        (r"^gpt_neox\.layers", "transformer.h"),
        (r"^gpt_neox\.final_layer_norm", "transformer.ln_f"),
        (r"attention\.query_key_value", "attn.qkv"),
        (r"attention\.dense", "attn.proj"),
        (r"input_layernorm", "norm_1"),
        (r"post_attention_layernorm", "norm_2"),
        (r"dense_h_to_4h", "fc"),
        (r"dense_4h_to_h", "proj"),
    )
    for name, tensor in found.items():
        if ".qkv." in name:  # queries, keys and values of one head after the other
            found[name] = torch.cat([*tensor.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(1, 2)])
    return found


def _inputs() -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return (token_ids(),), (token_ids(),)


PAIRS = {
    "litgpt_pythia": Pair(
        partial(build, "GPTNeoXForCausalLM", SIZES | EAGER | {"intermediate_size": 64}),
        partial(_port, rotary_percentage=0.25, parallel_residual=True, bias=True, intermediate_size=64),
        _of_pythia,
        _inputs,
        ("litgpt", "lightning"),
    ),
    "litgpt_llama": Pair(
        partial(build, "LlamaForCausalLM", SIZES | EAGER | {"intermediate_size": 48, "num_key_value_heads": 2}),
        partial(
            _port, rotary_percentage=1.0, parallel_residual=False, bias=False, n_query_groups=2, norm_eps=1e-6,
            norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=48,
        ),
        _of_llama,
        _inputs,
        ("litgpt", "lightning"),
    ),
}  # fmt: skip
