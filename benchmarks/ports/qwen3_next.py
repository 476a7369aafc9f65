"""Qwen3-Next with its delta rule as a loop over tokens, taps for convolutions, and the weights of chosen experts."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention, silu, softplus
from transformers import Qwen3NextConfig

from support.models.zoo import DECODER, build

from ._port import EAGER, Pair, copy, token_ids

UNIT_EPS = 1e-6


class DeltaMixer(nn.Module):
    def __init__(self, config: Qwen3NextConfig):
        super().__init__()
        width, self.heads, self.eps = config.hidden_size, config.linear_num_value_heads, config.rms_norm_eps
        self.size, self.value_size = config.linear_key_head_dim, config.linear_value_head_dim
        keys = config.linear_num_key_heads * self.size
        self.sizes = [keys, keys, self.heads * self.value_size]
        self.qkv, self.z = (nn.Linear(width, size, bias=False) for size in (sum(self.sizes), self.sizes[2]))
        self.strength, self.step = nn.Linear(width, self.heads, bias=False), nn.Linear(width, self.heads)
        self.taps = nn.Parameter(torch.zeros(config.linear_conv_kernel_dim, sum(self.sizes)))
        self.rate, self.gain = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.ones(self.value_size))
        self.out = nn.Linear(self.sizes[2], width, bias=False)

    def convolve(self, x: Tensor) -> Tensor:
        padded = pad(x, (0, 0, len(self.taps) - 1, 0))
        return silu(sum(tap * padded[:, index : index + x.shape[1]] for index, tap in enumerate(self.taps)))

    def unit(self, x: Tensor) -> Tensor:
        return x / (x.square().sum(-1, keepdim=True) + UNIT_EPS).sqrt()

    def scan(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, strength: Tensor) -> Tensor:
        """Return what the queries `[batch, length, heads, size]` read of the state after each token."""
        state, results = q.new_zeros(len(q), self.heads, self.size, self.value_size), []
        for index in range(q.shape[1]):
            state = state * kept[:, index, :, None, None]
            held = torch.einsum("bhkv,bhk->bhv", state, k[:, index])
            change = (v[:, index] - held) * strength[:, index, :, None]
            state = state + k[:, index, :, :, None] * change[:, :, None]
            results.append(torch.einsum("bhkv,bhk->bhv", state, q[:, index]))
        return torch.stack(results, 1)

    def normalize(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.gain

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.convolve(self.qkv(x)).split(self.sizes, -1)
        q, k, v = q.unflatten(-1, (-1, self.size)), k.unflatten(-1, (-1, self.size)), v.unflatten(-1, (self.heads, -1))
        q, k = (self.unit(part).repeat_interleave(self.heads // part.shape[2], 2) for part in (q, k))
        kept = (-self.rate * softplus(self.step(x))).exp()
        y = self.scan(q * self.size**-0.5, k, v, kept, self.strength(x).sigmoid())
        gate = self.z(x).view_as(y)
        return self.out((self.normalize(y) * silu(gate)).flatten(2))


class GatedAttention(nn.Module):
    def __init__(self, config: Qwen3NextConfig):
        super().__init__()
        self.size, heads, groups = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        self.sizes = [part * self.size for part in (heads, heads, groups, groups)]
        self.turned, self.eps = int(self.size * config.rope_parameters["partial_rotary_factor"]), config.rms_norm_eps
        self.enter = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.q_gain, self.k_gain = nn.Parameter(torch.ones(self.size)), nn.Parameter(torch.ones(self.size))
        self.leave = nn.Linear(self.sizes[0], config.hidden_size, bias=False)

    def normed(self, x: Tensor, gain: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (self.size,), gain, self.eps)

    def rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        """Rotate the start of heads `[batch, length, heads, size]`."""
        first, second, rest = x.split([self.turned // 2, self.turned // 2, self.size - self.turned], -1)
        cos, sin = turns[:, None].unbind(-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], -1)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        parts = self.enter(x).split(self.sizes, -1)
        q, gate, k, v = (part.unflatten(-1, (-1, self.size)) for part in parts)
        q, k = self.rotate(self.normed(q, self.q_gain), turns), self.rotate(self.normed(k, self.k_gain), turns)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        return self.leave((mixed * gate.sigmoid()).flatten(2))


class ChosenExperts(nn.Module):
    def __init__(self, config: Qwen3NextConfig):
        super().__init__()
        self.count, width, inner = config.num_experts_per_tok, config.hidden_size, config.moe_intermediate_size
        self.router = nn.Linear(width, config.num_experts, bias=False)
        self.w_in = nn.Parameter(torch.zeros(config.num_experts, 2, inner, width))
        self.w_out = nn.Parameter(torch.zeros(config.num_experts, width, inner))
        self.shared_in = nn.Linear(width, 2 * config.shared_expert_intermediate_size, bias=False)
        self.shared_out = nn.Linear(config.shared_expert_intermediate_size, width, bias=False)
        self.shared_gate = nn.Parameter(torch.zeros(width))

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares of the best experts, and which they are, `[tokens, count]` each."""
        shares, chosen = self.router(rows).softmax(-1).topk(self.count)
        return shares / shares.sum(-1, keepdim=True), chosen

    def shared(self, rows: Tensor) -> Tensor:
        gate, up = self.shared_in(rows).chunk(2, -1)
        return self.shared_out(silu(gate) * up) * (rows @ self.shared_gate).sigmoid()[:, None]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        shares, chosen = self.route(rows)
        gate, up = torch.einsum("nkcid,nd->cnki", self.w_in[chosen], rows)
        outputs = torch.einsum("nkdi,nki->nkd", self.w_out[chosen], silu(gate) * up)
        return ((outputs * shares[..., None]).sum(1) + self.shared(rows)).view_as(x)


class HybridLayer(nn.Module):
    def __init__(self, config: Qwen3NextConfig, index: int):
        super().__init__()
        self.norm_a, self.norm_m = (nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.is_linear = config.layer_types[index] == "linear_attention"
        self.mixer = DeltaMixer(config) if self.is_linear else GatedAttention(config)
        self.experts = ChosenExperts(config)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        y = self.norm_a(x)
        x = x + (self.mixer(y) if self.is_linear else self.mixer(y, turns))
        return x + self.experts(self.norm_m(x))


class Qwen3Next(nn.Module):
    def __init__(self, config: Qwen3NextConfig):
        super().__init__()
        rope = config.rope_parameters
        self.theta, self.turned = rope["rope_theta"], int(config.head_dim * rope["partial_rotary_factor"])
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(HybridLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def turns(self, length: int) -> Tensor:
        """Return the cosines and sines, `[length, pairs, 2]`."""
        speeds = self.theta ** (-torch.arange(0, self.turned, 2) / self.turned)
        angles = torch.outer(torch.arange(length), speeds)
        return torch.stack([angles.cos(), angles.sin()], -1)

    def forward(self, ids: Tensor) -> Tensor:
        x, turns = self.embed(ids), self.turns(ids.shape[1])
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


def copy_delta(target: DeltaMixer, own: nn.Module) -> None:
    """Copy a mixer, whose rows are query, key, value and gate of one head of keys after the other."""
    keys, repeats = own.num_k_heads, own.num_v_heads // own.num_k_heads
    sizes = [target.size, target.size, repeats * target.value_size, repeats * target.value_size]
    parts = own.in_proj_qkvz.weight.unflatten(0, (keys, -1)).split(sizes, 1)
    q, k, v, z = (part.flatten(0, 1) for part in parts)
    target.qkv.weight.data.copy_(torch.cat([q, k, v]))
    target.z.weight.data.copy_(z)
    strength, step = own.in_proj_ba.weight.unflatten(0, (keys, 2, -1)).unbind(1)
    target.strength.weight.data.copy_(strength.flatten(0, 1))
    target.step.weight.data.copy_(step.flatten(0, 1))
    target.step.bias.data.copy_(own.dt_bias)
    target.taps.data.copy_(own.conv1d.weight[:, 0].T)
    target.rate.data.copy_(own.A_log.exp())
    target.gain.data.copy_(own.norm.weight)
    copy(target.out, own.out_proj)


def copy_attention(target: GatedAttention, own: nn.Module) -> None:
    query, gate = own.q_proj.weight.unflatten(0, (-1, 2, target.size)).unbind(1)
    target.enter.weight.data.copy_(
        torch.cat([query.flatten(0, 1), gate.flatten(0, 1), own.k_proj.weight, own.v_proj.weight])
    )
    target.q_gain.data.copy_(own.q_norm.weight + 1)
    target.k_gain.data.copy_(own.k_norm.weight + 1)
    copy(target.leave, own.o_proj)


def copy_experts(target: ChosenExperts, own: nn.Module) -> None:
    target.router.weight.data.copy_(own.gate.weight)
    target.w_in.data.copy_(own.experts.gate_up_proj.unflatten(1, (2, -1)))
    target.w_out.data.copy_(own.experts.down_proj)
    copy(target.shared_in, own.shared_expert.gate_proj, own.shared_expert.up_proj)
    copy(target.shared_out, own.shared_expert.down_proj)
    target.shared_gate.data.copy_(own.shared_expert_gate.weight[0])


def make(_: str | None = None) -> Pair:
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2}
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "experts_implementation": "eager",
    }
    others = {"linear_num_value_heads": 4, "shared_expert_intermediate_size": 20, "full_attention_interval": 2}
    a = build("Qwen3NextForCausalLM", DECODER | EAGER | linear | experts | others | {"head_dim": 16})
    b = Qwen3Next(a.config)
    copy(b.embed, a.model.embed_tokens)
    b.norm.weight.data.copy_(a.model.norm.weight + 1)
    copy(b.head, a.lm_head)
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        layer.norm_a.weight.data.copy_(own.input_layernorm.weight + 1)
        layer.norm_m.weight.data.copy_(own.post_attention_layernorm.weight + 1)
        if isinstance(layer.mixer, DeltaMixer):
            copy_delta(layer.mixer, own.linear_attn)
        else:
            copy_attention(layer.mixer, own.self_attn)
        copy_experts(layer.experts, own.mlp)
    return a, b, (token_ids(),), (token_ids(),)
