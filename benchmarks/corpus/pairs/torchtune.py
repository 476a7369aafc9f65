"""Llama 3, Gemma and Qwen 2 of torchtune."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from support.models.zoo import build

from ._pair import EAGER, Pair, State, interleaved, renamed, token_ids

HEADS, KEYS = 4, 2
SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS, "head_dim": 8, "use_cache": False, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
}  # fmt: skip
TUNE = {
    "vocab_size": 96, "embed_dim": 32, "intermediate_dim": 48, "num_layers": 4, "num_heads": HEADS,
    "num_kv_heads": KEYS, "max_seq_len": 32, "attn_dropout": 0.0, "norm_eps": 1e-6, "rope_base": 10_000,
}  # fmt: skip


def _llama() -> nn.Module:
    from torchtune.models.llama3 import llama3

    return llama3(**TUNE)


def _gemma() -> nn.Module:
    from torchtune.models.gemma import gemma

    return gemma(**TUNE, head_dim=8)


def _qwen() -> nn.Module:
    from torchtune.models.qwen2 import qwen2

    return qwen2(**TUNE, tie_word_embeddings=False)


def _weights(state: State, *, rotates_neighbors: bool) -> dict[str, Tensor]:
    found = renamed(
        state,
        (r"^model\.embed_tokens", "tok_embeddings"),
        (r"^model\.norm\.weight", "norm.scale"),
        (r"^model\.", ""),
        (r"self_attn\.o_proj", "attn.output_proj"),
        (r"self_attn", "attn"),
        (r"gate_proj", "w1"),
        (r"down_proj", "w2"),
        (r"up_proj", "w3"),
        (r"input_layernorm\.weight", "sa_norm.scale"),
        (r"post_attention_layernorm\.weight", "mlp_norm.scale"),
        (r"^lm_head", "output"),
    )
    if rotates_neighbors:
        for name, tensor in found.items():
            if ".q_proj." in name or ".k_proj." in name:
                found[name] = interleaved(tensor, HEADS if ".q_proj." in name else KEYS)
    return found


def _gemma_weights(state: State) -> dict[str, Tensor]:
    return renamed(_weights(state, rotates_neighbors=True), (r"^output", None))  # tied


def _pair(
    model: str, port: Callable[[], nn.Module], weights: Callable[[State], dict[str, Tensor]], **settings: object
) -> Pair:
    original = partial(build, model, SIZES | EAGER | settings)
    packages = ("torchtune", "torchao")
    return Pair(original, port, weights, lambda: ((token_ids(),), (token_ids(),)), packages)


PAIRS = {
    "torchtune_llama": _pair("LlamaForCausalLM", _llama, partial(_weights, rotates_neighbors=True)),
    "torchtune_gemma": _pair("GemmaForCausalLM", _gemma, _gemma_weights, tie_word_embeddings=True),
    "torchtune_qwen2": _pair("Qwen2ForCausalLM", _qwen, partial(_weights, rotates_neighbors=False)),
}
