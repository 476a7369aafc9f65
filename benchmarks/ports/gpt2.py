"""GPT-2 with linear layers in place of its `Conv1D`, split projections and a head without a module."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import GPT2Config

from support.models.zoo import GPT, build

from ._port import EAGER, Pair, copy_parts, token_ids


class Block(nn.Module):
    def __init__(self, config: GPT2Config, bug: str | None):
        super().__init__()
        width = config.hidden_size
        self.bug, self.heads, self.width = bug, config.n_head, width // config.n_head
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.width)).transpose(1, 2)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        scores = torch.einsum("bhid,bhjd->bhij", q * self.width**-0.5, k)
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def transform(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x), approximate="none" if self.bug == "activation" else "tanh"))

    def forward(self, x: Tensor) -> Tensor:
        if self.bug == "residual after the norm":
            x = self.before(x)
            x = x + self.attend(x)
        else:
            x = x + self.attend(self.before(x))
        return x + self.transform(self.between(x))


class Gpt2(nn.Module):
    def __init__(self, config: GPT2Config, bug: str | None):
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Parameter(torch.zeros(config.n_positions, config.hidden_size))
        self.blocks = nn.ModuleList(Block(config, bug) for _ in range(config.n_layer))
        self.last = nn.LayerNorm(config.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.last(x) @ self.words.weight.T


def port_of(a: nn.Module, bug: str | None = None) -> Gpt2:
    """Return the port of a `GPT2LMHeadModel`, with its weights."""
    b = Gpt2(a.config, bug)
    own = a.transformer
    copy_parts(b, own, words="wte", last="ln_f")
    b.positions.data.copy_(own.wpe.weight)
    for layer, block in zip(own.h, b.blocks, strict=True):
        copy_parts(block, layer, before="ln_1", between="ln_2")
        for target, weight, bias in zip(
            (block.q, block.k, block.v),
            layer.attn.c_attn.weight.chunk(3, 1),
            layer.attn.c_attn.bias.chunk(3),
            strict=True,
        ):
            target.weight.data.copy_(weight.T)
            target.bias.data.copy_(bias)
        for target, source in (
            (block.o, layer.attn.c_proj),
            (block.up, layer.mlp.c_fc),
            (block.down, layer.mlp.c_proj),
        ):
            is_forgotten = bug == "transposed weight" and target is block.o
            target.weight.data.copy_(source.weight if is_forgotten else source.weight.T)
            target.bias.data.copy_(source.bias)
    return b


def make(bug: str | None = None) -> Pair:
    a = build("GPT2LMHeadModel", GPT | EAGER | {"n_positions": 16})
    return a, port_of(a, bug), (token_ids(),), (token_ids(),)
