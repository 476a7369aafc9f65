"""Qwen3-MoE with all experts computed for each token at once, and shares of 0 for those that are not chosen."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers import Qwen3MoeConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class GroupedAttention(nn.Module):
    def __init__(self, config: Qwen3MoeConfig, bug: str | None):
        super().__init__()
        self.bug, self.eps, self.size = bug, config.rms_norm_eps, config.head_dim
        self.counts = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        self.wqkv = nn.Linear(config.hidden_size, sum(self.counts) * self.size, bias=False)
        self.wo = nn.Linear(self.counts[0] * self.size, config.hidden_size, bias=False)
        self.q_gain, self.k_gain = (nn.Parameter(torch.ones(self.size)) for _ in range(2))

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.bug == "norm of the key":
            return rms_norm(q, (self.size,), self.q_gain, self.eps), k
        return rms_norm(q, (self.size,), self.q_gain, self.eps), rms_norm(k, (self.size,), self.k_gain, self.eps)

    def rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        real, imaginary = x.unflatten(-1, (2, -1)).unbind(-2)
        cos, sin = turns.unbind(-1)
        return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -2).flatten(-2)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        q, k, v = self.wqkv(x).unflatten(-1, (-1, self.size)).transpose(1, 2).split(self.counts, 1)
        q, k = self.normed(q, k)
        q, k = self.rotate(q, turns), self.rotate(k, turns)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class AllExperts(nn.Module):
    def __init__(self, config: Qwen3MoeConfig, bug: str | None):
        super().__init__()
        self.bug, self.count = bug, config.num_experts_per_tok
        width, inner, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
        self.router = nn.Linear(width, experts, bias=False)
        self.w_in = nn.Parameter(torch.zeros(experts, width, 2 * inner))
        self.w_out = nn.Parameter(torch.zeros(experts, inner, width))

    def shares(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        best, chosen = probabilities.topk(self.count, -1)
        if self.bug != "shares not normalized":
            best = best / best.sum(-1, keepdim=True)
        return torch.zeros_like(probabilities).scatter(-1, chosen, best)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = torch.einsum("btd,edf->btef", x, self.w_in).chunk(2, -1)
        outputs = torch.einsum("btef,efd->bted", silu(gate) * up, self.w_out)
        return torch.einsum("bte,bted->btd", self.shares(x), outputs)


class Dense(nn.Module):
    def __init__(self, config: Qwen3MoeConfig):
        super().__init__()
        self.w_in = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.w_out = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w_in(x).chunk(2, -1)
        return self.w_out(silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: Qwen3MoeConfig, bug: str | None, index: int):
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.attention = GroupedAttention(config, bug)
        self.ffn = Dense(config) if index in config.mlp_only_layers else AllExperts(config, bug)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), turns)
        return x + self.ffn(self.norm2(x))


class Qwen3Moe(nn.Module):
    def __init__(self, config: Qwen3MoeConfig, bug: str | None):
        super().__init__()
        self.size, self.theta = config.head_dim, config.rope_parameters["rope_theta"]
        self.tok = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, bug, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.unembed = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        speeds = 1.0 / self.theta ** (torch.arange(0, self.size, 2) / self.size)
        angles = torch.arange(ids.shape[1])[:, None] * speeds
        turns = torch.stack([angles.cos(), angles.sin()], -1)
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x, turns)
        return self.unembed(self.norm(x))


def make(bug: str | None = None) -> Pair:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    settings = experts | {"mlp_only_layers": [0], "experts_implementation": "eager"}
    a = build("Qwen3MoeForCausalLM", DECODER | EAGER | settings)
    b = Qwen3Moe(a.config, bug)
    copy_parts(b, a, tok="model.embed_tokens", norm="model.norm", unembed="lm_head")
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        copy_parts(layer, own, norm1="input_layernorm", norm2="post_attention_layernorm")
        copy(layer.attention.wqkv, own.self_attn.q_proj, own.self_attn.k_proj, own.self_attn.v_proj)
        copy(layer.attention.wo, own.self_attn.o_proj)
        layer.attention.q_gain.data.copy_(own.self_attn.q_norm.weight)
        layer.attention.k_gain.data.copy_(own.self_attn.k_norm.weight)
        if isinstance(layer.ffn, Dense):
            copy(layer.ffn.w_in, own.mlp.gate_proj, own.mlp.up_proj)
            copy(layer.ffn.w_out, own.mlp.down_proj)
        else:
            copy(layer.ffn.router, own.mlp.gate)
            layer.ffn.w_in.data.copy_(own.mlp.experts.gate_up_proj.mT)
            layer.ffn.w_out.data.copy_(own.mlp.experts.down_proj.mT)
    return a, b, (token_ids(),), (token_ids(),)
