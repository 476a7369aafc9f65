"""T5 with position biases that are computed once for each stack, and joined projections."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu
from transformers import T5Config

from support.models.zoo import T5 as SETTINGS
from support.models.zoo import build

from ._port import EAGER, Pair, copy, token_ids


class Attention(nn.Module):
    """Attention with a bias for each pair of positions; to itself if no other sequence is given."""

    def __init__(self, config: T5Config, bug: str | None):
        super().__init__()
        self.bug, self.heads = bug, config.num_heads
        inner = config.num_heads * config.d_kv
        self.wq, self.wkv = (
            nn.Linear(config.d_model, inner, bias=False),
            nn.Linear(config.d_model, 2 * inner, bias=False),
        )
        self.wo = nn.Linear(inner, config.d_model, bias=False)

    def forward(self, x: Tensor, bias: Tensor | None = None, other: Tensor | None = None) -> Tensor:
        q, k, v = self.wq(x), *self.wkv(x if other is None else other).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.mT
        if self.bug == "scaled scores":
            scores = scores / math.sqrt(q.shape[-1])
        if bias is not None:
            scores = scores + bias
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, config: T5Config, bug: str | None, *, decodes: bool):
        super().__init__()
        count = 3 if decodes else 2
        self.norms = nn.ModuleList(nn.RMSNorm(config.d_model, config.layer_norm_epsilon) for _ in range(count))
        self.attention = Attention(config, bug)
        self.cross = Attention(config, bug) if decodes else None
        self.up = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.activation = gelu if bug == "activation" else relu

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None) -> Tensor:
        x = x + self.attention(self.norms[0](x), bias)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), other=encoded)
        return x + self.down(self.activation(self.up(self.norms[-1](x))))


class Stack(nn.Module):
    def __init__(self, config: T5Config, bug: str | None, *, decodes: bool):
        super().__init__()
        self.bug, self.decodes, self.farthest = bug, decodes, config.relative_attention_max_distance
        self.biases = nn.Parameter(torch.zeros(config.num_heads, config.relative_attention_num_buckets))
        self.layers = nn.ModuleList(Layer(config, bug, decodes=decodes) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.d_model, config.layer_norm_epsilon)

    def bucket(self, distance: int) -> int:
        """Return the bucket of a key that is this far behind its query."""
        count = self.biases.shape[1] if self.decodes else self.biases.shape[1] // 2
        start = 0 if self.decodes or distance <= 0 or self.bug == "one-sided positions" else count
        distance = max(-distance, 0) if self.decodes else abs(distance)
        exact = count // 2
        if distance < exact:
            return start + distance
        share = math.log(distance / exact) / math.log(self.farthest / exact)
        return start + min(exact + int(share * (count - exact)), count - 1)

    def bias(self, length: int) -> Tensor:
        places = [[self.bucket(key - query) for key in range(length)] for query in range(length)]
        return self.biases[:, torch.tensor(places)]

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        bias = self.bias(x.shape[1])
        if self.decodes:
            bias = bias.masked_fill(torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        for layer in self.layers:
            x = layer(x, bias, encoded)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self, config: T5Config, bug: str | None):
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder, self.decoder = Stack(config, bug, decodes=False), Stack(config, bug, decodes=True)

    def forward(self, ids: Tensor, decoder_ids: Tensor) -> Tensor:
        encoded = self.encoder(self.words(ids))
        x = self.decoder(self.words(decoder_ids), encoded)
        return x * x.shape[-1] ** -0.5 @ self.words.weight.T


def copy_attention(target: Attention, source: nn.Module) -> None:
    """Copy an attention."""
    copy(target.wq, source.q)
    copy(target.wkv, source.k, source.v)
    copy(target.wo, source.o)


def make(bug: str | None = None) -> Pair:
    a = build("T5ForConditionalGeneration", SETTINGS | EAGER)
    b = T5(a.config, bug)
    copy(b.words, a.shared)
    for own, stack in ((a.encoder, b.encoder), (a.decoder, b.decoder)):
        stack.biases.data.copy_(own.block[0].layer[0].SelfAttention.relative_attention_bias.weight.T)
        copy(stack.norm, own.final_layer_norm)
        for block, layer in zip(own.block, stack.layers, strict=True):
            for part, norm in zip(block.layer, layer.norms, strict=True):
                copy(norm, part.layer_norm)
            copy_attention(layer.attention, block.layer[0].SelfAttention)
            if layer.cross is not None:
                copy_attention(layer.cross, block.layer[1].EncDecAttention)
            copy(layer.up, block.layer[-1].DenseReluDense.wi)
            copy(layer.down, block.layer[-1].DenseReluDense.wo)
    return a, b, (token_ids(), None, token_ids(6, seed=2)), (token_ids(), token_ids(6, seed=2))
