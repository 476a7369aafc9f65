"""OLMo 2 as in JAX: a dictionary of weights stacked over the layers, sliced in a loop, and rotations as a product."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu
from transformers import Olmo2Config

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, token_ids


class Olmo2(nn.Module):
    turn: Tensor

    def __init__(self, config: Olmo2Config, bug: str | None):
        super().__init__()
        self.bug, self.eps, self.theta = bug, config.rms_norm_eps, config.rope_parameters["rope_theta"]
        self.layers, width, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self.size = width // heads
        shapes = {
            "query": (width, heads, self.size),
            "key": (width, groups, self.size),
            "value": (width, groups, self.size),
            "query_gain": (heads, self.size),
            "key_gain": (groups, self.size),
            "output": (heads, self.size, width),
            "attention_gain": (width,),
            "wi": (width, 2, inner),
            "wo": (inner, width),
            "mlp_gain": (width,),
        }
        scanned = {name: nn.Parameter(torch.zeros(self.layers, *shape)) for name, shape in shapes.items()}
        self.params = nn.ParameterDict(scanned)
        self.words = nn.Parameter(torch.zeros(config.vocab_size, width))
        self.last_gain, self.head = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width, config.vocab_size))
        half = torch.eye(self.size // 2)
        zero = torch.zeros_like(half)
        self.register_buffer("turn", torch.cat([torch.cat([zero, half], 1), torch.cat([-half, zero], 1)]))

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        """Normalize over as many dimensions as the gain has."""
        axes = (-1,) if gain.ndim == 1 or self.bug == "norm of each head" else (-2, -1)
        return x * torch.rsqrt(torch.mean(x * x, axes, keepdim=True) + self.eps) * gain

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.einsum("blhd,de->blhe", x, self.turn) * sin

    def attention(self, index: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        p = {name: stacked[index] for name, stacked in self.params.items()}
        query = torch.einsum("bld,dhe->blhe", x, p["query"])
        key, value = torch.einsum("bld,dge->blge", x, p["key"]), torch.einsum("bld,dge->blge", x, p["value"])
        query, key = self.norm(query, p["query_gain"]), self.norm(key, p["key_gain"])
        query = self.rope(query, cos, sin) / self.size**0.5
        key = self.rope(key, cos, sin)
        repeats = query.shape[2] // key.shape[2]
        key, value = key.repeat_interleave(repeats, 2), value.repeat_interleave(repeats, 2)
        logits = torch.einsum("bqhe,bkhe->bhqk", query, key)
        mask = torch.arange(x.shape[1])[:, None] >= torch.arange(x.shape[1])
        weights = torch.where(mask, logits, torch.finfo(logits.dtype).min).softmax(-1)
        return torch.einsum("bqhe,hed->bqd", torch.einsum("bhqk,bkhe->bqhe", weights, value), p["output"])

    def mlp(self, index: int, x: Tensor) -> Tensor:
        hidden = torch.einsum("bld,dcf->blcf", x, self.params["wi"][index])
        activation = gelu if self.bug == "activation" else silu
        return (activation(hidden[..., 0, :]) * hidden[..., 1, :]) @ self.params["wo"][index]

    def layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.norm(self.attention(index, x, cos, sin), self.params["attention_gain"][index])
        return x + self.norm(self.mlp(index, x), self.params["mlp_gain"][index])

    def forward(self, ids: Tensor) -> Tensor:
        exponents = torch.arange(0, self.size, 2) / self.size
        angles = torch.arange(ids.shape[1])[:, None] / self.theta ** torch.cat([exponents, exponents])
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        x = self.words[ids]
        for index in range(self.layers):
            x = self.layer(index, x, cos, sin)
        return self.norm(x, self.last_gain) @ self.head


def stack(a: nn.Module, size: int) -> dict[str, Tensor]:
    """Return the weights of the layers of OLMo 2, stacked and with inputs first."""
    layers = a.model.layers
    attentions, mlps = [layer.self_attn for layer in layers], [layer.mlp for layer in layers]
    weights = {
        "query": [x.q_proj.weight.T.unflatten(1, (-1, size)) for x in attentions],
        "key": [x.k_proj.weight.T.unflatten(1, (-1, size)) for x in attentions],
        "value": [x.v_proj.weight.T.unflatten(1, (-1, size)) for x in attentions],
        "query_gain": [x.q_norm.weight.unflatten(0, (-1, size)) for x in attentions],
        "key_gain": [x.k_norm.weight.unflatten(0, (-1, size)) for x in attentions],
        "output": [x.o_proj.weight.T.unflatten(0, (-1, size)) for x in attentions],
        "attention_gain": [layer.post_attention_layernorm.weight for layer in layers],
        "wi": [torch.stack([x.gate_proj.weight.T, x.up_proj.weight.T], 1) for x in mlps],
        "wo": [x.down_proj.weight.T for x in mlps],
        "mlp_gain": [layer.post_feedforward_layernorm.weight for layer in layers],
    }
    return {name: torch.stack(parts) for name, parts in weights.items()}


def make(bug: str | None = None) -> Pair:
    a = build("Olmo2ForCausalLM", {name: value for name, value in DECODER.items() if name != "head_dim"} | EAGER)
    b = Olmo2(a.config, bug)
    b.words.data.copy_(a.model.embed_tokens.weight)
    b.last_gain.data.copy_(a.model.norm.weight)
    b.head.data.copy_(a.lm_head.weight.T)
    for name, stacked in stack(a, b.size).items():
        b.params[name].data.copy_(stacked)
    return a, b, (token_ids(),), (token_ids(),)
