"""ConvNeXt with channels in the last dimension, patches as linear layers, and the layer scale in the weights."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu
from transformers import ConvNextConfig

from support.models.zoo import build

from ._port import BATCH, Pair, copy, copy_parts

EPS = 1e-6


class Patches(nn.Module):
    """A convolution whose stride is the size of its kernel."""

    def __init__(self, inputs: int, outputs: int, size: int):
        super().__init__()
        self.size = size
        self.linear = nn.Linear(inputs * size**2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(2, (-1, self.size)).unflatten(1, (-1, self.size))  # [batch, 8, 4, 8, 4, channels]
        return self.linear(parts.transpose(2, 3).flatten(3))


class Block(nn.Module):
    def __init__(self, width: int, bug: str | None):
        super().__init__()
        self.taps = nn.Parameter(torch.zeros(7, 7, width))
        self.offset = nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width, 1e-3 if bug == "eps" else EPS)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximation = "tanh" if bug == "activation" else "none"

    def mix(self, x: Tensor) -> Tensor:
        kernels = self.taps.permute(2, 0, 1)[:, None]
        y = conv2d(x.permute(0, 3, 1, 2), kernels, self.offset, padding=3, groups=x.shape[-1])
        return y.permute(0, 2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x))
        return x + self.shrink(gelu(self.expand(y), approximate=self.approximation))


class ConvNext(nn.Module):
    def __init__(self, config: ConvNextConfig, bug: str | None):
        super().__init__()
        widths = config.hidden_sizes
        self.stem, self.stem_norm = Patches(3, widths[0], config.patch_size), nn.LayerNorm(widths[0], EPS)
        self.norms = nn.ModuleList(nn.LayerNorm(width, EPS) for width in widths[:-1])
        self.steps = nn.ModuleList(Patches(*sizes, 2) for sizes in pairwise(widths))
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block(width, bug) for _ in range(depth)))
            for width, depth in zip(widths, config.depths, strict=True)
        )
        self.norm = nn.LayerNorm(widths[-1], config.layer_norm_eps)
        self.head = nn.Linear(widths[-1], config.num_labels)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stages[0](self.stem_norm(self.stem(pixels.permute(0, 2, 3, 1))))
        for norm, step, stage in zip(self.norms, self.steps, self.stages[1:], strict=True):
            x = stage(step(norm(x)))
        return self.head(self.norm(x.mean((1, 2))))


def copy_patches(target: Patches, source: nn.Conv2d) -> None:
    """Copy a convolution of patches."""
    target.linear.weight.data.copy_(source.weight.permute(0, 2, 3, 1).flatten(1))
    target.linear.bias.data.copy_(source.bias)


def make(bug: str | None = None) -> Pair:
    sizes = {"hidden_sizes": [32, 48, 64], "depths": [1, 2, 1], "num_stages": 3, "image_size": 32, "num_labels": 5}
    a = build("ConvNextForImageClassification", sizes | {"layer_scale_init_value": 1.0})
    b = ConvNext(a.config, bug)
    own = a.convnext
    copy_patches(b.stem, own.embeddings.patch_embeddings)
    copy_parts(b, own, stem_norm="embeddings.layernorm", norm="layernorm")
    copy(b.head, a.classifier)
    for stage, norm, step in zip(own.encoder.stages[1:], b.norms, b.steps, strict=True):
        copy(norm, stage.downsampling_layer[0])
        copy_patches(step, stage.downsampling_layer[1])
    for stage, blocks in zip(own.encoder.stages, b.stages, strict=True):
        for layer, block in zip(stage.layers, blocks, strict=True):
            scale = torch.ones(1) if bug == "no layer scale" else layer.layer_scale_parameter
            block.taps.data.copy_(layer.dwconv.weight[:, 0].permute(1, 2, 0))
            block.offset.data.copy_(layer.dwconv.bias)
            copy_parts(block, layer, norm="layernorm", expand="pwconv1")
            block.shrink.weight.data.copy_(layer.pwconv2.weight * scale[:, None])
            block.shrink.bias.data.copy_(layer.pwconv2.bias * scale)
    pixels = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return a, b, (pixels,), (pixels,)
