"""GPT-J as in LitGPT: one projection for query, key and value, and halves rotated, for which rows are reordered."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import GPTJConfig

from support.models.zoo import GPT, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class SelfAttention(nn.Module):
    def __init__(self, config: GPTJConfig):
        super().__init__()
        self.heads, self.turned = config.n_head, config.rotary_dim
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cos + rotated * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        n = self.turned
        q = torch.cat([self.rope(q[..., :n], cos, sin), q[..., n:]], -1)
        k = torch.cat([self.rope(k[..., :n], cos, sin), k[..., n:]], -1)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class FeedForward(nn.Module):
    def __init__(self, config: GPTJConfig, bug: str | None):
        super().__init__()
        self.fc, self.proj = nn.Linear(config.n_embd, 4 * config.n_embd), nn.Linear(4 * config.n_embd, config.n_embd)
        self.approximation = "none" if bug == "activation" else "tanh"

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(gelu(self.fc(x), approximate=self.approximation))


class Block(nn.Module):
    def __init__(self, config: GPTJConfig, bug: str | None):
        super().__init__()
        self.norm = nn.LayerNorm(config.n_embd, 1e-3 if bug == "eps" else config.layer_norm_epsilon)
        self.attention, self.mlp = SelfAttention(config), FeedForward(config, bug)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norm(x)
        return self.attention(normed, cos, sin) + x + self.mlp(normed)


class GptJ(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: GPTJConfig, bug: str | None):
        super().__init__()
        speeds = 1.0 / 10000.0 ** (torch.arange(0, config.rotary_dim, 2).float() / config.rotary_dim)
        angles = torch.outer(torch.arange(config.n_positions).float(), speeds).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config, bug) for _ in range(config.n_layer))
        self.last = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.last(x))


def halved(weight: Tensor, heads: int, turned: int) -> Tensor:
    """Return the rows of a projection with the pairs that are rotated in each head as two halves."""
    rows = weight.unflatten(0, (heads, -1))
    return torch.cat([rows[:, :turned:2], rows[:, 1:turned:2], rows[:, turned:]], 1).flatten(0, 1)


def make(bug: str | None = None) -> Pair:
    a = build("GPTJForCausalLM", GPT | EAGER | {"n_positions": 16, "rotary_dim": 4})
    b = GptJ(a.config, bug)
    copy_parts(b, a, wte="transformer.wte", last="transformer.ln_f", head="lm_head")
    for own, block in zip(a.transformer.h, b.blocks, strict=True):
        copy(block.norm, own.ln_1)
        q, k = (halved(x.weight, a.config.n_head, a.config.rotary_dim) for x in (own.attn.q_proj, own.attn.k_proj))
        block.attention.qkv.weight.data.copy_(torch.cat([q, k, own.attn.v_proj.weight]))
        copy(block.attention.proj, own.attn.out_proj)
        copy(block.mlp.fc, own.mlp.fc_in)
        copy(block.mlp.proj, own.mlp.fc_out)
    return a, b, (token_ids(),), (token_ids(),)
