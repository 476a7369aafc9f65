"""ALBERT as functions of a dictionary of weights, without modules for its layers, which share them."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear
from transformers import AlbertConfig

from support.models.zoo import ENCODER, build

from ._port import EAGER, Pair, padded, token_ids


class Albert(nn.Module):
    def __init__(self, config: AlbertConfig, weights: dict[str, Tensor], bug: str | None):
        super().__init__()
        self.bug, self.heads, self.eps = bug, config.num_attention_heads, config.layer_norm_eps
        groups, layers = config.num_hidden_groups, config.num_hidden_layers
        self.plan = [index * groups // layers for index in range(layers)]
        self.weights = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in weights.items()})

    def apply_linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}_w"], self.weights[f"{name}_b"])

    def normalize(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{name}_w"], self.weights[f"{name}_b"], self.eps)

    def activate(self, x: Tensor) -> Tensor:
        if self.bug == "activation":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def embed(self, ids: Tensor) -> Tensor:
        words = self.weights["words"][ids]
        places = self.weights["places"][: ids.shape[1]]
        return self.normalize("embed_norm", words + places + self.weights["kinds"][0])

    def attend(self, group: int, x: Tensor, mask: Tensor) -> Tensor:
        q = torch.einsum("bid,hde->bhie", x, self.weights[f"q{group}_w"]) + self.weights[f"q{group}_b"][:, None]
        k = torch.einsum("bid,hde->bhie", x, self.weights[f"k{group}_w"]) + self.weights[f"k{group}_b"][:, None]
        v = torch.einsum("bid,hde->bhie", x, self.weights[f"v{group}_w"]) + self.weights[f"v{group}_b"][:, None]
        scores = torch.einsum("bhie,bhje->bhij", q, k) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
        weighted = (scores - scores.amax(-1, keepdim=True)).exp()
        shares = weighted / weighted.sum(-1, keepdim=True)
        mixed = torch.einsum("bhij,bhje->bihe", shares, v)
        return torch.einsum("bihe,hed->bid", mixed, self.weights[f"o{group}_w"]) + self.weights[f"o{group}_b"]

    def transform(self, group: int, x: Tensor) -> Tensor:
        return self.apply_linear(f"down{group}", self.activate(self.apply_linear(f"up{group}", x)))

    def layer(self, group: int, x: Tensor, mask: Tensor) -> Tensor:
        x = self.normalize(f"norm_a{group}", x + self.attend(group, x, mask))
        return self.normalize(f"norm_m{group}", x + self.transform(group, x))

    def predict(self, x: Tensor) -> Tensor:
        x = self.normalize("head_norm", self.activate(self.apply_linear("head", x)))
        return x @ self.weights["words"].T + self.weights["bias"]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.apply_linear("widen", self.embed(ids))
        for group in self.plan:
            x = self.layer(0 if self.bug == "one group" else group, x, mask)
        return self.predict(x)


def weights_of(a: nn.Module) -> dict[str, Tensor]:
    """Return the weights of an `AlbertForMaskedLM` under other names, those of heads in three dimensions."""
    own, head = a.albert, a.predictions
    heads = a.config.num_attention_heads
    weights = {
        "words": own.embeddings.word_embeddings.weight,
        "places": own.embeddings.position_embeddings.weight,
        "kinds": own.embeddings.token_type_embeddings.weight,
        "bias": head.bias,
    }
    layers = {
        "embed_norm": own.embeddings.LayerNorm,
        "widen": own.encoder.embedding_hidden_mapping_in,
        "head": head.dense,
        "head_norm": head.LayerNorm,
    }
    for index, group in enumerate(own.encoder.albert_layer_groups):
        (layer,) = group.albert_layers
        attention = layer.attention
        for name, part in (("q", attention.query), ("k", attention.key), ("v", attention.value)):
            weights[f"{name}{index}_w"] = part.weight.unflatten(0, (heads, -1)).mT
            weights[f"{name}{index}_b"] = part.bias.unflatten(0, (heads, -1))
        weights[f"o{index}_w"] = attention.dense.weight.T.unflatten(0, (heads, -1))
        weights[f"o{index}_b"] = attention.dense.bias
        layers |= {f"norm_a{index}": attention.LayerNorm, f"norm_m{index}": layer.full_layer_layer_norm}
        layers |= {f"up{index}": layer.ffn, f"down{index}": layer.ffn_output}
    for name, part in layers.items():
        weights |= {f"{name}_w": part.weight, f"{name}_b": part.bias}
    return weights


def make(bug: str | None = None) -> Pair:
    a = build("AlbertForMaskedLM", ENCODER | EAGER | {"embedding_size": 24, "num_hidden_groups": 2})
    b = Albert(a.config, weights_of(a), bug)
    return a, b, padded(token_ids()), padded(token_ids())
