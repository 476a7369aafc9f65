"""SegFormer with channels last, whose head mixes the stages before it enlarges them, with its batch norm folded."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, interpolate, relu
from transformers import SegformerConfig

from support.models.zoo import build

from ._port import BATCH, EAGER, Pair, copy, copy_parts


class Affine(nn.Module):
    """A layer norm in steps."""

    def __init__(self, width: int, bug: str | None):
        super().__init__()
        self.scale, self.shift, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), 1e-5
        if bug == "eps":
            self.eps = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) / torch.sqrt(variance + self.eps) * self.scale + self.shift


class Attention(nn.Module):
    """Attention to an image of fewer places, for images `[batch, height, width, channels]`."""

    def __init__(self, width: int, heads: int, ratio: int, bug: str | None):
        super().__init__()
        self.bug, self.heads, self.ratio = bug, heads, ratio
        self.query, self.key_value, self.out = (
            nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width),
        )  # fmt: skip
        self.reduce = nn.Linear(ratio**2 * width, width) if ratio > 1 else None
        self.norm = Affine(width, bug) if ratio > 1 else None

    def fewer(self, x: Tensor) -> Tensor:
        """Join the places of each square."""
        if self.reduce is None or self.norm is None:
            return x
        squares = x.unflatten(2, (-1, self.ratio)).unflatten(1, (-1, self.ratio)).transpose(2, 3)
        return self.norm(self.reduce(squares.flatten(3)))

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x).flatten(1, 2).unflatten(-1, (self.heads, -1))
        k, v = self.key_value(self.fewer(x)).flatten(1, 2).unflatten(-1, (2, self.heads, -1)).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.out(mixed.flatten(2)).view_as(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, ratio: int, bug: str | None):
        super().__init__()
        self.bug = bug
        self.before, self.between = Affine(width, bug), Affine(width, bug)
        self.attention = Attention(width, heads, ratio, bug)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.taps, self.offset = nn.Parameter(torch.zeros(3, 3, 2 * width)), nn.Parameter(torch.zeros(2 * width))

    def spread(self, x: Tensor) -> Tensor:
        kernels = self.taps.permute(2, 0, 1)[:, None]
        y = conv2d(x.permute(0, 3, 1, 2), kernels, self.offset, padding=1, groups=x.shape[-1])
        return y.permute(0, 2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        y = gelu(self.spread(self.up(self.between(x))))
        return x + self.down(y)


class Stage(nn.Module):
    def __init__(self, config: SegformerConfig, index: int, bug: str | None):
        super().__init__()
        inputs = config.hidden_sizes[index - 1] if index else config.num_channels
        width, size = config.hidden_sizes[index], config.patch_sizes[index]
        self.patches = nn.Conv2d(inputs, width, size, config.strides[index], size // 2)
        self.norm_in, self.norm_out = Affine(width, bug), Affine(width, bug)
        sizes = width, config.num_attention_heads[index], config.sr_ratios[index]
        self.blocks = nn.Sequential(*(Block(*sizes, bug) for _ in range(config.depths[index])))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.norm_out(self.blocks(self.norm_in(x)))


class Segformer(nn.Module):
    def __init__(self, config: SegformerConfig, bug: str | None):
        super().__init__()
        self.bug, count, width = bug, config.num_encoder_blocks, config.decoder_hidden_size
        self.stages = nn.ModuleList(Stage(config, index, bug) for index in range(count))
        self.heads = nn.ModuleList(nn.Linear(size, width, bias=False) for size in config.hidden_sizes)
        self.shift = nn.Parameter(torch.zeros(width))
        self.classifier = nn.Linear(width, config.num_labels)

    def enlarge(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        image = x.permute(0, 3, 1, 2)
        return interpolate(image, size, mode="bilinear", align_corners=self.bug == "corners").permute(0, 2, 3, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        x, total = pixels.permute(0, 2, 3, 1), self.shift
        size = pixels.shape[2] // 4, pixels.shape[3] // 4
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            total = total + self.enlarge(head(x), size)
        return self.classifier(relu(total)).permute(0, 3, 1, 2)


def copy_norm(target: Affine, source: nn.Module) -> None:
    target.scale.data.copy_(source.weight)
    target.shift.data.copy_(source.bias)


def copy_block(target: Block, own: nn.Module) -> None:
    """Copy a layer, with its reduction of the places as a product."""
    attention = own.attention
    copy(target.attention.query, attention.q_proj)
    copy(target.attention.key_value, attention.k_proj, attention.v_proj)
    copy(target.attention.out, attention.o_proj)
    if target.attention.reduce is not None and target.attention.norm is not None:
        reduction = attention.sequence_reduction
        weight = reduction.sequence_reduction.weight.permute(0, 2, 3, 1).flatten(1)
        target.attention.reduce.weight.data.copy_(weight)
        target.attention.reduce.bias.data.copy_(reduction.sequence_reduction.bias)
        copy_norm(target.attention.norm, reduction.layer_norm)
    copy_norm(target.before, own.layernorm_before)
    copy_norm(target.between, own.layernorm_after)
    copy_parts(target, own.mlp, up="fc1", down="fc2")
    target.taps.data.copy_(own.mlp.dwconv.dwconv.weight[:, 0].permute(1, 2, 0))
    target.offset.data.copy_(own.mlp.dwconv.dwconv.bias)


def copy_head(target: Segformer, own: nn.Module) -> None:
    """Copy the head: for each stage, the product of its projection, the fusion and the batch norm."""
    norm, count = own.batch_norm, len(own.linear_projections)
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    target.shift.data.copy_(norm.bias - norm.running_mean * factor)
    fusions = (own.linear_fuse.weight[..., 0, 0] * factor[:, None]).chunk(count, 1)
    for head, projection, fusion in zip(target.heads, own.linear_projections, reversed(fusions), strict=True):
        head.weight.data.copy_(fusion @ projection.proj.weight)
        target.shift.data.add_(fusion @ projection.proj.bias)
    target.classifier.weight.data.copy_(own.classifier.weight[..., 0, 0])
    target.classifier.bias.data.copy_(own.classifier.bias)


def make(bug: str | None = None) -> Pair:
    stages = {"num_encoder_blocks": 3, "hidden_sizes": [16, 32, 48], "depths": [1, 2, 1], "sr_ratios": [4, 2, 1]}
    heads = {"num_attention_heads": [1, 2, 4], "mlp_ratios": [2, 2, 2], "decoder_hidden_size": 24, "num_labels": 5}
    sizes = {"patch_sizes": [7, 3, 3], "strides": [4, 2, 2]}
    a = build("SegformerForSemanticSegmentation", stages | heads | sizes | EAGER)
    b = Segformer(a.config, bug)
    for own, stage in zip(a.segformer.stages, b.stages, strict=True):
        copy(stage.patches, own.patch_embeddings.proj)
        copy_norm(stage.norm_in, own.patch_embeddings.layer_norm)
        copy_norm(stage.norm_out, own.layer_norm)
        for source, target in zip(own.blocks, stage.blocks, strict=True):
            copy_block(target, source)
    copy_head(b, a.decode_head)
    pixels = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return a, b, (pixels,), (pixels,)
