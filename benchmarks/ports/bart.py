"""BART with `torch.nn.MultiheadAttention`, positions that start at the first row, and functions for its two sides."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import BartConfig

from support.models.zoo import POSITIONS, SEQ2SEQ, build

from ._port import EAGER, Pair, copy, padded, token_ids

OFFSET = 2  # of the positions in the tables of transformers


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, bug: str | None, *, decodes: bool):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm_a, self.norm_m = nn.LayerNorm(width), nn.LayerNorm(width, 1e-3 if bug == "eps" else 1e-5)
        if decodes:
            self.cross, self.norm_c = nn.MultiheadAttention(width, heads, batch_first=True), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.Linear(inner, width))

    def encode(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.norm_a(x + self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0])
        return self.norm_m(x + self.mlp[1](gelu(self.mlp[0](x))))

    def decode(self, x: Tensor, encoded: Tensor, padding: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = self.norm_a(x + self.attention(x, x, x, attn_mask=later, need_weights=False)[0])
        mixed, _ = self.cross(x, encoded, encoded, key_padding_mask=padding, need_weights=False)
        x = self.norm_c(x + mixed)
        return self.norm_m(x + self.mlp[1](gelu(self.mlp[0](x))))

    def forward(self, x: Tensor, padding: Tensor, encoded: Tensor | None = None) -> Tensor:
        return self.encode(x, padding) if encoded is None else self.decode(x, encoded, padding)


class Side(nn.Module):
    """The encoder or the decoder."""

    def __init__(self, config: BartConfig, sizes: tuple[int, int, int], bug: str | None, *, decodes: bool):
        super().__init__()
        count, heads, inner = sizes
        self.places = nn.Parameter(torch.zeros(config.max_position_embeddings, config.d_model))
        self.norm = nn.LayerNorm(config.d_model)
        self.layers = nn.ModuleList(Layer(config.d_model, heads, inner, bug, decodes=decodes) for _ in range(count))

    def forward(self, x: Tensor, padding: Tensor, encoded: Tensor | None = None) -> Tensor:
        x = self.norm(x + self.places[: x.shape[1]])
        for layer in self.layers:
            x = layer(x, padding, encoded)
        return x


class Bart(nn.Module):
    def __init__(self, config: BartConfig, bug: str | None):
        super().__init__()
        self.scale = 1.0 if bug == "embeddings not scaled" else config.d_model**0.5
        self.words = nn.Embedding(config.vocab_size, config.d_model)
        encoder = config.encoder_layers, config.encoder_attention_heads, config.encoder_ffn_dim
        decoder = config.decoder_layers, config.decoder_attention_heads, config.decoder_ffn_dim
        self.encoder = Side(config, encoder, bug, decodes=False)
        self.decoder = Side(config, decoder, bug, decodes=True)
        self.offset = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, ids: Tensor, mask: Tensor, decoder_ids: Tensor) -> Tensor:
        padding = mask == 0
        encoded = self.encoder(self.words(ids) * self.scale, padding)
        x = self.decoder(self.words(decoder_ids) * self.scale, padding, encoded)
        return x @ self.words.weight.T + self.offset


def copy_attention(target: nn.MultiheadAttention, source: nn.Module) -> None:
    """Copy an attention."""
    parts = source.q_proj, source.k_proj, source.v_proj
    target.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
    target.in_proj_bias.data.copy_(torch.cat([part.bias for part in parts]))
    copy(target.out_proj, source.out_proj)


def make(bug: str | None = None) -> Pair:
    a = build("BartForConditionalGeneration", SEQ2SEQ | POSITIONS | EAGER | {"scale_embedding": True})
    a.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    b = Bart(a.config, bug).eval()
    copy(b.words, a.model.shared)
    b.offset.data.copy_(a.final_logits_bias[0])
    start = 0 if bug == "offset of the positions" else OFFSET
    for own, side in ((a.model.encoder, b.encoder), (a.model.decoder, b.decoder)):
        side.places.data.copy_(own.embed_positions.weight[start : start + len(side.places)])
        copy(side.norm, own.layernorm_embedding)
        for source, layer in zip(own.layers, side.layers, strict=True):
            copy_attention(layer.attention, source.self_attn)
            copy(layer.norm_a, source.self_attn_layer_norm)
            copy(layer.mlp[0], source.fc1)
            copy(layer.mlp[1], source.fc2)
            copy(layer.norm_m, source.final_layer_norm)
            if hasattr(source, "encoder_attn"):
                copy_attention(layer.cross, source.encoder_attn)
                copy(layer.norm_c, source.encoder_attn_layer_norm)
    args = padded(token_ids(), token_ids(6, seed=2))
    return a, b, args, args
