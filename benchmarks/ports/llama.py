"""Llama with fused projections, interleaved rotary embeddings as complex numbers, and norms that add the residual."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class AddNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        x = x if residual is None else x + residual
        return x * (x * x).mean(-1, keepdim=True).add(self.eps).rsqrt() * self.gain, x


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig, bug: str | None):
        super().__init__()
        self.bug = bug
        self.heads, self.groups, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.sizes = [self.heads * self.width, self.groups * self.width, self.groups * self.width]
        self.qkv = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.o = nn.Linear(self.heads * self.width, config.hidden_size, bias=False)

    def rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        if self.bug == "rotary layout":  # of halves, as in transformers, but the weights are interleaved
            first, second = x.chunk(2, -1)
            rotated = torch.complex(first, second) * turns[:, None]
            return torch.cat([rotated.real, rotated.imag], -1)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns[:, None]).flatten(-2)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in self.qkv(x).split(self.sizes, -1))
        q, k = self.rotate(q, turns), self.rotate(k, turns)
        repeats = self.heads // self.groups
        q, k, v = q.transpose(1, 2), *(y.repeat_interleave(repeats, 2).transpose(1, 2) for y in (k, v))
        return self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config: LlamaConfig, bug: str | None):
        super().__init__()
        self.bug = bug
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        if self.bug == "gate and up swapped":
            gate, up = up, gate
        return self.down(silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config: LlamaConfig, bug: str | None):
        super().__init__()
        eps = 1e-3 if bug == "eps" else config.rms_norm_eps
        self.norm1, self.norm2 = AddNorm(config.hidden_size, config.rms_norm_eps), AddNorm(config.hidden_size, eps)
        self.attention, self.mlp = Attention(config, bug), Mlp(config, bug)

    def forward(self, x: Tensor, residual: Tensor | None, turns: Tensor) -> tuple[Tensor, Tensor]:
        x, residual = self.norm1(x, residual)
        x, residual = self.norm2(self.attention(x, turns), residual)
        return self.mlp(x), residual


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig, bug: str | None):
        super().__init__()
        self.width, self.theta = config.head_dim, config.rope_parameters["rope_theta"]
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, bug) for _ in range(config.num_hidden_layers))
        self.norm = AddNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        speeds = self.theta ** -(torch.arange(0, self.width, 2) / self.width)
        angles = torch.outer(torch.arange(ids.shape[1]), speeds)
        turns = torch.polar(torch.ones_like(angles), angles)
        x, residual = self.tokens(ids), None
        for block in self.blocks:
            x, residual = block(x, residual, turns)
        return self.head(self.norm(x, residual)[0])


def interleaved(weight: Tensor, width: int) -> Tensor:
    """Return the rows of a projection with the two halves of each head interleaved."""
    return weight.unflatten(0, (-1, 2, width // 2)).transpose(1, 2).reshape(weight.shape)


def make(bug: str | None = None) -> Pair:
    a = build("LlamaForCausalLM", DECODER | EAGER)
    b = Llama(a.config, bug)
    copy_parts(b, a, tokens="model.embed_tokens", head="lm_head")
    b.norm.gain.data.copy_(a.model.norm.weight)
    for own, block in zip(a.model.layers, b.blocks, strict=True):
        block.norm1.gain.data.copy_(own.input_layernorm.weight)
        block.norm2.gain.data.copy_(own.post_attention_layernorm.weight)
        q, k, v = (layer.weight for layer in (own.self_attn.q_proj, own.self_attn.k_proj, own.self_attn.v_proj))
        width = a.config.head_dim
        block.attention.qkv.weight.data.copy_(torch.cat([interleaved(q, width), interleaved(k, width), v]))
        copy(block.attention.o, own.self_attn.o_proj)
        copy(block.mlp.gate_up, own.mlp.gate_proj, own.mlp.up_proj)
        copy(block.mlp.down, own.mlp.down_proj)
    return a, b, (token_ids(),), (token_ids(),)
