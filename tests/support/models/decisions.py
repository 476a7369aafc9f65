"""Models that compute integers from floating-point numbers, and numbers for which rounding decides these integers."""

import numpy as np
import torch
from torch import nn

COUNT, WIDTH = 64, 16
ALMOST_TEN = float(np.nextafter(np.float32(10), np.float32(0)))


class Buckets(nn.Module):
    """Adds the embeddings of rounded numbers to its input, as models with relative positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.norm, self.down = nn.Embedding(COUNT + 1, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(x + self.bias((numbers * 10).long())).tanh())


class Experts(nn.Module):
    """Mixtures of experts, of which the router selects two for each token, and the most probable of 1,000 tokens."""

    def __init__(self, *, layers: int = 4, width: int = 64, experts: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, width), nn.Linear(width, 1000)
        self.layers = nn.ModuleList(_MixtureOfExperts(width, experts) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x).argmax(-1), x


class _MixtureOfExperts(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        probabilities = self.router(x).softmax(-1)
        largest, selected = probabilities.topk(2, -1)
        weights = torch.zeros_like(probabilities).scatter(-1, selected, largest / largest.sum(-1, keepdim=True))
        results = (x @ self.up).relu() @ self.down
        return torch.einsum("etw,te->tw", results, weights)


def above_integers() -> torch.Tensor:
    """Return numbers that are slightly larger than tenths, so that ten times each is slightly more than an integer."""
    return torch.nextafter(torch.arange(1, COUNT + 1) / 10, torch.tensor(torch.inf))


def rounded_to_integers() -> torch.Tensor:
    """Return numbers of which ten times each is an integer in float32, and less in float64."""
    numbers = torch.arange(1, 100 * COUNT) / 10
    products = numbers * 10
    numbers = numbers[(products == products.round()) & (numbers.double() * 10 < products.double())]
    numbers = numbers[numbers * 10 <= COUNT]
    return numbers.repeat(COUNT)[:COUNT]
