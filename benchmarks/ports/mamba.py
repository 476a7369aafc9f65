"""Mamba with split projections, a convolution written out as a sum, and a scan over single tokens."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu, softplus
from transformers import MambaConfig

from support.models.zoo import STATE_SPACE, build

from ._port import Pair, copy, copy_parts, token_ids


class Mixer(nn.Module):
    def __init__(self, config: MambaConfig, bug: str | None):
        super().__init__()
        self.bug = bug
        width, inner, states, rank = (
            config.hidden_size,
            config.intermediate_size,
            config.state_size,
            config.time_step_rank,
        )
        self.to_x, self.to_gate = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.taps, self.offset = nn.Parameter(torch.zeros(config.conv_kernel, inner)), nn.Parameter(torch.zeros(inner))
        self.to_step = nn.Linear(inner, rank, bias=False)
        self.to_in, self.to_out = (nn.Linear(inner, states, bias=False) for _ in range(2))
        self.step = nn.Linear(rank, inner)
        self.log_decay, self.skip = nn.Parameter(torch.zeros(inner, states)), nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, width, bias=False)

    def convolve(self, x: Tensor) -> Tensor:
        size = len(self.taps) - 1
        before = size - 1 if self.bug == "convolution sees the next token" else size
        padded = pad(x, (0, 0, before, size - before))
        return sum(tap * padded[:, index : index + x.shape[1]] for index, tap in enumerate(self.taps)) + self.offset

    def scan(self, x: Tensor, steps: Tensor, into: Tensor, out: Tensor) -> Tensor:
        rates = -self.log_decay.exp()
        state, results = torch.zeros(len(x), *rates.shape), []
        for index in range(x.shape[1]):
            step = steps[:, index, :, None]
            state = (step * rates).exp() * state + step * into[:, index, None] * x[:, index, :, None]
            results.append((state * out[:, index, None]).sum(-1))
        return torch.stack(results, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.to_x(x), self.to_gate(x)
        x = silu(self.convolve(x))
        steps = self.step(self.to_step(x))
        steps = steps.exp() if self.bug == "exponential steps" else softplus(steps)
        y = self.scan(x, steps, self.to_in(x), self.to_out(x))
        if self.bug != "no skip":
            y = y + self.skip * x
        return self.out(y * silu(gate))


class Mamba(nn.Module):
    def __init__(self, config: MambaConfig, bug: str | None):
        super().__init__()
        count, eps = config.num_hidden_layers, config.layer_norm_epsilon
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norms = nn.ModuleList(nn.RMSNorm(config.hidden_size, eps) for _ in range(count + 1))
        self.mixers = nn.ModuleList(Mixer(config, bug) for _ in range(count))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            x = x + mixer(norm(x))
        return self.norms[-1](x) @ self.embed.weight.T


def make(bug: str | None = None) -> Pair:
    a = build("MambaForCausalLM", STATE_SPACE)
    b = Mamba(a.config, bug)
    copy(b.embed, a.backbone.embeddings)
    for own, norm in zip((*(layer.norm for layer in a.backbone.layers), a.backbone.norm_f), b.norms, strict=True):
        copy(norm, own)
    sizes = [a.config.time_step_rank, a.config.state_size, a.config.state_size]
    for layer, mixer in zip(a.backbone.layers, b.mixers, strict=True):
        own = layer.mixer
        parts = *own.in_proj.weight.chunk(2), *own.x_proj.weight.split(sizes)
        targets = mixer.to_x, mixer.to_gate, mixer.to_step, mixer.to_in, mixer.to_out
        for target, part in zip(targets, parts, strict=True):
            target.weight.data.copy_(part)
        mixer.taps.data.copy_(own.conv1d.weight[:, 0].T)
        mixer.offset.data.copy_(own.conv1d.bias)
        copy_parts(mixer, own, step="dt_proj", out="out_proj")
        mixer.log_decay.data.copy_(own.A_log)
        mixer.skip.data.copy_(own.D)
    return a, b, (token_ids(),), (token_ids(),)
