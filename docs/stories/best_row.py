"""Which row of which channel of which image responds most? (pytorch/pytorch#193751)."""

import torch
from torch import nn


class Spotter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.score = nn.Conv2d(8, 4, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = self.score(self.stem(images)).mean(dim=-1)
        return rows.argmax()


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Spotter().eval(), (torch.randn(2, 3, 16, 16),)
