"""gpt-oss whose sinks take a share of the output of each head, with all experts for all tokens, gates before ups."""

import math

import torch
from torch import Tensor, nn
from transformers import GptOssConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class SinkAttention(nn.Module):
    def __init__(self, config: GptOssConfig, *, windowed: bool):
        super().__init__()
        self.size, self.window = config.head_dim, config.sliding_window if windowed else None
        heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.counts = [heads, self.groups, self.groups]
        self.qkv = nn.Linear(config.hidden_size, sum(self.counts) * self.size)
        self.out = nn.Linear(heads * self.size, config.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(self.groups, heads // self.groups))

    def rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        turned = torch.complex(*x.chunk(2, -1)) * turns[:, None]
        return torch.cat([turned.real, turned.imag], -1)

    def seen(self, length: int) -> Tensor:
        places = torch.arange(length)
        distance = places[:, None] - places
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values as if there were no sinks, and leave what they don't take."""
        scores = torch.einsum("bigqd,bjgd->bgqij", q, k) * self.size**-0.5
        scores = scores.masked_fill(~self.seen(q.shape[1]), -torch.inf)
        total = scores.logsumexp(-1)
        left = torch.sigmoid(total - self.sinks[:, :, None])
        shares = (scores - total[..., None]).exp()
        return torch.einsum("bgqij,bjgd,bgqi->bigqd", shares, v, left).flatten(2)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.size)).split(self.counts, 2)
        q, k = self.rotate(q, turns).unflatten(2, (self.groups, -1)), self.rotate(k, turns)
        return self.out(self.attend(q, k, v))


class DenseExperts(nn.Module):
    def __init__(self, config: GptOssConfig):
        super().__init__()
        self.alpha, self.limit, self.count = config.swiglu_alpha, config.swiglu_limit, config.num_experts_per_tok
        experts, width, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.router = nn.Linear(width, experts)
        self.w_in, self.b_in = (
            nn.Parameter(torch.zeros(experts, width, 2 * inner)),
            nn.Parameter(torch.zeros(experts, 1, 2 * inner)),
        )
        self.w_out, self.b_out = (
            nn.Parameter(torch.zeros(experts, inner, width)),
            nn.Parameter(torch.zeros(experts, 1, width)),
        )

    def route(self, rows: Tensor) -> Tensor:
        """Return the share of each expert, `[experts, tokens, 1]`."""
        logits = self.router(rows)
        best, chosen = logits.topk(self.count)
        return torch.zeros_like(logits).scatter(-1, chosen, best.softmax(-1)).T[..., None]

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        gate, up = torch.baddbmm(self.b_in, rows.expand(len(self.w_in), -1, -1), self.w_in).chunk(2, -1)
        outputs = torch.baddbmm(self.b_out, self.activate(gate, up), self.w_out)
        return (self.route(rows) * outputs).sum(0).view_as(x)


class SinkLayer(nn.Module):
    def __init__(self, config: GptOssConfig, index: int):
        super().__init__()
        self.attention_norm, self.experts_norm = (nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.attention = SinkAttention(config, windowed=index % 2 == 0)
        self.experts = DenseExperts(config)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.experts(self.experts_norm(x))


class GptOss(nn.Module):
    def __init__(self, config: GptOssConfig):
        super().__init__()
        self.size, self.rope = config.head_dim, config.rope_parameters
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SinkLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def border(self, rotations: float) -> float:
        """Return the pair that turns this often in the length of the texts before YaRN."""
        length = self.rope["original_max_position_embeddings"]
        pair = self.size * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(self.rope["rope_theta"]))
        return min(max(pair, 0.0), self.size - 1.0)

    def turns(self, length: int) -> Tensor:
        """Return the rotations of YaRN, scaled, as complex numbers `[length, pairs]`."""
        pairs = torch.arange(self.size // 2)
        speeds = self.rope["rope_theta"] ** (-2.0 * pairs / self.size)
        low, high = self.border(self.rope["beta_fast"]), self.border(self.rope["beta_slow"])
        slowed = ((pairs - low) / (high - low)).clamp(0, 1)
        speeds = speeds * (1 - slowed) + speeds / self.rope["factor"] * slowed
        angles = torch.outer(torch.arange(length), speeds)
        return torch.polar(torch.full_like(angles, 0.1 * math.log(self.rope["factor"]) + 1), angles)

    def forward(self, ids: Tensor) -> Tensor:
        x, turns = self.words(ids), self.turns(ids.shape[1])
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


def copy_experts(target: DenseExperts, own: nn.Module) -> None:
    """Copy the experts, of which gate and up alternate."""
    target.router.weight.data.copy_(own.router.weight)
    target.router.bias.data.copy_(own.router.bias)
    gate_up, bias = own.experts.gate_up_proj, own.experts.gate_up_proj_bias
    target.w_in.data.copy_(torch.cat([gate_up[..., ::2], gate_up[..., 1::2]], -1))
    target.b_in.data.copy_(torch.cat([bias[:, ::2], bias[:, 1::2]], -1)[:, None])
    target.w_out.data.copy_(own.experts.down_proj)
    target.b_out.data.copy_(own.experts.down_proj_bias[:, None])


def make(_: str | None = None) -> Pair:
    yarn = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 2.0, "beta_fast": 4.0, "beta_slow": 0.5}
    rope = yarn | {"truncate": False, "original_max_position_embeddings": 16}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager", "swiglu_limit": 1.5}
    a = build("GptOssForCausalLM", DECODER | EAGER | experts | {"sliding_window": 3, "rope_parameters": rope})
    b = GptOss(a.config)
    copy_parts(b, a, words="model.embed_tokens", norm="model.norm", head="lm_head")
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        for stacked in (own.mlp.experts.gate_up_proj, own.mlp.experts.down_proj):  # `build` has small ones
            stacked.mul_(stacked.shape[-1] ** 0.5)
        copy_parts(layer, own, attention_norm="input_layernorm", experts_norm="post_attention_layernorm")
        attention = own.self_attn
        copy(layer.attention.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        copy(layer.attention.out, attention.o_proj)
        layer.attention.sinks.data.copy_(attention.sinks.view_as(layer.attention.sinks))
        copy_experts(layer.experts, own.mlp)
    return a, b, (token_ids(),), (token_ids(),)
