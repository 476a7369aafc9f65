"""BLOOM as in MPT: positions as distances to the last key, and query, key and value one after the other."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention
from transformers import BloomConfig

from support.models.zoo import GPT, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class FusedAttention(nn.Module):
    def __init__(self, config: BloomConfig):
        super().__init__()
        self.heads = config.n_head
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = self.Wqkv(x).chunk(3, dim=2)
        q, k, v = (part.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in (query, key, value))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out_proj(mixed.transpose(1, 2).reshape(x.shape))


class Ffn(nn.Module):
    def __init__(self, config: BloomConfig, bug: str | None):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.down_proj = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.approximation = "none" if bug == "activation" else "tanh"

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gelu(self.up_proj(x), approximate=self.approximation))


class Block(nn.Module):
    def __init__(self, config: BloomConfig, bug: str | None):
        super().__init__()
        self.norm_1, self.norm_2 = (nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon) for _ in range(2))
        self.attn, self.ffn = FusedAttention(config), Ffn(config, bug)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attn(self.norm_1(x), bias)
        return x + self.ffn(self.norm_2(x))


class Bloom(nn.Module):
    def __init__(self, config: BloomConfig, bug: str | None):
        super().__init__()
        self.bug, self.heads, self.steepest = bug, config.n_head, 8
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.emb_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.blocks = nn.ModuleList(Block(config, bug) for _ in range(config.n_layer))
        self.norm_f = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def slopes(self) -> Tensor:
        exponents = torch.arange(1, self.heads + 1).float() * (self.steepest / self.heads)
        return 1.0 / torch.pow(2, exponents)

    def attention_bias(self, length: int) -> Tensor:
        positions = torch.arange(1 - length, 1)
        bias = self.slopes()[:, None, None] * positions
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return bias.masked_fill(~causal, -torch.inf)[None]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids)
        if self.bug != "embeddings not normalized":
            x = self.emb_norm(x)
        bias = self.attention_bias(ids.shape[1])
        for block in self.blocks:
            x = block(x, bias)
        return linear(self.norm_f(x), self.wte.weight)


def apart(parameter: Tensor, heads: int) -> Tensor:
    """Return the rows of query, key and value, which alternate by head, one after the other."""
    return parameter.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def make(bug: str | None = None) -> Pair:
    a = build("BloomForCausalLM", GPT | EAGER)
    b = Bloom(a.config, bug)
    copy_parts(b, a.transformer, wte="word_embeddings", emb_norm="word_embeddings_layernorm", norm_f="ln_f")
    for own, block in zip(a.transformer.h, b.blocks, strict=True):
        copy_parts(block, own, norm_1="input_layernorm", norm_2="post_attention_layernorm")
        fused = own.self_attention.query_key_value
        block.attn.Wqkv.weight.data.copy_(apart(fused.weight, a.config.n_head))
        block.attn.Wqkv.bias.data.copy_(apart(fused.bias, a.config.n_head))
        copy(block.attn.out_proj, own.self_attention.dense)
        copy(block.ffn.up_proj, own.mlp.dense_h_to_4h)
        copy(block.ffn.down_proj, own.mlp.dense_4h_to_h)
    return a, b, (token_ids(),), (token_ids(),)
