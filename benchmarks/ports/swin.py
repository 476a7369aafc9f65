"""Swin in images of channels-last order, with fused projections and a table of biases of two dimensions."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import SwinConfig

from support.models.zoo import build

from ._port import BATCH, EAGER, Pair, copy, copy_parts


class Attention(nn.Module):
    """Attention in each window."""

    def __init__(self, width: int, heads: int, window: int):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros(heads, 2 * window - 1, 2 * window - 1))

    def bias(self) -> Tensor:
        places = torch.arange(self.window**2)
        rows, columns = places // self.window, places % self.window
        down = rows[:, None] - rows + self.window - 1
        right = columns[:, None] - columns + self.window - 1
        return self.table[:, down, right]

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.bias()
        if mask is not None:
            bias = bias + mask.repeat(len(x) // len(mask), 1, 1)[:, None]
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(x), -1, -1, -1))
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, shift: int, config: SwinConfig, bug: str | None):
        super().__init__()
        eps, inner = config.layer_norm_eps, int(config.mlp_ratio * width)
        self.bug, self.window, self.shift = bug, config.window_size, shift
        self.before, self.between = nn.LayerNorm(width, eps), nn.LayerNorm(width, 1e-3 if bug == "eps" else eps)
        self.attention = Attention(width, heads, config.window_size)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def cut(self, x: Tensor) -> Tensor:
        """Return the windows of an image."""
        parts = x.unflatten(2, (-1, self.window)).unflatten(1, (-1, self.window))
        return parts.transpose(2, 3).flatten(0, 2).flatten(1, 2)

    def join(self, windows: Tensor, height: int, width: int) -> Tensor:
        """Return the image of windows."""
        size = self.window
        parts = windows.reshape(-1, height // size, width // size, size, size, windows.shape[-1])
        return parts.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def region(self, length: int) -> Tensor:
        """Return which part of a side each place comes from after the shift."""
        places = torch.arange(length)
        return (places >= length - self.window).long() + (places >= length - self.shift).long()

    def mask(self, height: int, width: int) -> Tensor:
        regions = 3 * self.region(height)[:, None] + self.region(width)
        windows = self.cut(regions[None, :, :, None])[..., 0]
        return torch.where(windows[:, :, None] == windows[:, None], 0.0, -100.0)

    def attend(self, x: Tensor) -> Tensor:
        _, height, width, _ = x.shape
        if not self.shift:
            return self.join(self.attention(self.cut(x), None), height, width)
        mask = torch.zeros(1, self.window**2, self.window**2) if self.bug == "no mask" else self.mask(height, width)
        windows = self.cut(x.roll((-self.shift, -self.shift), (1, 2)))
        return self.join(self.attention(windows, mask), height, width).roll((self.shift, self.shift), (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before(x))
        return x + self.down(gelu(self.up(self.between(x))))


class Merge(nn.Module):
    """Joins four neighbors."""

    def __init__(self, width: int, bug: str | None):
        super().__init__()
        self.bug = bug
        self.norm, self.linear = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # [batch, height, 2, width, 2, channels]
        order = (0, 1, 3, 2, 4, 5) if self.bug == "order of neighbors" else (0, 1, 3, 4, 2, 5)
        return self.linear(self.norm(parts.permute(order).flatten(3)))


class Swin(nn.Module):
    def __init__(self, config: SwinConfig, bug: str | None):
        super().__init__()
        width, layers = config.embed_dim, []
        self.stem = nn.Conv2d(config.num_channels, width, config.patch_size, config.patch_size)
        self.stem_norm = nn.LayerNorm(width)
        for stage, (depth, heads) in enumerate(zip(config.depths, config.num_heads, strict=True)):
            layers += [Merge(width // 2, bug)] if stage else []
            shifts = (index % 2 * (config.window_size // 2) for index in range(depth))
            layers += [Block(width, heads, shift, config, bug) for shift in shifts]
            width *= 2
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width // 2, config.layer_norm_eps), nn.Linear(width // 2, config.num_labels)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.layers(self.stem_norm(self.stem(pixels).permute(0, 2, 3, 1)))
        return self.head(self.norm(x).mean((1, 2)))


def make(bug: str | None = None) -> Pair:
    sizes = {"image_size": 48, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 3}
    a = build("SwinForImageClassification", EAGER | sizes | {"patch_size": 4, "mlp_ratio": 2.0, "num_labels": 5})
    b = Swin(a.config, bug)
    own = a.swin
    copy_parts(b, own, stem="embeddings.patch_embeddings.projection", stem_norm="embeddings.norm", norm="layernorm")
    copy(b.head, a.classifier)
    first, second = own.encoder.layers
    merge: Merge = b.layers[2]  # type: ignore[assignment]
    copy_parts(merge, first.downsample, norm="norm", linear="reduction")
    blocks: list[Block] = [layer for layer in b.layers if isinstance(layer, Block)]
    for layer, block in zip((*first.blocks, *second.blocks), blocks, strict=True):
        attention, size = layer.attention, 2 * block.window - 1
        table = attention.relative_position_bias.relative_position_bias_table
        block.attention.table.data.copy_(table.T.unflatten(1, (size, size)))
        copy(block.attention.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        copy(block.attention.out, attention.o_proj)
        copy_parts(block, layer, before="layernorm_before", between="layernorm_after", up="mlp.fc1", down="mlp.fc2")
    pixels = torch.randn(BATCH, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    return a, b, (pixels,), (pixels,)
