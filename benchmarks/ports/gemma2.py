"""Gemma 2 as in Flax: no modules, and the weights of all layers stacked for einsum."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import Gemma2Config

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, token_ids

HIDDEN_SCORE = -2.3819763e38
NORMS = {
    "pre_attention": "input_layernorm",
    "post_attention": "post_attention_layernorm",
    "pre_ffw": "pre_feedforward_layernorm",
    "post_ffw": "post_feedforward_layernorm",
}


class Gemma2(nn.Module):
    def __init__(self, config: Gemma2Config, bug: str | None):
        super().__init__()
        self.bug, self.config = bug, config
        layers, width, inner, size = (
            config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.head_dim,
        )  # fmt: skip
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        shapes = {
            "embedding": (config.vocab_size, width),
            "q": (layers, heads, width, size),
            "kv": (layers, 2, groups, width, size),
            "out": (layers, heads, size, width),
            "gating": (layers, 2, width, inner),
            "linear": (layers, inner, width),
            **dict.fromkeys(NORMS, (layers, width)),
            "final": (width,),
        }
        self.params = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        variance = x.square().mean(-1, keepdim=True)
        return x * (variance + self.config.rms_norm_eps).rsqrt() * (1 + scale)

    def rope(self, x: Tensor) -> Tensor:
        fraction = 2 * torch.arange(x.shape[-1] // 2) / x.shape[-1]
        timescale = self.config.rope_parameters["rope_theta"] ** fraction
        sinusoid = torch.arange(x.shape[1])[:, None, None] / timescale
        sin, cos = sinusoid.sin(), sinusoid.cos()
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def mask(self, index: int, length: int) -> Tensor:
        rows, columns = torch.arange(length)[:, None], torch.arange(length)
        if index % 2 == 0:
            return (columns <= rows) & (columns > rows - self.config.sliding_window)
        return columns <= rows

    def attention(self, index: int, x: Tensor) -> Tensor:
        q = torch.einsum("btd,ndh->btnh", x, self.params["q"][index])
        k, v = torch.einsum("bsd,ckdh->cbskh", x, self.params["kv"][index])
        q = self.rope(q) * self.config.query_pre_attn_scalar**-0.5
        k = self.rope(k)
        q = q.unflatten(2, (k.shape[2], -1))
        scores = torch.einsum("btkgh,bskh->bkgts", q, k)
        cap = 1e6 if self.bug == "scores not capped" else self.config.attn_logit_softcapping
        scores = torch.tanh(scores / cap) * cap
        scores = torch.where(self.mask(index, x.shape[1]), scores, HIDDEN_SCORE)
        mixed = torch.einsum("bkgts,bskh->btkgh", scores.softmax(-1), v).flatten(2, 3)
        return torch.einsum("btnh,nhd->btd", mixed, self.params["out"][index])

    def feed_forward(self, index: int, x: Tensor) -> Tensor:
        gate, up = torch.einsum("btd,cdf->cbtf", x, self.params["gating"][index])
        hidden = gelu(gate, approximate="none" if self.bug == "activation" else "tanh") * up
        return hidden @ self.params["linear"][index]

    def block(self, index: int, x: Tensor) -> Tensor:
        y = self.attention(index, self.norm(x, self.params["pre_attention"][index]))
        x = x + self.norm(y, self.params["post_attention"][index])
        y = self.feed_forward(index, self.norm(x, self.params["pre_ffw"][index]))
        return x + self.norm(y, self.params["post_ffw"][index])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.params["embedding"][ids] * self.config.hidden_size**0.5
        for index in range(self.config.num_hidden_layers):
            x = self.block(index, x)
        logits = self.norm(x, self.params["final"]) @ self.params["embedding"].T
        cap = self.config.final_logit_softcapping
        return torch.tanh(logits / cap) * cap


def by_head(layer: nn.Module, size: int) -> Tensor:
    """Return a weight [heads * size, width] as [heads, width, size]."""
    return layer.weight.unflatten(0, (-1, size)).mT


def make(bug: str | None = None) -> Pair:
    settings = {"sliding_window": 4, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0}
    a = build("Gemma2ForCausalLM", DECODER | EAGER | settings | {"final_logit_softcapping": 4.0})
    b = Gemma2(a.config, bug)
    size = a.config.head_dim
    b.params["embedding"].data.copy_(a.model.embed_tokens.weight)
    b.params["final"].data.copy_(a.model.norm.weight)
    for index, own in enumerate(a.model.layers):
        attention = own.self_attn
        b.params["q"][index].data.copy_(by_head(attention.q_proj, size))
        key_value = [by_head(attention.k_proj, size), by_head(attention.v_proj, size)]
        b.params["kv"][index].data.copy_(torch.stack(key_value))
        b.params["out"][index].data.copy_(attention.o_proj.weight.T.unflatten(0, (-1, size)))
        b.params["gating"][index].data.copy_(torch.stack([own.mlp.gate_proj.weight.T, own.mlp.up_proj.weight.T]))
        b.params["linear"][index].data.copy_(own.mlp.down_proj.weight.T)
        for name, theirs in NORMS.items():
            b.params[name][index].data.copy_(own.get_submodule(theirs).weight)
    return a, b, (token_ids(),), (token_ids(),)
