"""Parakeet, a Conformer, with channels last, distances looked up, and its batch norms and halves in the weights."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, relu, silu
from transformers import ParakeetEncoderConfig

from support.models.zoo import build

from ._port import BATCH, EAGER, Pair, copy, copy_parts
from .efficientnet import measure


class Subsampling(nn.Module):
    """Two convolutions of every other place, for `[batch, frames, bins, channels]`, and a layer for each frame."""

    def __init__(self, config: ParakeetEncoderConfig):
        super().__init__()
        channels, bins = config.subsampling_conv_channels, config.num_mel_bins // config.subsampling_factor
        self.first, self.first_offset = nn.Parameter(torch.zeros(3, 3, channels)), nn.Parameter(torch.zeros(channels))
        self.taps, self.taps_offset = nn.Parameter(torch.zeros(3, 3, channels)), nn.Parameter(torch.zeros(channels))
        self.point, self.leave = nn.Linear(channels, channels), nn.Linear(bins * channels, config.hidden_size)

    def convolve(self, x: Tensor, taps: Tensor, offset: Tensor) -> Tensor:
        y = conv2d(x.permute(0, 3, 1, 2), taps.permute(2, 0, 1)[:, None], offset, 2, 1, groups=x.shape[-1])
        return y.permute(0, 2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.convolve(x[..., None], self.first, self.first_offset))
        x = relu(self.point(self.convolve(x, self.taps, self.taps_offset)))
        return self.leave(x.flatten(2))


class DistanceAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.far = nn.Linear(width, width, bias=False)
        self.content, self.place = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))

    def scores(self, q: Tensor, k: Tensor, waves: Tensor) -> Tensor:
        """Return the scores of `[batch, length, heads, size]`, given the waves of all distances, the lowest first."""
        places = torch.arange(q.shape[1])
        distance = places[:, None] - places + q.shape[1] - 1
        far = self.far(waves).unflatten(-1, (self.heads, -1))[distance]
        words = torch.einsum("bihd,bjhd->bhij", q + self.content, k)
        return (words + torch.einsum("bihd,ijhd->bhij", q + self.place, far)) * q.shape[-1] ** -0.5

    def forward(self, x: Tensor, waves: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        shares = self.scores(q, k, waves).softmax(-1)
        return self.out(torch.einsum("bhij,bjhd->bihd", shares, v).flatten(2))


class GluConvolution(nn.Module):
    def __init__(self, width: int, size: int):
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.kernel, self.offset = nn.Parameter(torch.zeros(width, 1, size)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.enter(x).chunk(2, -1)
        y = value * gate.sigmoid()
        y = conv1d(y.mT, self.kernel, self.offset, padding=self.kernel.shape[-1] // 2, groups=len(self.kernel)).mT
        return self.leave(silu(y))


class HalfMlp(nn.Module):
    """A perceptron, half of which is added; its second layer has the half."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(silu(self.up(self.norm(x))))


class ConformerBlock(nn.Module):
    def __init__(self, config: ParakeetEncoderConfig):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.before, self.after = HalfMlp(width, inner), HalfMlp(width, inner)
        self.norm_a, self.norm_c, self.norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = DistanceAttention(width, config.num_attention_heads)
        self.convolution = GluConvolution(width, config.conv_kernel_size)

    def forward(self, x: Tensor, waves: Tensor) -> Tensor:
        x = self.before(x)
        x = x + self.attention(self.norm_a(x), waves)
        x = x + self.convolution(self.norm_c(x))
        return self.norm(self.after(x))


class Conformer(nn.Module):
    def __init__(self, config: ParakeetEncoderConfig):
        super().__init__()
        self.width = config.hidden_size
        self.subsampling = Subsampling(config)
        self.blocks = nn.ModuleList(ConformerBlock(config) for _ in range(config.num_hidden_layers))

    def waves(self, length: int) -> Tensor:
        """Return sines and cosines in turn for the distances of all tokens, the lowest first."""
        speeds = 10000.0 ** (-torch.arange(0, self.width, 2) / self.width)
        angles = torch.arange(1 - length, length)[:, None] * speeds
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)

    def forward(self, spectra: Tensor) -> Tensor:
        x = self.subsampling(spectra)
        waves = self.waves(x.shape[1])
        for block in self.blocks:
            x = block(x, waves)
        return x


def copy_subsampling(target: Subsampling, own: nn.Module, scale: float) -> None:
    """Copy the convolutions, and the layer after them, scaled and with its columns by bin."""
    first, _, taps, point, _ = own.layers
    target.first.data.copy_(first.weight[:, 0].permute(1, 2, 0))
    target.first_offset.data.copy_(first.bias)
    target.taps.data.copy_(taps.weight[:, 0].permute(1, 2, 0))
    target.taps_offset.data.copy_(taps.bias)
    target.point.weight.data.copy_(point.weight[..., 0, 0])
    target.point.bias.data.copy_(point.bias)
    columns = own.linear.weight.unflatten(1, (own.channels, -1)).mT.flatten(1)
    target.leave.weight.data.copy_(columns * scale)
    target.leave.bias.data.copy_(own.linear.bias * scale)


def copy_half(target: HalfMlp, norm: nn.Module, own: nn.Module) -> None:
    copy(target.norm, norm)
    copy(target.up, own.linear1)
    target.down.weight.data.copy_(own.linear2.weight / 2)
    target.down.bias.data.copy_(own.linear2.bias / 2)


def copy_convolution(target: GluConvolution, own: nn.Module) -> None:
    for linear, convolution in ((target.enter, own.pointwise_conv1), (target.leave, own.pointwise_conv2)):
        linear.weight.data.copy_(convolution.weight[..., 0])
        linear.bias.data.copy_(convolution.bias)
    factor = own.norm.weight / (own.norm.running_var + own.norm.eps).sqrt()
    target.kernel.data.copy_(own.depthwise_conv.weight * factor[:, None, None])
    target.offset.data.copy_((own.depthwise_conv.bias - own.norm.running_mean) * factor + own.norm.bias)


def make(_: str | None = None) -> Pair:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sound = {"num_mel_bins": 16, "subsampling_factor": 4, "subsampling_conv_channels": 6, "conv_kernel_size": 5}
    a = build("ParakeetEncoder", sizes | sound | EAGER)
    spectra = torch.randn(BATCH, 28, 16, generator=torch.Generator().manual_seed(1))
    measure(a, spectra)
    b = Conformer(a.config)
    copy_subsampling(b.subsampling, a.subsampling, a.input_scale)
    for own, block in zip(a.layers, b.blocks, strict=True):
        copy_half(block.before, own.norm_feed_forward1, own.feed_forward1)
        copy_half(block.after, own.norm_feed_forward2, own.feed_forward2)
        copy_parts(block, own, norm_a="norm_self_att", norm_c="norm_conv", norm="norm_out")
        attention = own.self_attn
        copy(block.attention.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        copy(block.attention.out, attention.o_proj)
        copy(block.attention.far, attention.relative_k_proj)
        block.attention.content.data.copy_(attention.bias_u)
        block.attention.place.data.copy_(attention.bias_v)
        copy_convolution(block.convolution, own.conv)
    return a, b, (spectra,), (spectra,)
