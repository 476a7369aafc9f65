"""ESM-2 of fair-esm."""

from torch import Tensor, nn

from support.models.zoo import build

from ._pair import EAGER, Calling, Pair, State, renamed, token_ids


def _original() -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    tokens = {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1, "token_dropout": True}
    layers = {"position_embedding_type": "rotary", "emb_layer_norm_before": False, "layer_norm_eps": 1e-5}
    return build("EsmForMaskedLM", sizes | tokens | layers | EAGER)


def _port() -> nn.Module:
    from esm.model.esm2 import ESM2

    model = ESM2(num_layers=4, embed_dim=32, attention_heads=4)
    return Calling(model, lambda model, tokens: model(tokens)["logits"])


def _weights(state: State) -> dict[str, Tensor]:
    found = renamed(
        state,
        (r"^esm\.rotary_embeddings", None),
        (r"^esm\.embeddings\.word_embeddings", "embed_tokens"),
        (r"^esm\.encoder\.layer", "layers"),
        (r"^esm\.encoder\.", ""),
        (r"^esm\.contact_head", "contact_head"),
        (r"attention\.self\.(query|key|value)", r"self_attn.\1"),
        (r"attention\.output\.dense", "self_attn.out_proj"),
        (r"attention\.LayerNorm", "self_attn_layer_norm"),
        (r"intermediate\.dense", "fc1"),
        (r"output\.dense", "fc2"),
        (r"(layers\.\d+)\.LayerNorm", r"\1.final_layer_norm"),
        (r"self_attn\.query", "self_attn.q_proj"),
        (r"self_attn\.key", "self_attn.k_proj"),
        (r"self_attn\.value", "self_attn.v_proj"),
        (r"lm_head\.decoder\.weight", "lm_head.weight"),
        (r"lm_head\.decoder\.bias", None),
        (r"^", "model."),
    )
    frequencies = state["esm.rotary_embeddings.inv_freq"]
    return found | {f"model.layers.{index}.self_attn.rot_emb.inv_freq": frequencies for index in range(4)}


def _inputs() -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    tokens = token_ids(24, length=9)
    tokens[0, 4] = 32  # a masked one
    return (tokens,), (tokens,)


PAIRS = {"fair_esm": Pair(_original, _port, _weights, _inputs, ("fair-esm",))}
