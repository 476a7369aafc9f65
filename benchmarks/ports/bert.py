"""BERT as layers of `torch.nn.TransformerEncoder`, with a padded text."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import BertConfig

from support.models.zoo import ENCODER, build

from ._port import EAGER, Pair, copy, padded, token_ids


class Embeddings(nn.Module):
    def __init__(self, config: BertConfig, bug: str | None):
        super().__init__()
        self.bug = bug
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.kind = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids) + self.position(torch.arange(ids.shape[1]))
        if self.bug != "no token types":
            x = x + self.kind.weight[0]
        return self.norm(x)


class Bert(nn.Module):
    def __init__(self, config: BertConfig, bug: str | None):
        super().__init__()
        self.embed = Embeddings(config, bug)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            activation=nn.GELU("tanh") if bug == "activation" else gelu,
            layer_norm_eps=1e-5 if bug == "eps" else config.layer_norm_eps,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.num_hidden_layers, enable_nested_tensor=False)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder(self.embed(ids), src_key_padding_mask=mask == 0)
        return x, self.pooler(x[:, 0]).tanh()


def make(bug: str | None = None) -> Pair:
    a = build("BertModel", ENCODER | EAGER)
    b = Bert(a.config, bug).eval()
    copy(b.embed.word, a.embeddings.word_embeddings)
    copy(b.embed.position, a.embeddings.position_embeddings)
    copy(b.embed.kind, a.embeddings.token_type_embeddings)
    copy(b.embed.norm, a.embeddings.LayerNorm)
    copy(b.pooler, a.pooler.dense)
    for own, layer in zip(a.encoder.layer, b.encoder.layers, strict=True):
        parts = own.attention.self.query, own.attention.self.key, own.attention.self.value
        layer.self_attn.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
        layer.self_attn.in_proj_bias.data.copy_(torch.cat([part.bias for part in parts]))
        copy(layer.self_attn.out_proj, own.attention.output.dense)
        copy(layer.norm1, own.attention.output.LayerNorm)
        copy(layer.linear1, own.intermediate.dense)
        copy(layer.linear2, own.output.dense)
        copy(layer.norm2, own.output.LayerNorm)
    return a, b, padded(token_ids()), padded(token_ids())
