"""Models that choose: experts, codes, boxes, buckets, integers; and inputs for which they choose between near-ties.

Each model has `gap`, which returns how far the scores of each row are from another choice, signed, and `margins`, which
returns all distances that another choice could depend on. In float64, these are computed without anything of Filch.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import nn

WIDTH, CHOICES, ROWS = 16, 8, 48


class Scored(nn.Module):
    """A model that scores each row with a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.down = nn.Linear(WIDTH, CHOICES, bias=False), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.randn(CHOICES, WIDTH))

    def gap(self, x: torch.Tensor) -> torch.Tensor:
        """Return the distance between the last score that is chosen and the next one."""
        ordered = self.scores(x).sort(-1, descending=True).values
        return ordered[:, self.chosen - 1] - ordered[:, self.chosen]

    def margins(self, x: torch.Tensor) -> torch.Tensor:
        """Return how far all scores are from each other, or from the threshold: all margins of decisions."""
        return self.distances_between(self.scores(x))

    @staticmethod
    def distances_between(scores: torch.Tensor) -> torch.Tensor:
        """Return the distances of all pairs of scores of a row."""
        return (scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs()

    chosen = 1


class TopK(Scored):
    """Mixes two experts of each row, weighted by the softmax of their scores."""

    chosen = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest, selected = self.scores(x).topk(2, -1)
        return self.down((self.table[selected] * largest.softmax(-1).unsqueeze(-1)).sum(1) + x).tanh()


class Dispatch(TopK):
    """Lets each expert compute the rows that were routed to it, as loops over experts do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest, selected = self.scores(x).topk(2, -1)
        weights, mixed = largest.softmax(-1), torch.zeros_like(x)
        for expert in range(CHOICES):
            rows, ranks = torch.where(selected == expert)
            results = (x[rows] * self.table[expert]).tanh() * weights[rows, ranks].unsqueeze(-1)
            mixed = mixed.index_add(0, rows, results)
        return self.down(mixed + x).tanh()


class Softmax(Scored):
    """The same, but the experts are selected by their probabilities, which are scattered into a matrix."""

    chosen = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = self.scores(x).softmax(-1)
        largest, selected = probabilities.topk(2, -1)
        weights = torch.zeros_like(probabilities).scatter(-1, selected, largest / largest.sum(-1, keepdim=True))
        return self.down(weights @ self.table + x).tanh()

    def gap(self, x: torch.Tensor) -> torch.Tensor:
        ordered = self.scores(x).softmax(-1).sort(-1, descending=True).values
        return ordered[:, 1] - ordered[:, 2]

    def margins(self, x: torch.Tensor) -> torch.Tensor:
        return self.distances_between(self.scores(x).softmax(-1))


class Switch(Scored):
    """Selects one expert of each row by argmax."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.table[self.scores(x).argmax(-1)] + x).tanh()


class Maximum(Scored):
    """Selects one expert of each row by `max`, which also returns the score."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest, selected = self.scores(x).max(-1)
        return self.down(self.table[selected] * largest.unsqueeze(-1) + x).tanh()


class Codes(Scored):
    """Quantizes each row to the nearest code, as VQ-VAE does."""

    def distances(self, x: torch.Tensor) -> torch.Tensor:
        """Return the squared distance of each row from each code."""
        return x.square().sum(-1, keepdim=True) - 2 * x @ self.table.T + self.table.square().sum(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.table[self.distances(x).argmin(-1)]).tanh()

    def gap(self, x: torch.Tensor) -> torch.Tensor:
        ordered = self.distances(x).sort(-1).values
        return ordered[:, 1] - ordered[:, 0]

    def margins(self, x: torch.Tensor) -> torch.Tensor:
        return self.distances_between(self.distances(x))


class Ranked(Scored):
    """Puts the rows of a table in the order of their scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = self.scores(x).argsort(-1, descending=True)
        return self.down((self.table[order] * torch.arange(CHOICES).unsqueeze(-1)).sum(1) / CHOICES + x).tanh()


class Threshold(Scored):
    """Keeps the boxes whose score is above a threshold, as detection heads do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x).sigmoid()
        return self.down(torch.where(scores > 0.5, scores, 0.0) @ self.table + x).tanh()

    def gap(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x).sigmoid()[:, 0] - 0.5

    def margins(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scores(x).sigmoid() - 0.5).abs()


class Buckets(Scored):
    """Looks up the embedding of a bucket of the first score."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        buckets = (self.scores(x)[:, 0] * 4 + 4).clamp(0, CHOICES - 1).long()
        return self.down(self.table[buckets] + x).tanh()

    def gap(self, x: torch.Tensor) -> torch.Tensor:
        numbers = self.scores(x)[:, 0] * 4 + 4
        return numbers - numbers.detach().round().clamp(1, CHOICES - 1)

    def margins(self, x: torch.Tensor) -> torch.Tensor:
        return self.gap(x).abs()


class Rounded(Scored):
    """Rounds its activations to a multiple of a quarter, as models of few bits do; they stay floating-point numbers."""

    jump = 1 / 2  # of a rounded number: where the next one begins

    def numbers(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is rounded."""
        return self.scores(x) * 4

    def rounded(self, numbers: torch.Tensor) -> torch.Tensor:
        """Round numbers."""
        return numbers.round()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down((self.rounded(self.numbers(x)) / 4) @ self.table + x).tanh()

    def distances(self, x: torch.Tensor) -> torch.Tensor:
        """Return how far each number is from the nearest jump, signed."""
        numbers = self.numbers(x)
        return numbers - (numbers - self.jump).detach().round() - self.jump

    def gap(self, x: torch.Tensor) -> torch.Tensor:
        return self.distances(x)[:, 0]

    def margins(self, x: torch.Tensor) -> torch.Tensor:
        return self.distances(x).abs()


class Floored(Rounded):
    """Rounds them down."""

    jump = 0.0

    def rounded(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.floor()


class Signs(Rounded):
    """Keeps their signs, as binary networks do."""

    def rounded(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.sign()

    def distances(self, x: torch.Tensor) -> torch.Tensor:
        return self.numbers(x)


MODELS: dict[str, Callable[[], Scored]] = {
    "top-k": TopK, "top-k of a softmax": Softmax, "argmax": Switch, "max": Maximum, "nearest code": Codes,
    "argsort": Ranked, "threshold": Threshold, "bucket": Buckets, "rounded": Rounded, "floor": Floored,
    "sign": Signs,
}  # fmt: skip


def near_ties(
    model: Scored, dtype: torch.dtype, margins: torch.Tensor, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an input with near-ties in the first rows, and all margins in float64.

    Args:
        model: the model, in `dtype`.
        dtype: the dtype of the input.
        margins: the gap that each of the first rows should have; rounding of the input to `dtype` changes it.
        seed: of the random input.
    """
    exact = deepcopy(model).double()
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
    count = len(margins)
    for _ in range(20):
        rows = x[:count].clone().requires_grad_()
        gap = exact.gap(rows)
        (slope,) = torch.autograd.grad(gap.sum(), rows)
        x[:count] -= ((gap.detach() - margins.double()) / slope.square().sum(-1)).unsqueeze(-1) * slope
    x = x.to(dtype)
    with torch.no_grad():
        return x, exact.margins(x.double())
