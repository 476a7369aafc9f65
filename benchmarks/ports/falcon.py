"""Falcon, which has one key for all heads and runs attention and multilayer perceptron side by side."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import FalconConfig

from support.models.zoo import ENCODER, NO_CACHE, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class Block(nn.Module):
    """Both branches with one joined output layer."""

    def __init__(self, config: FalconConfig, bug: str | None):
        super().__init__()
        self.bug, self.heads = bug, config.num_attention_heads
        width = config.hidden_size
        self.size, self.inner = width // self.heads, config.ffn_hidden_size
        self.norm = nn.LayerNorm(width, config.layer_norm_epsilon)
        self.enter = nn.Linear(width, width + 2 * self.size + self.inner, bias=False)
        self.leave = nn.Linear(width + self.inner, width, bias=False)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        if self.bug == "sign of the halves":
            second = -second
        return x * cos + torch.cat([-second, first], -1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        entered = self.enter(self.norm(x))
        q, k, v, hidden = entered.split([x.shape[-1], self.size, self.size, self.inner], -1)
        q = self.rotate(q.unflatten(-1, (self.heads, -1)).transpose(1, 2), cos, sin)
        k = self.rotate(k[:, None], cos, sin)
        scores = q @ k.mT / self.size**0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1 if self.bug == "mask sees the next token" else 0)
        mixed = scores.where(mask, -torch.inf).softmax(-1) @ v[:, None]
        hidden = gelu(hidden, approximate="tanh" if self.bug == "activation" else "none")
        return x + self.leave(torch.cat([mixed.transpose(1, 2).flatten(2), hidden], -1))


class Falcon(nn.Module):
    def __init__(self, config: FalconConfig, bug: str | None):
        super().__init__()
        self.size, self.theta = config.hidden_size // config.num_attention_heads, config.rope_parameters["rope_theta"]
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, bug) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, ids: Tensor) -> Tensor:
        exponents = torch.arange(0, self.size, 2) / self.size
        angles = torch.outer(torch.arange(ids.shape[1]), self.theta**-exponents).repeat(1, 2)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        return self.norm(x) @ self.embed.weight.T


def make(bug: str | None = None) -> Pair:
    a = build("FalconForCausalLM", ENCODER | NO_CACHE | EAGER | {"ffn_hidden_size": 48})
    b = Falcon(a.config, bug)
    copy_parts(b, a.transformer, embed="word_embeddings", norm="ln_f")
    for own, block in zip(a.transformer.h, b.blocks, strict=True):
        copy(block.norm, own.input_layernorm)
        copy(block.enter, own.self_attention.query_key_value, own.mlp.dense_h_to_4h)
        block.leave.weight.data.copy_(torch.cat([own.self_attention.dense.weight, own.mlp.dense_4h_to_h.weight], 1))
    return a, b, (token_ids(),), (token_ids(),)
