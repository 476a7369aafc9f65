"""RWKV with the length first, a softmax over the tokens before for its states, and weights that mix two tokens."""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from transformers import RwkvConfig

from support.models.zoo import LAYERS, NO_CACHE, STACK, TEXT, build

from ._port import Pair, copy, copy_parts, token_ids

NEVER = -torch.inf


def with_last(x: Tensor) -> Tensor:
    """Return tokens `[length, batch, width]`, each beside the one before."""
    return torch.cat([x, torch.cat([torch.zeros_like(x[:1]), x[:-1]])], -1)


class TimeMix(nn.Module):
    """Key, value and receptance read a token and the one before, whose shares are in the weights."""

    def __init__(self, width: int, bug: str | None):
        super().__init__()
        self.bug, self.width = bug, width
        self.kvr, self.out = nn.Linear(2 * width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.decay, self.bonus = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def shares(self, k: Tensor) -> Tensor:
        """Return the share of each token in each later one, `[later, token, batch, width]`."""
        places = torch.arange(len(k))
        age = places[:, None] - places - (0 if self.bug == "age" else 1)
        late = k - age[..., None, None] * self.decay
        now = torch.eye(len(k), dtype=torch.bool)[..., None, None]
        logits = torch.where(now, k + self.bonus, late)
        return logits.masked_fill((places[:, None] < places)[..., None, None], NEVER).softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        k, v, r = self.kvr(with_last(x)).split(self.width, -1)
        return self.out(torch.einsum("tsbc,sbc->tbc", self.shares(k), v) * r.sigmoid())


class ChannelMix(nn.Module):
    def __init__(self, width: int, inner: int, bug: str | None):
        super().__init__()
        self.bug, self.sizes = bug, [inner, width]
        self.kr, self.value = nn.Linear(2 * width, inner + width, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        k, r = self.kr(with_last(x)).split(self.sizes, -1)
        k = k.relu() if self.bug == "not squared" else k.clamp(min=0) ** 2
        return self.value(k) * r.sigmoid()


class Block(nn.Module):
    def __init__(self, config: RwkvConfig, bug: str | None):
        super().__init__()
        width = config.hidden_size
        self.gains, self.shifts = nn.Parameter(torch.ones(2, width)), nn.Parameter(torch.zeros(2, width))
        self.eps = config.layer_norm_epsilon
        self.time, self.channels = TimeMix(width, bug), ChannelMix(width, config.intermediate_size, bug)

    def normalize(self, index: int, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.gains[index], self.shifts[index], self.eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.time(self.normalize(0, x))
        return x + self.channels(self.normalize(1, x))


class Rwkv(nn.Module):
    def __init__(self, config: RwkvConfig, bug: str | None):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_epsilon
        self.words = nn.Embedding(config.vocab_size, width)  # normalized, as nothing is added to words
        self.blocks = nn.Sequential(*(Block(config, bug) for _ in range(config.num_hidden_layers)))
        self.norm, self.head = nn.LayerNorm(width, eps), nn.Linear(width, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids.T)))).transpose(0, 1)


def mixed(weight: Tensor, share: Tensor) -> Tensor:
    """Return the weight of a layer that reads a token and the one before."""
    return torch.cat([weight * share.flatten(), weight * (1 - share.flatten())], 1)


def copy_block(target: Block, own: nn.Module) -> None:
    """Copy a layer."""
    target.gains.data.copy_(torch.stack([own.ln1.weight, own.ln2.weight]))
    target.shifts.data.copy_(torch.stack([own.ln1.bias, own.ln2.bias]))
    time, channels = own.attention, own.feed_forward
    kvr = [
        mixed(time.key.weight, time.time_mix_key),
        mixed(time.value.weight, time.time_mix_value),
        mixed(time.receptance.weight, time.time_mix_receptance),
    ]
    target.time.kvr.weight.data.copy_(torch.cat(kvr))
    target.time.decay.data.copy_(time.time_decay.exp())
    target.time.bonus.data.copy_(time.time_first)
    copy(target.time.out, time.output)
    kr = [
        mixed(channels.key.weight, channels.time_mix_key),
        mixed(channels.receptance.weight, channels.time_mix_receptance),
    ]
    target.channels.kr.weight.data.copy_(torch.cat(kr))
    copy(target.channels.value, channels.value)


def make(bug: str | None = None) -> Pair:
    settings = {name: size for name, size in STACK.items() if name != "num_attention_heads"}
    a = build("RwkvForCausalLM", TEXT | NO_CACHE | settings | {"num_hidden_layers": LAYERS})
    b = Rwkv(a.config, bug)
    b.words.weight.data.copy_(a.rwkv.blocks[0].pre_ln(a.rwkv.embeddings.weight))
    for own, block in zip(a.rwkv.blocks, b.blocks, strict=True):
        copy_block(block, own)
    copy_parts(b, a, norm="rwkv.ln_out", head="head")
    return a, b, (token_ids(),), (token_ids(),)
