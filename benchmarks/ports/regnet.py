"""RegNet with channels last, groups of channels as a batch of products, and batch norms of a factor and an offset."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu
from transformers import RegNetConfig

from support.models.zoo import build

from ._port import BATCH, Pair
from .efficientnet import measure


class FrozenNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.factor, self.offset = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + self.offset


class GroupedKernel(nn.Module):
    """A convolution of 3 by 3 places, as products of the places around each one, for images with channels last."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int):
        super().__init__()
        self.stride, self.groups = stride, groups
        self.kernel = nn.Parameter(torch.zeros(groups, 9 * inputs // groups, outputs // groups))

    def around(self, x: Tensor) -> Tensor:
        """Return the places around each one, `[batch, height, width, channels, 3, 3]`."""
        padded = pad(x, (0, 0, 1, 1, 1, 1))
        return padded.unfold(1, 3, self.stride).unfold(2, 3, self.stride)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.around(x).unflatten(3, (self.groups, -1)).flatten(4)
        return torch.einsum("bhwgk,gko->bhwgo", parts, self.kernel).flatten(3)


class ChannelShares(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.shrink, self.grow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((1, 2))
        shares = torch.sigmoid(self.grow(relu(self.shrink(means))))
        return x * shares[:, None, None]


class YBlock(nn.Module):
    def __init__(self, own: nn.Module):
        super().__init__()
        first, second, shares, third = own.layer
        inputs, width, stride = first.convolution.in_channels, third.convolution.out_channels, second.convolution.stride
        self.stride = stride[0]
        self.enter, self.leave = nn.Linear(inputs, width, bias=False), nn.Linear(width, width, bias=False)
        self.mix = GroupedKernel(width, width, self.stride, second.convolution.groups)
        self.norm1, self.norm2, self.norm3 = (FrozenNorm(width) for _ in range(3))
        self.shares = ChannelShares(width, shares.attention[0].out_channels)
        is_same = isinstance(own.shortcut, nn.Identity)
        self.skip = None if is_same else nn.Linear(inputs, width, bias=False)
        self.skip_norm = None if is_same else FrozenNorm(width)

    def skipped(self, x: Tensor) -> Tensor:
        if self.skip is None or self.skip_norm is None:
            return x
        return self.skip_norm(self.skip(x[:, :: self.stride, :: self.stride]))

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.enter(x)))
        y = relu(self.norm2(self.mix(y)))
        y = self.norm3(self.leave(self.shares(y)))
        return relu(y + self.skipped(x))


class RegNet(nn.Module):
    def __init__(self, config: RegNetConfig, own: nn.Module):
        super().__init__()
        self.stem, self.stem_norm = (
            GroupedKernel(config.num_channels, config.embedding_size, 2, 1),
            FrozenNorm(config.embedding_size),
        )
        layers = [layer for stage in own.encoder.stages for layer in stage.layers]
        self.blocks = nn.Sequential(*(YBlock(layer) for layer in layers))
        self.head = nn.Linear(config.hidden_sizes[-1], config.num_labels)

    def forward(self, pixels: Tensor) -> Tensor:
        x = relu(self.stem_norm(self.stem(pixels.permute(0, 2, 3, 1))))
        return self.head(self.blocks(x).mean((1, 2)))


def copy_norm(target: FrozenNorm, own: nn.Module) -> None:
    factor = own.weight / (own.running_var + own.eps).sqrt()
    target.factor.data.copy_(factor)
    target.offset.data.copy_(own.bias - own.running_mean * factor)


def copy_kernel(target: GroupedKernel, own: nn.Conv2d) -> None:
    target.kernel.data.copy_(own.weight.flatten(1).unflatten(0, (target.groups, -1)).mT)


def copy_block(target: YBlock, own: nn.Module) -> None:
    first, second, shares, third = own.layer
    products = [(target.enter, first), (target.leave, third)]
    norms = [(target.norm1, first), (target.norm2, second), (target.norm3, third)]
    if target.skip is not None and target.skip_norm is not None:
        products.append((target.skip, own.shortcut))
        norms.append((target.skip_norm, own.shortcut))
    for linear, part in products:
        linear.weight.data.copy_(part.convolution.weight[..., 0, 0])
    for norm, part in norms:
        copy_norm(norm, part.normalization)
    copy_kernel(target.mix, second.convolution)
    for linear, convolution in ((target.shares.shrink, shares.attention[0]), (target.shares.grow, shares.attention[2])):
        linear.weight.data.copy_(convolution.weight[..., 0, 0])
        linear.bias.data.copy_(convolution.bias)


def make(_: str | None = None) -> Pair:
    sizes = {"embedding_size": 16, "hidden_sizes": [32, 48], "depths": [1, 2], "groups_width": 16, "num_labels": 5}
    a = build("RegNetForImageClassification", sizes | {"layer_type": "y"})
    pixels = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    measure(a, pixels)
    own = a.regnet
    b = RegNet(a.config, own)
    copy_kernel(b.stem, own.embedder.embedder.convolution)
    copy_norm(b.stem_norm, own.embedder.embedder.normalization)
    for layer, block in zip((layer for stage in own.encoder.stages for layer in stage.layers), b.blocks, strict=True):
        copy_block(block, layer)
    b.head.weight.data.copy_(a.classifier[1].weight)
    b.head.bias.data.copy_(a.classifier[1].bias)
    return a, b, (pixels,), (pixels,)
