"""Mixtral with a module for each expert, whose weights transformers stacks."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu
from transformers import MixtralConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class Expert(nn.Module):
    def __init__(self, width: int, inner: int, bug: str | None):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)
        self.activation = gelu if bug == "activation" else silu

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.activation(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    def __init__(self, config: MixtralConfig, bug: str | None):
        super().__init__()
        self.bug, self.count = bug, config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        sizes = config.hidden_size, config.intermediate_size
        self.experts = nn.ModuleList(Expert(*sizes, bug) for _ in range(config.num_local_experts))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        logits = self.gate(rows)
        if self.bug == "shares not normalized":
            shares, chosen = logits.softmax(-1).topk(self.count)
        else:
            best, chosen = logits.topk(self.count)
            shares = best.softmax(-1)
        mixed = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            row, column = torch.where(chosen == index)
            mixed = mixed.index_add(0, row, expert(rows[row]) * shares[row, column, None])
        return mixed.view_as(x)


class Layer(nn.Module):
    def __init__(self, config: MixtralConfig, bug: str | None):
        super().__init__()
        self.bug, self.width, self.theta = bug, config.head_dim, config.rope_parameters["rope_theta"]
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.wq = nn.Linear(config.hidden_size, heads * self.width, bias=False)
        self.wk, self.wv = (nn.Linear(config.hidden_size, groups * self.width, bias=False) for _ in range(2))
        self.wo = nn.Linear(heads * self.width, config.hidden_size, bias=False)
        self.norm_a, self.norm_m = (nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.mixture = Mixture(config, bug)

    def rotate(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * self.theta ** (-torch.arange(0, self.width, 2) / self.width)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        if self.bug == "sign of the angle":
            sin = -sin
        real, imaginary = x.chunk(2, -1)
        return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], -1)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.width)) for layer in (self.wq, self.wk, self.wv))
        q, k = self.rotate(q).unflatten(2, (k.shape[2], -1)), self.rotate(k)
        scores = torch.einsum("bigqd,bjgd->bgqij", q, k) / self.width**0.5
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return self.wo(torch.einsum("bgqij,bjgd->bigqd", scores.softmax(-1), v).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_a(x))
        return x + self.mixture(self.norm_m(x))


class Mixtral(nn.Module):
    def __init__(self, config: MixtralConfig, bug: str | None):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.Sequential(*(Layer(config, bug) for _ in range(config.num_hidden_layers)))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.norm(self.layers(self.embed(ids))))


def make(bug: str | None = None) -> Pair:
    settings = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
    a = build("MixtralForCausalLM", DECODER | EAGER | settings)
    b = Mixtral(a.config, bug)
    copy_parts(b, a, embed="model.embed_tokens", norm="model.norm", output="lm_head")
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        copy_parts(layer, own, norm_a="input_layernorm", norm_m="post_attention_layernorm")
        copy(layer.mixture.gate, own.mlp.gate)
        for name in ("q", "k", "v", "o"):
            copy(layer.get_submodule(f"w{name}"), own.self_attn.get_submodule(f"{name}_proj"))
        stacked = own.mlp.experts
        for expert, gate_up, down in zip(layer.mixture.experts, stacked.gate_up_proj, stacked.down_proj, strict=True):
            gate, up = gate_up.chunk(2)
            expert.w1.weight.data.copy_(gate)
            expert.w3.weight.data.copy_(up)
            expert.w2.weight.data.copy_(down)
    return a, b, (token_ids(),), (token_ids(),)
