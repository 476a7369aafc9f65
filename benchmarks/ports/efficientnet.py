"""EfficientNet with channels last, products for convolutions of one pixel, sums of moved images, and no batch norms."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, silu
from transformers import EfficientNetConfig

from support.models.zoo import build

from ._port import BATCH, Pair, copy


class Depthwise(nn.Module):
    """A convolution of each channel, as a sum over the places of its kernel."""

    def __init__(self, width: int, size: int, stride: int):
        super().__init__()
        self.stride, self.taps = stride, nn.Parameter(torch.zeros(size, size, width))
        self.offset = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        half = len(self.taps) // 2
        before = half if self.stride == 1 else half - 1
        padded = pad(x, (0, 0, before, half, before, half))
        high, wide = (size // self.stride for size in x.shape[1:3])
        total = self.offset
        for row, taps in enumerate(self.taps):
            for column, tap in enumerate(taps):
                part = padded[:, row :: self.stride, column :: self.stride][:, :high, :wide]
                total = total + part * tap
        return total


class Squeeze(nn.Module):
    """Weights the channels by their means."""

    def __init__(self, width: int, inner: int, bug: str | None):
        super().__init__()
        self.bug = bug
        self.shrink, self.grow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((1, 2), keepdim=True)
        hidden = self.shrink(means)
        hidden = hidden.relu() if self.bug == "relu" else silu(hidden)
        return x * self.grow(hidden).sigmoid()


class MobileBlock(nn.Module):
    def __init__(self, own: nn.Module, bug: str | None):
        super().__init__()
        depthwise, projection = own.depthwise_conv.depthwise_conv, own.projection.project_conv
        inner, reduced = depthwise.out_channels, own.squeeze_excite.dim_se
        self.is_residual = own.projection.apply_dropout
        self.expand = nn.Linear(own_inputs(own), inner) if own.expand else None
        self.depthwise = Depthwise(inner, depthwise.kernel_size[0], depthwise.stride[0])
        self.squeeze = Squeeze(inner, reduced, bug)
        self.project = nn.Linear(inner, projection.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else silu(self.expand(x))
        y = self.squeeze(silu(self.depthwise(y)))
        return self.project(y) + x if self.is_residual else self.project(y)


class EfficientNet(nn.Module):
    def __init__(self, config: EfficientNetConfig, own: nn.Module, bug: str | None):
        super().__init__()
        stem, top = own.embeddings.convolution, own.encoder.top_conv
        self.kernel = nn.Parameter(torch.zeros(3, 3, config.num_channels, stem.out_channels))  # as in TensorFlow
        self.offset = nn.Parameter(torch.zeros(stem.out_channels))
        self.blocks = nn.Sequential(*(MobileBlock(block, bug) for block in own.encoder.blocks))
        self.top, self.head = (
            nn.Linear(top.in_channels, top.out_channels),
            nn.Linear(top.out_channels, config.num_labels),
        )

    def stem(self, pixels: Tensor) -> Tensor:
        x = conv2d(pad(pixels, (0, 1, 0, 1)), self.kernel.permute(3, 2, 0, 1), self.offset, 2)
        return silu(x).permute(0, 2, 3, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = silu(self.top(self.blocks(self.stem(pixels))))
        return self.head(x.mean((1, 2)))


def own_inputs(own: nn.Module) -> int:
    """Return the number of channels of the inputs of a block."""
    return own.expansion.expand_conv.in_channels if own.expand else own.depthwise_conv.depthwise_conv.in_channels


def folded(convolution: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias of a convolution with its batch norm."""
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    return convolution.weight * factor[:, None, None, None], norm.bias - norm.running_mean * factor


def copy_product(target: nn.Linear, convolution: nn.Module, norm: nn.Module) -> None:
    """Copy a convolution of one pixel and its batch norm."""
    weight, bias = folded(convolution, norm)
    target.weight.data.copy_(weight[..., 0, 0])
    target.bias.data.copy_(bias)


def copy_block(target: MobileBlock, own: nn.Module) -> None:
    if target.expand is not None:
        copy_product(target.expand, own.expansion.expand_conv, own.expansion.expand_bn)
    weight, bias = folded(own.depthwise_conv.depthwise_conv, own.depthwise_conv.depthwise_norm)
    target.depthwise.taps.data.copy_(weight[:, 0].permute(1, 2, 0))
    target.depthwise.offset.data.copy_(bias)
    squeeze = own.squeeze_excite
    for linear_layer, convolution in ((target.squeeze.shrink, squeeze.reduce), (target.squeeze.grow, squeeze.expand)):
        linear_layer.weight.data.copy_(convolution.weight[..., 0, 0])
        linear_layer.bias.data.copy_(convolution.bias)
    copy_product(target.project, own.projection.project_conv, own.projection.project_bn)


def measure(model: nn.Module, inputs: Tensor) -> None:
    """Give the batch norms the statistics of inputs: with those of other numbers, all images have the same output."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.train().momentum = None  # of all batches alike: of this one
    model(inputs)
    for norm in norms:
        norm.eval()


def make(bug: str | None = None) -> Pair:
    widths = {"in_channels": [32, 32, 48], "out_channels": [32, 48, 64], "hidden_dim": 320, "width_coefficient": 0.25}
    blocks = {
        "kernel_sizes": [3, 3, 5],
        "strides": [1, 2, 2],
        "num_block_repeats": [1, 2, 2],
        "expand_ratios": [1, 4, 4],
    }
    others = {"image_size": 32, "depth_coefficient": 1.0, "initializer_range": 0.1, "num_labels": 5}
    a = build("EfficientNetForImageClassification", widths | blocks | others)
    pixels = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    measure(a, pixels)
    own = a.efficientnet
    b = EfficientNet(a.config, own, bug)
    kernel, offset = folded(own.embeddings.convolution, own.embeddings.batchnorm)
    b.kernel.data.copy_(kernel.permute(2, 3, 1, 0))
    b.offset.data.copy_(offset)
    for source, target in zip(own.encoder.blocks, b.blocks, strict=True):
        copy_block(target, source)
    copy_product(b.top, own.encoder.top_conv, own.encoder.top_bn)
    if bug == "no batch norm":
        b.top.weight.data.copy_(own.encoder.top_conv.weight[..., 0, 0])
    copy(b.head, a.classifier)
    return a, b, (pixels,), (pixels,)
