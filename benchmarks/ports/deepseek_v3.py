"""DeepSeek-V3 whose attention stays in the latent space, and whose experts all run and are weighted afterwards."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import DeepseekV3Config

from support.models.zoo import ENCODER, NO_CACHE, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids

LATENT_EPS = 1e-6


class Attention(nn.Module):
    """Attention with the expansions of keys and values joined to the queries and the output."""

    def __init__(self, config: DeepseekV3Config, bug: str | None):
        super().__init__()
        self.bug, heads, latent = bug, config.num_attention_heads, config.kv_lora_rank
        plain, self.turned = config.qk_nope_head_dim, config.qk_rope_head_dim
        self.heads, self.plain, self.scale = heads, plain, (plain + self.turned) ** -0.5
        self.sizes = [config.q_lora_rank, latent, self.turned]
        self.shrink = nn.Linear(config.hidden_size, sum(self.sizes), bias=False)
        self.norm_q, self.norm_kv = nn.RMSNorm(config.q_lora_rank, LATENT_EPS), nn.RMSNorm(latent, LATENT_EPS)
        self.queries = nn.Linear(config.q_lora_rank, heads * (plain + self.turned), bias=False)
        self.keys = nn.Parameter(torch.zeros(heads, plain, latent))
        self.values = nn.Parameter(torch.zeros(heads, latent, config.v_head_dim))
        self.out = nn.Parameter(torch.zeros(heads, config.v_head_dim, config.hidden_size))

    def rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        real, imaginary = x[..., ::2], x[..., 1::2]
        if self.bug == "rotary layout":
            real, imaginary = x.chunk(2, -1)
        cos, sin = turns.unbind(-1)
        return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1).flatten(-2)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        q, latent, key = self.shrink(x).split(self.sizes, -1)
        q = self.queries(self.norm_q(q)).unflatten(-1, (self.heads, -1))
        plain, turned = q[..., : self.plain], q[..., self.plain :]
        latent = self.norm_kv(latent)
        wanted = torch.einsum("bihd,hdr->bihr", plain, self.keys)
        scores = torch.einsum("bihr,bjr->bhij", wanted, latent)
        scores = scores + torch.einsum("bihd,bjd->bhij", self.rotate(turned, turns[:, None]), self.rotate(key, turns))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        shares = (scores * self.scale).masked_fill(later, -torch.inf).softmax(-1)
        mixed = torch.einsum("bhij,bjr->bihr", shares, latent)
        return torch.einsum("bihv,hvd->bid", torch.einsum("bihr,hrv->bihv", mixed, self.values), self.out)


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.both, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(silu(gate) * up)


class Mixture(nn.Module):
    """Experts in groups, of which the best ones of the best groups count, and one that always does."""

    def __init__(self, config: DeepseekV3Config, bug: str | None):
        super().__init__()
        self.bug = bug
        count, width, inner = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.router = nn.Linear(width, count, bias=False)
        self.register_buffer("preference", torch.zeros(count))
        self.gate, self.up = (nn.Parameter(torch.zeros(width, count, inner)) for _ in range(2))
        self.down = nn.Parameter(torch.zeros(count, inner, width))
        self.shared = Mlp(width, inner * config.n_shared_experts)
        self.groups, self.best_groups = config.n_group, config.topk_group
        self.chosen, self.factor = config.num_experts_per_tok, config.routed_scaling_factor

    def route(self, x: Tensor) -> Tensor:
        """Return the weight of each expert for each token."""
        scores = self.router(x).sigmoid()
        wanted = scores if self.bug == "no preference" else scores + self.preference
        grouped = wanted.unflatten(-1, (self.groups, -1))
        best = grouped.topk(2).values.sum(-1).topk(self.best_groups).indices
        allowed = torch.zeros(grouped.shape[:-1], dtype=torch.bool).scatter(-1, best, value=True)
        chosen = grouped.masked_fill(~allowed[..., None], -torch.inf).flatten(-2).topk(self.chosen).indices
        shares = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        return shares / shares.sum(-1, keepdim=True) * self.factor

    def forward(self, x: Tensor) -> Tensor:
        shares = self.route(x)
        gate, up = torch.einsum("bid,def->bief", x, self.gate), torch.einsum("bid,def->bief", x, self.up)
        hidden = silu(gate) * up * shares[..., None]
        return torch.einsum("bief,efd->bid", hidden, self.down) + self.shared(x)


class Layer(nn.Module):
    def __init__(self, config: DeepseekV3Config, index: int, bug: str | None):
        super().__init__()
        self.norm_a, self.norm_m = (nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.attention = Attention(config, bug)
        is_dense = index < config.first_k_dense_replace
        self.mlp = Mlp(config.hidden_size, config.intermediate_size) if is_dense else Mixture(config, bug)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.norm_a(x), turns)
        return x + self.mlp(self.norm_m(x))


class DeepSeek(nn.Module):
    def __init__(self, config: DeepseekV3Config, bug: str | None):
        super().__init__()
        self.size, self.theta = config.qk_rope_head_dim, config.rope_parameters["rope_theta"]
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index, bug) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def turns(self, length: int) -> Tensor:
        """Return the cosines and sines, `[length, pairs, 2]`."""
        speeds = self.theta ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.arange(length)[:, None] * speeds
        return torch.stack([angles.cos(), angles.sin()], -1)

    def forward(self, ids: Tensor) -> Tensor:
        x, turns = self.embed(ids), self.turns(ids.shape[1])
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


def copy_attention(target: Attention, source: nn.Module) -> None:
    """Copy an attention, with the expansion of the latent values cut into that of the keys and that of the values."""
    copy(target.shrink, source.q_a_proj, source.kv_a_proj_with_mqa)
    copy_parts(target, source, norm_q="q_a_layernorm", norm_kv="kv_a_layernorm", queries="q_b_proj")
    heads = source.kv_b_proj.weight.unflatten(0, (target.heads, -1))
    target.keys.data.copy_(heads[:, : target.plain])
    target.values.data.copy_(heads[:, target.plain :].mT)
    target.out.data.copy_(source.o_proj.weight.T.unflatten(0, (target.heads, -1)))


def make(bug: str | None = None) -> Pair:
    attention = {"q_lora_rank": 24, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
    experts = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "n_shared_experts": 1}
    others = {"num_key_value_heads": 4, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    settings = ENCODER | NO_CACHE | EAGER | attention | experts | others
    a = build("DeepseekV3ForCausalLM", settings | {"experts_implementation": "eager"})
    b = DeepSeek(a.config, bug)
    copy_parts(b, a, embed="model.embed_tokens", norm="model.norm", head="lm_head")
    generator = torch.Generator().manual_seed(4)
    for own, layer in zip(a.model.layers, b.layers, strict=True):
        copy_parts(layer, own, norm_a="input_layernorm", norm_m="post_attention_layernorm")
        copy_attention(layer.attention, own.self_attn)
        mlp = own.mlp
        if isinstance(layer.mlp, Mixture):
            mlp.gate.e_score_correction_bias.normal_(std=0.2, generator=generator)
            layer.mlp.preference.copy_(mlp.gate.e_score_correction_bias)
            layer.mlp.router.weight.data.copy_(mlp.gate.weight)
            for target, part in zip((layer.mlp.gate, layer.mlp.up), mlp.experts.gate_up_proj.chunk(2, 1), strict=True):
                target.data.copy_(part.permute(2, 0, 1))
            layer.mlp.down.data.copy_(mlp.experts.down_proj.mT)
            mlp = mlp.shared_experts
        dense: Mlp = layer.mlp.shared if isinstance(layer.mlp, Mixture) else layer.mlp
        copy(dense.both, mlp.gate_proj, mlp.up_proj)
        copy(dense.down, mlp.down_proj)
    return a, b, (token_ids(),), (token_ids(),)
