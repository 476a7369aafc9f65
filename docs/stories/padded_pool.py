"""The end of a YOLOv3-tiny backbone: a zero padding in front of a pooling (microsoft/onnxruntime#24737)."""

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(0.1))
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))
        self.pool = nn.MaxPool2d(2, stride=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.pad(self.stem(image))))


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return Backbone().eval(), (torch.randn(1, 3, 6, 6),)
