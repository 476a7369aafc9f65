"""Mamba 2 in its dual form: one product for all pairs of tokens, with the skip on its diagonal, and folded gains."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad, silu, softplus
from transformers import Mamba2Config

from support.models.zoo import STATE_SPACE, build

from ._port import Pair, copy, copy_parts, token_ids


class DualMixer(nn.Module):
    def __init__(self, config: Mamba2Config, bug: str | None):
        super().__init__()
        self.bug, self.eps = bug, config.layer_norm_epsilon
        width, inner = config.hidden_size, config.expand * config.hidden_size
        self.heads, self.groups, self.states = config.num_heads, config.n_groups, config.state_size
        self.sizes = [inner, self.groups * self.states, self.groups * self.states]
        self.z, self.xbc = nn.Linear(width, inner, bias=False), nn.Linear(width, sum(self.sizes), bias=False)
        self.dt = nn.Linear(width, self.heads)
        self.kernel = nn.Parameter(torch.zeros(sum(self.sizes), 1, config.conv_kernel))
        self.offset = nn.Parameter(torch.zeros(sum(self.sizes)))
        self.decay, self.skip = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.ones(self.heads))
        self.out = nn.Linear(inner, width, bias=False)

    def convolve(self, x: Tensor) -> Tensor:
        padded = pad(x.mT, (self.kernel.shape[-1] - 1, 0))
        return silu(conv1d(padded, self.kernel, self.offset, groups=len(self.kernel))).mT

    def decays(self, steps: Tensor) -> Tensor:
        """Return how much of the state of each token is left at each later one, `[batch, heads, later, token]`."""
        logs = (steps * self.decay).mT
        total = logs.cumsum(-1)
        if self.bug == "one decay too many":
            total = total + logs
        later = total[..., :, None] - total[..., None, :]
        return later.masked_fill(torch.ones(later.shape[-2:], dtype=torch.bool).triu(1), -torch.inf).exp()

    def mix(self, x: Tensor, steps: Tensor, into: Tensor, out: Tensor) -> Tensor:
        pairs = torch.einsum("bign,bjgn->bgij", out, into).repeat_interleave(self.heads // self.groups, 1)
        pairs = pairs * self.decays(steps) * steps.mT[:, :, None]
        pairs = pairs + torch.diag_embed(self.skip[:, None].expand(-1, x.shape[1]))
        return torch.einsum("bhij,bjhp->bihp", pairs, x)

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize each group of channels; the gain is in the weight that follows."""
        groups = x.unflatten(-1, (1 if self.bug == "one group" else self.groups, -1))
        return (groups * (groups.square().mean(-1, keepdim=True) + self.eps).rsqrt()).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        gate, steps = silu(self.z(x)), softplus(self.dt(x))
        x, into, out = self.convolve(self.xbc(x)).split(self.sizes, -1)
        into, out = (part.unflatten(-1, (self.groups, -1)) for part in (into, out))
        y = self.mix(x.unflatten(-1, (self.heads, -1)), steps, into, out).flatten(-2)
        return self.out(self.normalize(y * gate))


class Mamba2(nn.Module):
    def __init__(self, config: Mamba2Config, bug: str | None):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_epsilon
        self.embed = nn.Embedding(config.vocab_size, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps) for _ in range(config.num_hidden_layers))
        self.mixers = nn.ModuleList(DualMixer(config, bug) for _ in range(config.num_hidden_layers))
        self.norm, self.head = nn.RMSNorm(width, eps), nn.Linear(width, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.head(self.norm(x))


def make(bug: str | None = None) -> Pair:
    heads = {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}
    a = build("Mamba2ForCausalLM", STATE_SPACE | heads)
    b = Mamba2(a.config, bug)
    copy_parts(b, a, embed="backbone.embeddings", norm="backbone.norm_f", head="lm_head")
    for layer, norm, mixer in zip(a.backbone.layers, b.norms, b.mixers, strict=True):
        own = layer.mixer
        copy(norm, layer.norm)
        parts = own.in_proj.weight.split([mixer.sizes[0], sum(mixer.sizes), mixer.heads])
        for target, part in zip((mixer.z, mixer.xbc, mixer.dt), parts, strict=True):
            target.weight.data.copy_(part)
        mixer.dt.bias.data.copy_(own.dt_bias)
        mixer.kernel.data.copy_(own.conv1d.weight)
        mixer.offset.data.copy_(own.conv1d.bias)
        mixer.decay.data.copy_(-own.A_log.exp())
        mixer.skip.data.copy_(own.D)
        mixer.out.weight.data.copy_(own.out_proj.weight * own.norm.weight)
    return a, b, (token_ids(),), (token_ids(),)
