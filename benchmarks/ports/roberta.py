"""RoBERTa as in Apple's ports to its Neural Engine: 1x1 convolutions, channels first, and a list of heads."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import RobertaConfig

from support.models.zoo import ENCODER, build

from ._port import EAGER, Pair, copy, token_ids


class ChannelNorm(nn.Module):
    """A layer norm of channels that adds its bias before it multiplies by its weight."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(1, keepdim=True)
        squares = centered * centered
        normed = centered * (squares.mean(1, keepdim=True) + self.eps).rsqrt()
        return (normed + self.bias[:, None, None]) * self.weight[:, None, None]


class ListedHeads(nn.Module):
    def __init__(self, config: RobertaConfig):
        super().__init__()
        width = config.hidden_size
        self.size = width // config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x).transpose(1, 3), self.v_proj(x)
        queries, keys, values = q.split(self.size, 1), k.split(self.size, 3), v.split(self.size, 1)
        scale = self.size**-0.5
        scores = [torch.einsum("bchq,bkhc->bkhq", qi, ki) * scale for qi, ki in zip(queries, keys, strict=True)]
        weights = [(score + mask).softmax(1) for score in scores]
        mixed = [torch.einsum("bkhq,bchk->bchq", wi, vi) for wi, vi in zip(weights, values, strict=True)]
        return self.out_proj(torch.cat(mixed, 1))


class TransformerBlock(nn.Module):
    def __init__(self, config: RobertaConfig, bug: str | None):
        super().__init__()
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.attention = ListedHeads(config)
        self.sa_norm, self.out_norm = ChannelNorm(width, 1e-3 if bug == "eps" else eps), ChannelNorm(width, eps)
        self.lin1, self.lin2 = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)
        self.approximation = "tanh" if bug == "activation" else "none"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.sa_norm(self.attention(x, mask) + x)
        return self.out_norm(self.lin2(gelu(self.lin1(x), approximate=self.approximation)) + x)


class LmHead(nn.Module):
    def __init__(self, config: RobertaConfig):
        super().__init__()
        self.transform = nn.Conv2d(config.hidden_size, config.hidden_size, 1)
        self.norm = ChannelNorm(config.hidden_size, config.layer_norm_eps)
        self.projector = nn.Conv2d(config.hidden_size, config.vocab_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.projector(self.norm(gelu(self.transform(x)))).squeeze(2).transpose(1, 2)


class Roberta(nn.Module):
    def __init__(self, config: RobertaConfig, bug: str | None):
        super().__init__()
        self.padding = config.pad_token_id
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.place = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = ChannelNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nn.ModuleList(TransformerBlock(config, bug) for _ in range(config.num_hidden_layers))
        self.head = LmHead(config)

    def places(self, ids: Tensor) -> Tensor:
        is_text = (ids != self.padding).long()
        return is_text.cumsum(1) * is_text + self.padding

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.word(ids) + self.place(self.places(ids))
        x = self.norm(x.transpose(1, 2).unsqueeze(2))
        added = (1.0 - mask[:, :, None, None].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, added)
        return self.head(x)


def copy_conv(target: nn.Module, source: nn.Module) -> None:
    target.weight.data.copy_(source.weight[..., None, None])
    target.bias.data.copy_(source.bias)


def copy_norm(target: nn.Module, source: nn.Module) -> None:
    target.weight.data.copy_(source.weight)
    target.bias.data.copy_(source.bias / source.weight)


def make(bug: str | None = None) -> Pair:
    a = build("RobertaForMaskedLM", ENCODER | EAGER | {"pad_token_id": 1, "bos_token_id": 0, "type_vocab_size": 1})
    b = Roberta(a.config, bug)
    own = a.roberta.embeddings
    b.word.weight.data.copy_(own.word_embeddings.weight + own.token_type_embeddings.weight[0])
    copy(b.place, own.position_embeddings)
    copy_norm(b.norm, own.LayerNorm)
    for layer, block in zip(a.roberta.encoder.layer, b.layers, strict=True):
        for target, source in (
            (block.attention.q_proj, layer.attention.self.query),
            (block.attention.k_proj, layer.attention.self.key),
            (block.attention.v_proj, layer.attention.self.value),
            (block.attention.out_proj, layer.attention.output.dense),
            (block.lin1, layer.intermediate.dense),
            (block.lin2, layer.output.dense),
        ):
            copy_conv(target, source)
        copy_norm(block.sa_norm, layer.attention.output.LayerNorm)
        copy_norm(block.out_norm, layer.output.LayerNorm)
    copy_conv(b.head.transform, a.lm_head.dense)
    copy_norm(b.head.norm, a.lm_head.layer_norm)
    copy_conv(b.head.projector, a.lm_head.decoder)
    ids = token_ids()
    ids[1, -2:] = 1
    mask = (ids != 1).long()
    return a, b, (ids, mask), (ids, mask)
