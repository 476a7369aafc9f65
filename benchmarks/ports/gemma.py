"""Gemma with the scale of its embeddings, the 1 of its gains and the scale of its queries folded into the weights."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import GemmaConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, token_ids


class Attention(nn.Module):
    def __init__(self, config: GemmaConfig):
        super().__init__()
        self.heads, self.groups, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.wq = nn.Linear(config.hidden_size, self.heads * self.width, bias=False)
        self.wkv = nn.Linear(config.hidden_size, 2 * self.groups * self.width, bias=False)
        self.wo = nn.Linear(self.heads * self.width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.wq(x), *self.wkv(x).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (-1, self.width)).transpose(1, 2) for part in (q, k, v))
        q, k = rotate(q, *turns), rotate(k, *turns)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of each head."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin  # the signs are in `sin`


class Layer(nn.Module):
    def __init__(self, config: GemmaConfig, bug: str | None):
        super().__init__()
        self.norm_a, self.norm_m = (nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.attention = Attention(config)
        self.gate, self.up = (nn.Linear(config.hidden_size, config.intermediate_size, bias=False) for _ in range(2))
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.approximation = "none" if bug == "activation" else "tanh"

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm_a(x), turns)
        y = self.norm_m(x)
        return x + self.down(gelu(self.gate(y), approximate=self.approximation) * self.up(y))


class Gemma(nn.Module):
    def __init__(self, config: GemmaConfig, bug: str | None):
        super().__init__()
        self.width, self.theta = config.head_dim, config.rope_parameters["rope_theta"]
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, bug) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def turns(self, length: int) -> tuple[Tensor, Tensor]:
        exponents = torch.arange(0, self.width, 2) / self.width
        angles = torch.arange(length)[:, None] / self.theta**exponents
        return torch.cat([angles, angles], -1).cos(), torch.cat([-angles, angles], -1).sin()

    def forward(self, ids: Tensor) -> Tensor:
        x, turns = self.embed(ids), self.turns(ids.shape[1])
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


def make(bug: str | None = None) -> Pair:
    a = build("GemmaForCausalLM", DECODER | EAGER)
    b = Gemma(a.config, bug)
    b.embed.weight.data.copy_(a.model.embed_tokens.weight * (1 if bug == "embeddings" else a.config.hidden_size**0.5))
    b.head.weight.data.copy_(a.lm_head.weight)
    one = 0.9 if bug == "gains" else 1.0
    b.norm.weight.data.copy_(1 + a.model.norm.weight)
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        layer.norm_a.weight.data.copy_(1 + own.input_layernorm.weight)
        layer.norm_m.weight.data.copy_(one + own.post_attention_layernorm.weight)
        attention = own.self_attn
        layer.attention.wq.weight.data.copy_(attention.q_proj.weight * a.config.head_dim**-0.5)
        copy(layer.attention.wkv, attention.k_proj, attention.v_proj)
        copy(layer.attention.wo, attention.o_proj)
        for name in ("gate", "up", "down"):
            copy(layer.get_submodule(name), own.mlp.get_submodule(f"{name}_proj"))
    return a, b, (token_ids(),), (token_ids(),)
