"""Granite as in an engine: multipliers of the ends in weights, projections packed by group, gate and up by row."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers import GraniteConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, token_ids


class PackedLayer(nn.Module):
    """A layer whose branches are added, scaled, to the residual."""

    def __init__(self, config: GraniteConfig):
        super().__init__()
        width, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
        self.size, self.groups, self.eps = width // heads, config.num_key_value_heads, config.rms_norm_eps
        self.scale, self.multiplier = config.attention_multiplier, config.residual_multiplier
        self.gains = nn.Parameter(torch.ones(2, width))
        self.packed = nn.Linear(width, (heads + 2 * self.groups) * self.size, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def norm(self, index: int, x: Tensor) -> Tensor:
        return rms_norm(x, x.shape[-1:], self.gains[index], self.eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate heads `[batch, length, ..., size]`; the signs are in `sin`."""
        shape = (x.shape[1], *[1] * (x.ndim - 3), self.size)
        return torch.addcmul(x * cos.view(shape), x.roll(self.size // 2, -1), sin.view(shape))

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        parts = self.packed(x).unflatten(-1, (self.groups, -1, self.size))
        q, k, v = parts[..., :-2, :], parts[..., -2, :], parts[..., -1, :]
        q, k = self.rotate(q, cos, sin).flatten(2, 3), self.rotate(k, cos, sin)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))

    def feed(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).unflatten(-1, (-1, 2)).unbind(-1)
        return self.down(silu(gate) * up)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = torch.add(x, self.attend(self.norm(0, x), cos, sin), alpha=self.multiplier)
        return torch.add(x, self.feed(self.norm(1, x)), alpha=self.multiplier)


class Granite(nn.Module):
    def __init__(self, config: GraniteConfig):
        super().__init__()
        self.size, self.theta = config.hidden_size // config.num_attention_heads, config.rope_parameters["rope_theta"]
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)  # scaled
        self.layers = nn.ModuleList(PackedLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)  # divided

    def angles(self, length: int) -> Tensor:
        speeds = self.theta ** (-torch.arange(0, self.size, 2) / self.size)
        return torch.arange(length)[:, None] * speeds

    def forward(self, ids: Tensor) -> Tensor:
        angles = self.angles(ids.shape[1])
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([-angles, angles], -1).sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def make(_: str | None = None) -> Pair:
    multipliers = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.125}
    settings = {name: value for name, value in DECODER.items() if name != "head_dim"}
    a = build("GraniteForCausalLM", settings | EAGER | multipliers | {"logits_scaling": 8.0})
    b = Granite(a.config)
    b.embed.weight.data.copy_(a.model.embed_tokens.weight * a.config.embedding_multiplier)
    copy(b.norm, a.model.norm)
    b.head.weight.data.copy_(a.lm_head.weight / a.config.logits_scaling)
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        attention, mlp = own.self_attn, own.mlp
        layer.gains.data.copy_(torch.stack([own.input_layernorm.weight, own.post_attention_layernorm.weight]))
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        grouped = [part.weight.unflatten(0, (layer.groups, -1)) for part in projections]
        layer.packed.weight.data.copy_(torch.cat(grouped, 1).flatten(0, 1))
        copy(layer.merge, attention.o_proj)
        layer.gate_up.weight.data.copy_(torch.stack([mlp.gate_proj.weight, mlp.up_proj.weight], 1).flatten(0, 1))
        copy(layer.down, mlp.down_proj)
    return a, b, (token_ids(),), (token_ids(),)
