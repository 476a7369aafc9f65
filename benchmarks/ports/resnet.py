"""ResNet with batch norms folded into the convolutions, and channels in the last dimension in memory."""

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, relu

from support.models.zoo import build

from ._port import BATCH, Pair, copy


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, bug: str | None):
        super().__init__()
        self.bug = bug
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        skipped = x if self.skip is None else self.skip(x)
        y = self.second(relu(self.first(x)))
        return relu(y) + skipped if self.bug == "activation before the sum" else relu(y + skipped)


class ResNet(nn.Module):
    def __init__(self, bug: str | None):
        super().__init__()
        self.bug = bug
        self.stem = nn.Conv2d(3, 8, 7, 2, 3)
        self.blocks = nn.Sequential(Block(8, 16, 1, bug), Block(16, 24, 2, bug), Block(24, 24, 1, bug))
        self.head = nn.Linear(24, 2)

    def forward(self, pixels: Tensor) -> Tensor:
        x = relu(self.stem(pixels.contiguous(memory_format=torch.channels_last)))
        pool = avg_pool2d if self.bug == "average pooling" else max_pool2d
        return self.head(self.blocks(pool(x, 3, 2, 1)).mean((2, 3)))


def fold(target: nn.Conv2d, source: nn.Module, bug: str | None) -> None:
    """Copy a convolution and its batch norm to a convolution."""
    norm = source.normalization
    factor = norm.weight / torch.sqrt(norm.running_var + (1e-2 if bug == "eps" else norm.eps))
    target.weight.data.copy_(source.convolution.weight * factor[:, None, None, None])
    target.bias.data.copy_(norm.bias - norm.running_mean * factor)


def make(bug: str | None = None) -> Pair:
    settings = {"embedding_size": 8, "hidden_sizes": [16, 24], "depths": [1, 2], "layer_type": "basic"}
    a = build("ResNetForImageClassification", settings)
    b = ResNet(bug).eval()
    fold(b.stem, a.resnet.embedder.embedder, bug)
    layers = [layer for stage in a.resnet.encoder.stages for layer in stage.layers]
    for own, block in zip(layers, b.blocks, strict=True):
        fold(block.first, own.layer[0], bug)
        fold(block.second, own.layer[1], bug)
        if block.skip is not None:
            fold(block.skip, own.shortcut, bug)
    copy(b.head, a.classifier[1])
    pixels = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return a, b.to(memory_format=torch.channels_last), (pixels,), (pixels,)
