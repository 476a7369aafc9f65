"""A small decoder, and a port of it with other modules, fused weights and other layouts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, INNER, VOCABULARY, LAYERS = 24, 3, 40, 50, 3
HEAD_WIDTH = WIDTH // HEADS


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = [layer(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        scores = heads[0] @ heads[1].transpose(2, 3) / HEAD_WIDTH**0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.output((weights @ heads[2]).transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """The reference implementation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class PortedLayer(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        self.ln1 = nn.LayerNorm(WIDTH, eps=1e-3 if bug == "epsilon" else 1e-5)
        self.ln2 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.w1, self.w2 = nn.Parameter(torch.zeros(WIDTH, INNER)), nn.Parameter(torch.zeros(INNER, WIDTH))
        self.b1, self.b2 = nn.Parameter(torch.zeros(INNER)), nn.Parameter(torch.zeros(WIDTH))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, HEADS, 3, HEAD_WIDTH).unbind(3)
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        scores = scores if self.bug == "scale" else scores * HEAD_WIDTH**-0.5
        if self.bug != "mask":
            scores = scores + torch.full((length, length), float("-inf")).triu(1)
        heads = torch.einsum("bhij,bjhd->bihd" if self.bug != "heads" else "bhij,bjhd->bhid", scores.softmax(-1), v)
        return self.proj(heads.reshape(batch, length, -1))

    def feed(self, x: Tensor) -> Tensor:
        inner = functional.gelu(x @ self.w1 + self.b1, approximate="tanh" if self.bug == "gelu" else "none")
        return inner @ self.w2 + self.b2

    def forward(self, x: Tensor) -> Tensor:
        x = (self.ln1(x) if self.bug == "residual" else x) + self.attend(self.ln1(x))
        return x + self.feed(self.ln2(x))


class Ported(nn.Module):
    """The port."""

    def __init__(self, bugs: dict[int, str]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(PortedLayer(bugs.get(index, "")) for index in range(LAYERS))
        self.final = nn.LayerNorm(WIDTH)
        self.logits = nn.Parameter(torch.zeros(WIDTH, VOCABULARY))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.final(x) @ self.logits


# The module of the port in which each bug is, in a block.
BUGS = {
    "epsilon": "ln1", "scale": "", "mask": "", "heads": "", "gelu": "", "residual": "", "transposed": "proj",
}  # fmt: skip


def port(bugs: dict[int, str] | None = None) -> tuple[Decoder, Ported, tuple[Tensor]]:
    """Return the decoder, its port with bugs in some of its blocks, and the arguments of both."""
    bugs = bugs or {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, ported = Decoder().eval(), Ported(bugs).eval()
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3 if parameter.ndim > 1 else 0.1).add_("norm" in name and name.endswith("weight"))
        tokens = torch.randperm(VOCABULARY)[:14].view(2, 7)
        ported.tokens.weight.copy_(model.embed.weight)
        ported.final.load_state_dict(model.norm.state_dict())
        ported.logits.copy_(model.head.weight.T)
        for index, (layer, block) in enumerate(zip(model.layers, ported.blocks, strict=True)):
            block.ln1.load_state_dict(layer.norm_1.state_dict())
            block.ln2.load_state_dict(layer.norm_2.state_dict())
            parts = (layer.attention.query, layer.attention.key, layer.attention.value)
            block.qkv.weight.copy_(_packed([part.weight for part in parts]))
            block.qkv.bias.copy_(_packed([part.bias for part in parts]))
            block.proj.load_state_dict(layer.attention.output.state_dict())
            if bugs.get(index) == "transposed":
                block.proj.weight.copy_(layer.attention.output.weight.T)
            block.w1.copy_(layer.up.weight.T)
            block.w2.copy_(layer.down.weight.T)
            block.b1.copy_(layer.up.bias)
            block.b2.copy_(layer.down.bias)
    return model, ported, (tokens,)


def _packed(parts: list[Tensor]) -> Tensor:
    """Return the weights of queries, keys and values with those of each head next to each other."""
    heads = [part.view(HEADS, HEAD_WIDTH, *part.shape[1:]) for part in parts]
    return torch.stack(heads, 1).flatten(0, 2)
