"""DeBERTa V3 with tables of the keys and queries of all distances, and the scale of its scores in the weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from transformers import DebertaV2Config

from support.models.zoo import ENCODER, build

from ._port import EAGER, Pair, copy, copy_parts, padded, token_ids

HIDDEN_SCORE = -1e9
TERMS = 3  # of a score: words with words, words with distances, distances with words


class DisentangledAttention(nn.Module):
    def __init__(self, config: DebertaV2Config, bug: str | None):
        super().__init__()
        self.bug, self.heads = bug, config.num_attention_heads
        width = config.hidden_size
        distances = 2 * config.position_buckets
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.far_key = nn.Parameter(torch.zeros(distances, self.heads, width // self.heads))
        self.far_query = nn.Parameter(torch.zeros(distances, self.heads, width // self.heads))

    def scores(self, q: Tensor, k: Tensor, distance: Tensor) -> Tensor:
        """Return the scores of queries and keys `[batch, length, heads, size]`, of which the queries are scaled."""
        words = torch.einsum("bihd,bjhd->bhij", q, k)
        keys, queries = self.far_key[distance], self.far_query[distance.T if self.bug == "distance" else distance]
        return words + torch.einsum("bihd,ijhd->bhij", q, keys) + torch.einsum("bjhd,ijhd->bhij", k, queries)

    def forward(self, x: Tensor, mask: Tensor, distance: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        shares = self.scores(q, k, distance).masked_fill(~mask[:, None], HIDDEN_SCORE).softmax(-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", shares, v).flatten(2))


class Layer(nn.Module):
    def __init__(self, config: DebertaV2Config, bug: str | None):
        super().__init__()
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.attention = DisentangledAttention(config, bug)
        self.after, self.last = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor, mask: Tensor, distance: Tensor) -> Tensor:
        x = self.after(x + self.attention(x, mask, distance))
        return self.last(x + self.down(gelu(self.up(x))))


class Deberta(nn.Module):
    def __init__(self, config: DebertaV2Config, bug: str | None):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.buckets, self.farthest = config.position_buckets, config.max_position_embeddings
        self.words, self.norm = nn.Embedding(config.vocab_size, width), nn.LayerNorm(width, eps)
        self.layers = nn.ModuleList(Layer(config, bug) for _ in range(config.num_hidden_layers))
        self.transform, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width, eps)
        self.offset = nn.Parameter(torch.zeros(config.vocab_size))

    def bucket(self, distance: int) -> int:
        """Return the row of a distance: exact if it is small, and by its logarithm if it is large."""
        middle, size = self.buckets // 2, abs(distance)
        if size > middle:
            share = math.log(size / middle) / math.log((self.farthest - 1) / middle)
            size = math.ceil(share * (middle - 1)) + middle
        return self.buckets + (size if distance > 0 else -size)

    def distances(self, length: int) -> Tensor:
        return torch.tensor([[self.bucket(query - key) for key in range(length)] for query in range(length)])

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.words(ids)) * mask[..., None]
        both, distance = (mask[:, :, None] * mask[:, None]).bool(), self.distances(ids.shape[1])
        for layer in self.layers:
            x = layer(x, both, distance)
        return linear(self.head_norm(gelu(self.transform(x))), self.words.weight, self.offset)


def copy_attention(target: DisentangledAttention, source: nn.Module, distances: Tensor, bug: str | None) -> None:
    """Copy an attention, with its queries scaled, and with the keys and queries of the distances."""
    own, heads = source.self, target.heads
    terms = 1 if bug == "scale" else TERMS
    scale = torch.tensor(terms * own.attention_head_size, dtype=torch.float).sqrt().double()  # in float32, as in A
    query, key, value = own.query_proj, own.key_proj, own.value_proj
    target.qkv.weight.data.copy_(torch.cat([query.weight / scale, key.weight, value.weight]))
    target.qkv.bias.data.copy_(torch.cat([query.bias / scale, key.bias, value.bias]))
    target.far_key.data.copy_(key(distances).unflatten(-1, (heads, -1)))
    target.far_query.data.copy_(query(distances).unflatten(-1, (heads, -1)) / scale)
    copy(target.out, source.output.dense)


def make(bug: str | None = None) -> Pair:
    positions = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 6}
    others = {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False}
    a = build("DebertaV2ForMaskedLM", ENCODER | EAGER | positions | others | {"type_vocab_size": 0})
    b = Deberta(a.config, bug)
    own, head = a.deberta, a.cls.predictions
    copy_parts(b, own.embeddings, words="word_embeddings", norm="LayerNorm")
    copy_parts(b, head.transform, transform="dense", head_norm="LayerNorm")
    b.offset.data.copy_(head.decoder.bias)
    distances = own.encoder.get_rel_embedding()
    for layer, target in zip(own.encoder.layer, b.layers, strict=True):
        copy_attention(target.attention, layer.attention, distances, bug)
        copy(target.after, layer.attention.output.LayerNorm)
        copy(target.up, layer.intermediate.dense)
        copy(target.down, layer.output.dense)
        copy(target.last, layer.output.LayerNorm)
    return a, b, padded(token_ids()), padded(token_ids())
