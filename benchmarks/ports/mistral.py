"""Mistral with the gains of its norms folded into the layers that read them, and a window for its attention."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu, softmax
from transformers import MistralConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, token_ids

WINDOW = 4


class Layer(nn.Module):
    def __init__(self, config: MistralConfig, bug: str | None):
        super().__init__()
        self.bug, self.eps, self.width = bug, config.rms_norm_eps, config.head_dim
        self.theta = config.rope_parameters["rope_theta"]
        self.sizes = [size * self.width for size in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
        self.qkv = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.mixed = nn.Linear(self.sizes[0], config.hidden_size, bias=False)
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, x.shape[-1:], eps=1e-3 if self.bug == "eps" else self.eps)

    def rotate(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1]), self.theta ** -(torch.arange(0, self.width, 2) / self.width))
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first, second = x.chunk(2, -1)
        return torch.stack([first * cos - second * sin, second * cos + first * sin], -2).flatten(-2)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in self.qkv(x).split(self.sizes, -1))
        q, k = self.rotate(q).unflatten(2, (k.shape[2], -1)), self.rotate(k)
        scores = torch.einsum("bigqd,bjgd->bgqij", q, k) * self.width**-0.5
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        window = x.shape[1] if self.bug == "no window" else WINDOW
        scores = torch.where((distance >= 0) & (distance < window), scores, -torch.inf)
        return self.mixed(torch.einsum("bgqij,bjgd->bigqd", softmax(scores, -1), v).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm(x))
        gate, up = self.gate_up(self.norm(x)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


class Mistral(nn.Module):
    def __init__(self, config: MistralConfig, bug: str | None):
        super().__init__()
        self.eps = config.rms_norm_eps
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.Sequential(*(Layer(config, bug) for _ in range(config.num_hidden_layers)))
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layers(self.embed(ids))
        return self.head(rms_norm(x, x.shape[-1:], eps=self.eps))


def make(bug: str | None = None) -> Pair:
    a = build("MistralForCausalLM", DECODER | EAGER | {"sliding_window": WINDOW})
    b = Mistral(a.config, bug)
    copy(b.embed, a.model.embed_tokens)
    b.head.weight.data.copy_(a.lm_head.weight * a.model.norm.weight)
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        attention, mlp = own.self_attn, own.mlp
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        layer.qkv.weight.data.copy_(qkv * own.input_layernorm.weight)
        gate, up, gain = mlp.gate_proj.weight, mlp.up_proj.weight, own.post_attention_layernorm.weight
        layer.gate_up.weight.data.copy_(torch.cat([gate * gain, up if bug == "gain not folded" else up * gain]))
        copy(layer.mixed, attention.o_proj)
        copy(layer.down, mlp.down_proj)
    return a, b, (token_ids(),), (token_ids(),)
