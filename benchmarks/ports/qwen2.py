"""Qwen2 with one biased projection for each group of heads, and attention over groups without repeated keys."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import Qwen2Config

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class Scale(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    """A whole layer, without modules for the attention and the multilayer perceptron."""

    def __init__(self, config: Qwen2Config, bug: str | None):
        super().__init__()
        self.bug, self.groups = bug, config.num_key_value_heads
        self.width = config.hidden_size // config.num_attention_heads
        heads = config.num_attention_heads + 2 * self.groups
        self.pre, self.post = (Scale(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.packed = nn.Linear(config.hidden_size, heads * self.width)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.expand = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.shrink = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x[..., : self.width // 2], x[..., self.width // 2 :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # [batch, length, groups, queries of the group with its key and value, width]
        packed = self.packed(x).unflatten(-1, (self.groups, -1, self.width))
        q, k, v = packed[..., :-2, :], packed[..., -2, :], packed[..., -1, :]
        q, k = self.turn(q, cos[:, None, None], sin[:, None, None]), self.turn(k, cos[:, None], sin[:, None])
        scores = torch.einsum("bigqd,bjgd->bgqij", q, k)
        if self.bug != "scale":
            scores = scores / self.width**0.5
        if self.bug != "mask":
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return self.out(torch.einsum("bgqij,bjgd->bigqd", scores.softmax(-1), v).flatten(2))

    def transform(self, x: Tensor) -> Tensor:
        up, gate = self.expand(x).chunk(2, -1)
        return self.shrink(up * silu(gate))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.pre(x), cos, sin)
        return x + self.transform(self.post(x))


class Qwen2(nn.Module):
    def __init__(self, config: Qwen2Config, bug: str | None):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.stack = nn.ModuleList(Layer(config, bug) for _ in range(config.num_hidden_layers))
        self.scale = Scale(config.hidden_size, config.rms_norm_eps)
        self.unembed = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        width = config.hidden_size // config.num_attention_heads
        speeds = config.rope_parameters["rope_theta"] ** (-torch.arange(0, width, 2) / width)
        angles = torch.arange(config.max_position_embeddings)[:, None] * speeds
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.stack:
            x = layer(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        return self.unembed(self.scale(x))


def make(bug: str | None = None) -> Pair:
    a = build("Qwen2ForCausalLM", DECODER | EAGER)
    b = Qwen2(a.config, bug)
    copy_parts(b, a, embed="model.embed_tokens", scale="model.norm", unembed="lm_head")
    groups = a.config.num_key_value_heads
    for own, layer in zip(a.model.layers, b.stack, strict=True):
        attention = own.self_attn
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        for name in ("weight", "bias"):
            rows = [getattr(projection, name).unflatten(0, (groups, -1)) for projection in projections]
            if name == "bias" and bug == "key bias":
                rows[1] = torch.zeros_like(rows[1])
            layer.packed.get_parameter(name).data.copy_(torch.cat(rows, 1).flatten(0, 1))
        copy_parts(layer, own, pre="input_layernorm", post="post_attention_layernorm")
        copy(layer.out, attention.o_proj)
        copy(layer.expand, own.mlp.up_proj, own.mlp.gate_proj)
        copy(layer.shrink, own.mlp.down_proj)
    return a, b, (token_ids(),), (token_ids(),)
