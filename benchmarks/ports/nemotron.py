"""Nemotron as in Flax: kernels by head, one group of heads after the other, and a table of sines made before."""

import torch
from torch import Tensor, nn
from transformers import NemotronConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, token_ids

HIDDEN_SCORE = -1e30


class FastNorm(nn.Module):
    """A layer norm whose variance is the mean of the squares without the square of the mean."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.scale, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        mean, squares = x.mean(-1, keepdim=True), x.square().mean(-1, keepdim=True)
        factor = torch.rsqrt(squares - mean.square() + self.eps) * self.scale
        return (x - mean) * factor + self.bias


class GroupAttention(nn.Module):
    def __init__(self, config: NemotronConfig):
        super().__init__()
        width, self.size = config.hidden_size, config.head_dim
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.query = nn.Parameter(torch.zeros(width, self.heads, self.size))
        self.key, self.value = (nn.Parameter(torch.zeros(width, self.groups, self.size)) for _ in range(2))
        self.out = nn.Parameter(torch.zeros(self.heads, self.size, width))

    def rotate(self, x: Tensor, table: Tensor) -> Tensor:
        sin, cos = table[: x.shape[1], None].chunk(2, -1)
        turned = 2 * sin.shape[-1]
        first, second = x[..., :turned].chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, x[..., turned:]], -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Mix the values of one group."""
        logits = torch.einsum("bqhk,bsk->bhqs", q, k) / self.size**0.5
        weights = torch.where(mask, logits, HIDDEN_SCORE).softmax(-1)
        return torch.einsum("bhqs,bsk->bqhk", weights, v)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,dhk->bthk", x, kernel) for kernel in (self.query, self.key, self.value))
        q, k = self.rotate(q, table), self.rotate(k, table)
        queries = q.chunk(self.groups, 2)
        mixed = [self.attend(queries[group], k[:, :, group], v[:, :, group], mask) for group in range(self.groups)]
        return torch.einsum("bqhk,hkd->bqd", torch.cat(mixed, 2), self.out)


class SquaredMlp(nn.Module):
    def __init__(self, config: NemotronConfig):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.wi, self.wi_bias = nn.Parameter(torch.zeros(width, inner)), nn.Parameter(torch.zeros(inner))
        self.wo, self.wo_bias = nn.Parameter(torch.zeros(inner, width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(x @ self.wi + self.wi_bias) ** 2
        return hidden @ self.wo + self.wo_bias


class NemotronLayer(nn.Module):
    def __init__(self, config: NemotronConfig):
        super().__init__()
        self.pre_attention, self.pre_mlp = (FastNorm(config.hidden_size, config.norm_eps) for _ in range(2))
        self.attention, self.mlp = GroupAttention(config), SquaredMlp(config)

    def forward(self, x: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.pre_attention(x), table, mask)
        return x + self.mlp(self.pre_mlp(x))


class Nemotron(nn.Module):
    table: Tensor

    def __init__(self, config: NemotronConfig):
        super().__init__()
        width, turned = config.hidden_size, int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
        self.register_buffer("table", torch.zeros(config.max_position_embeddings, turned))
        self.embedding = nn.Parameter(torch.zeros(config.vocab_size, width))
        self.layers = nn.ModuleList(NemotronLayer(config) for _ in range(config.num_hidden_layers))
        self.norm, self.logits = FastNorm(width, config.norm_eps), nn.Parameter(torch.zeros(width, config.vocab_size))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding[ids]
        mask = torch.tril(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool))
        for layer in self.layers:
            x = layer(x, self.table, mask)
        return self.norm(x) @ self.logits


def table_of(rope: dict[str, float], length: int, turned: int) -> Tensor:
    """Return the sines and cosines of the angles of all positions, `[length, turned]`."""
    angles = torch.outer(torch.arange(length).float(), rope["rope_theta"] ** (-torch.arange(0, turned, 2) / turned))
    return torch.cat([angles.sin(), angles.cos()], -1)


def copy_norm(target: FastNorm, own: nn.Module) -> None:
    target.scale.data.copy_(own.weight + 1)
    target.bias.data.copy_(own.bias)


def make(_: str | None = None) -> Pair:
    a = build("NemotronForCausalLM", DECODER | EAGER | {"mlp_bias": True})
    b = Nemotron(a.config)
    b.table.copy_(table_of(a.config.rope_parameters, *b.table.shape))
    b.embedding.data.copy_(a.model.embed_tokens.weight)
    b.logits.data.copy_(a.lm_head.weight.T)
    copy_norm(b.norm, a.model.norm)
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        copy_norm(layer.pre_attention, own.input_layernorm)
        copy_norm(layer.pre_mlp, own.post_attention_layernorm)
        attention, size = own.self_attn, a.config.head_dim
        for name in ("query", "key", "value"):
            kernel = attention.get_submodule(f"{name[0]}_proj").weight.T.unflatten(1, (-1, size))
            layer.attention.get_parameter(name).data.copy_(kernel)
        layer.attention.out.data.copy_(attention.o_proj.weight.T.unflatten(0, (-1, size)))
        for name, linear in (("wi", own.mlp.up_proj), ("wo", own.mlp.down_proj)):
            layer.mlp.get_parameter(name).data.copy_(linear.weight.T)
            layer.mlp.get_parameter(f"{name}_bias").data.copy_(linear.bias)
    return a, b, (token_ids(),), (token_ids(),)
