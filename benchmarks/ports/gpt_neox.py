"""GPT-NeoX, whose projection has the query, key and value of each head side by side, with split projections."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import GPTNeoXConfig

from support.models.zoo import ENCODER, NO_CACHE, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class Rotary(nn.Module):
    """Rotates a part of each head."""

    def __init__(self, config: GPTNeoXConfig, bug: str | None):
        super().__init__()
        width = config.hidden_size // config.num_attention_heads
        self.size = (
            width if bug == "whole heads rotated" else int(width * config.rope_parameters["partial_rotary_factor"])
        )
        self.theta = config.rope_parameters["rope_theta"]

    def forward(self, x: Tensor) -> Tensor:
        exponents = torch.arange(0, self.size, 2) / self.size
        angles = torch.arange(x.shape[-2])[:, None] / self.theta**exponents
        turned, rest = x.split([self.size, x.shape[-1] - self.size], -1)
        real, imaginary = turned.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin, rest], -1)


class Attention(nn.Module):
    def __init__(self, config: GPTNeoXConfig, bug: str | None):
        super().__init__()
        self.heads = config.num_attention_heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.hidden_size, config.hidden_size) for _ in range(4)
        )
        self.rotary = Rotary(config, bug)

    def forward(self, x: Tensor) -> Tensor:
        layers = self.query, self.key, self.value
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in layers)
        mixed = scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config: GPTNeoXConfig, bug: str | None):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.bug = bug
        self.norm_a, self.norm_m = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attention = Attention(config, bug)
        self.up, self.down = nn.Linear(width, config.intermediate_size), nn.Linear(config.intermediate_size, width)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm_a(x))
        normed = self.norm_m(x + attended if self.bug == "residuals in sequence" else x)
        hidden = self.up(normed)
        hidden = gelu(hidden, approximate="tanh") if self.bug == "activation" else gelu(hidden)
        return x + attended + self.down(hidden)


class GptNeoX(nn.Module):
    def __init__(self, config: GPTNeoXConfig, bug: str | None):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.Sequential(*(Block(config, bug) for _ in range(config.num_hidden_layers)))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.wte(ids))))


def make(bug: str | None = None) -> Pair:
    settings = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
    a = build("GPTNeoXForCausalLM", ENCODER | NO_CACHE | EAGER | settings)
    b = GptNeoX(a.config, bug)
    copy_parts(b, a, wte="gpt_neox.embed_in", norm="gpt_neox.final_layer_norm", head="lm_head")
    heads = a.config.num_attention_heads
    for own, block in zip(a.gpt_neox.layers, b.blocks, strict=True):
        fused, attention = own.attention.query_key_value, block.attention
        for name in ("weight", "bias"):
            parts = getattr(fused, name).unflatten(0, (heads, 3, -1)).unbind(1)
            for layer, part in zip((attention.query, attention.key, attention.value), parts, strict=True):
                layer.get_parameter(name).data.copy_(part.flatten(0, 1))
        copy(attention.output, own.attention.dense)
        copy(block.norm_a, own.input_layernorm)
        copy(block.norm_m, own.post_attention_layernorm)
        copy(block.up, own.mlp.dense_h_to_4h)
        copy(block.down, own.mlp.dense_4h_to_h)
    return a, b, (token_ids(),), (token_ids(),)
