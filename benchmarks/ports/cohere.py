"""Command R with all texts in one row of tokens, one product into and one out of both branches, and rotated halves."""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention, silu
from transformers import CohereConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, token_ids


class ParallelBlock(nn.Module):
    """A layer for tokens `[tokens, width]` of several texts, with matrices `[in, out]`."""

    def __init__(self, config: CohereConfig, bug: str | None):
        super().__init__()
        self.bug, self.eps = bug, config.layer_norm_eps
        width, inner = config.hidden_size, config.intermediate_size
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = width // self.heads
        self.sizes = [width, self.groups * self.size, self.groups * self.size, inner, inner]
        self.gain = nn.Parameter(torch.ones(width))
        self.enter = nn.Parameter(torch.zeros(width, sum(self.sizes)))
        self.leave = nn.Parameter(torch.zeros(width + inner, width))

    def normalize(self, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.gain, eps=1e-3 if self.bug == "eps" else self.eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def attend(self, parts: tuple[Tensor, ...], angles: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.size)) for part in parts)
        q, k = self.rotate(q, *angles), self.rotate(k, *angles)
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return mixed[0].transpose(0, 1).flatten(1)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
        *parts, gate, up = (self.normalize(x) @ self.enter).split(self.sizes, -1)
        hidden = silu(gate) * up
        return x + torch.cat([self.attend((*parts,), angles, seen), hidden], -1) @ self.leave


class CommandR(nn.Module):
    def __init__(self, config: CohereConfig, bug: str | None):
        super().__init__()
        self.bug, self.eps = bug, config.layer_norm_eps
        self.size, self.theta = config.hidden_size // config.num_attention_heads, config.rope_parameters["rope_theta"]
        self.words = nn.Parameter(torch.zeros(config.vocab_size, config.hidden_size))
        self.blocks = nn.ModuleList(ParallelBlock(config, bug) for _ in range(config.num_hidden_layers))
        self.gain = nn.Parameter(torch.ones(config.hidden_size))

    def angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        speeds = self.theta ** -(torch.arange(0, self.size, 2) / self.size)
        turns = torch.outer(places, speeds)[:, None]  # [tokens, 1, pairs]
        return turns.cos(), turns.sin()

    def seen(self, texts: Tensor, places: Tensor) -> Tensor:
        """Return which tokens a token sees: those before it in its own text."""
        return (texts[:, None] == texts) & (places[:, None] >= places)

    def forward(self, ids: Tensor) -> Tensor:
        texts = torch.arange(len(ids)).repeat_interleave(ids.shape[1])
        places = torch.arange(ids.shape[1]).repeat(len(ids))
        x, angles, seen = self.words[ids.flatten()], self.angles(places), self.seen(texts, places)
        for block in self.blocks:
            x = block(x, angles, seen)
        logits = layer_norm(x, x.shape[-1:], self.gain, eps=self.eps) @ self.words.T
        return logits.view(*ids.shape, -1)


def halved(weight: Tensor, size: int) -> Tensor:
    """Return the rows of a projection with the pairs that are rotated in each head as two halves."""
    return weight.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).flatten(0, 2)


def make(bug: str | None = None) -> Pair:
    a = build("CohereForCausalLM", DECODER | EAGER | {"logit_scale": 0.25})
    b = CommandR(a.config, bug)
    b.words.data.copy_(a.model.embed_tokens.weight)
    b.gain.data.copy_(a.model.norm.weight * (1.0 if bug == "logits not scaled" else a.logit_scale))
    for own, block in zip(a.model.layers, b.blocks, strict=True):
        attention, mlp = own.self_attn, own.mlp
        block.gain.data.copy_(own.input_layernorm.weight)
        rotated = (halved(part.weight, block.size) for part in (attention.q_proj, attention.k_proj))
        others = (part.weight for part in (attention.v_proj, mlp.gate_proj, mlp.up_proj))
        block.enter.data.copy_(torch.cat([*rotated, *others]).T)
        block.leave.data.copy_(torch.cat([attention.o_proj.weight, mlp.down_proj.weight], 1).T)
    return a, b, (token_ids(),), (token_ids(),)
