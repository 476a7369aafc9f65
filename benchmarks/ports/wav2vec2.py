"""wav2vec 2.0 with the length first, frames in place of the first convolution, and folded weight norms."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, gelu, instance_norm, pad
from transformers import Wav2Vec2Config

from support.models.zoo import WAV2VEC2, build

from ._port import BATCH, EAGER, Pair, copy, copy_parts


class Features(nn.Module):
    """The convolutions, of which the first one is a product with frames of the sound."""

    def __init__(self, config: Wav2Vec2Config, bug: str | None):
        super().__init__()
        self.bug, width = bug, config.conv_dim[0]
        self.size, self.hop = config.conv_kernel[0], config.conv_stride[0]
        self.frames = nn.Parameter(torch.zeros(self.size, width))
        self.gain, self.offset, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), 1e-5
        shapes = zip(config.conv_dim, config.conv_dim[1:], config.conv_kernel[1:], config.conv_stride[1:], strict=False)
        self.convolutions = nn.ModuleList(nn.Conv1d(*shape, bias=False) for shape in shapes)

    def forward(self, sound: Tensor) -> Tensor:
        x = (sound.unfold(-1, self.size, self.hop) @ self.frames).mT  # [batch, channels, length]
        x = gelu(instance_norm(x, weight=self.gain, bias=self.offset, eps=self.eps))
        for convolution in self.convolutions:
            x = gelu(convolution(x))
        return x.permute(2, 0, 1)


class Positions(nn.Module):
    """A convolution by groups, with one more place before than after."""

    def __init__(self, config: Wav2Vec2Config):
        super().__init__()
        self.groups, self.size = config.num_conv_pos_embedding_groups, config.num_conv_pos_embeddings
        self.kernel = nn.Parameter(torch.zeros(config.hidden_size, config.hidden_size // self.groups, self.size))
        self.offset = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        padded = pad(x.permute(1, 2, 0), (self.size // 2, self.size // 2 - 1))
        return gelu(conv1d(padded, self.kernel, self.offset, groups=self.groups)).permute(2, 0, 1)


class Attention(nn.Module):
    """Attention of `[length, batch, width]`, with a batch of heads."""

    def __init__(self, width: int, heads: int, bug: str | None):
        super().__init__()
        self.bug, self.heads = bug, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        length, batch, width = x.shape
        size = width // self.heads
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q * (width if self.bug == "scale" else size) ** -0.5
        q, k, v = (part.reshape(length, batch * self.heads, size).transpose(0, 1) for part in (q, k, v))
        shares = torch.bmm(q, k.mT).softmax(-1)
        return self.out(torch.bmm(shares, v).transpose(0, 1).reshape(length, batch, width))


class Layer(nn.Module):
    def __init__(self, config: Wav2Vec2Config, bug: str | None):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.attention = Attention(width, config.num_attention_heads, bug)
        self.norm, self.last_norm = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.up, self.down = nn.Linear(width, config.intermediate_size), nn.Linear(config.intermediate_size, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.attention(x))
        return self.last_norm(x + self.down(gelu(self.up(x))))


class Wav2Vec2(nn.Module):
    def __init__(self, config: Wav2Vec2Config, bug: str | None):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.features = Features(config, bug)
        self.norm_in, self.project = nn.LayerNorm(config.conv_dim[-1], eps), nn.Linear(config.conv_dim[-1], width)
        self.positions, self.norm = Positions(config), nn.LayerNorm(width, eps)
        self.layers = nn.Sequential(*(Layer(config, bug) for _ in range(config.num_hidden_layers)))
        self.letters = nn.Linear(width, config.vocab_size)

    def forward(self, sound: Tensor) -> Tensor:
        x = self.project(self.norm_in(self.features(sound)))
        x = self.layers(self.norm(x + self.positions(x)))
        return self.letters(x).transpose(0, 1)


def make(bug: str | None = None) -> Pair:
    settings = {"conv_dim": [16] * 3, "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2], "layer_norm_eps": 1e-5}
    positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
    a = build("Wav2Vec2ForCTC", WAV2VEC2 | EAGER | settings | positions)
    b = Wav2Vec2(a.config, bug)
    own = a.wav2vec2
    first, *others = own.feature_extractor.conv_layers
    b.features.frames.data.copy_(first.conv.weight[:, 0].T)
    b.features.gain.data.copy_(first.layer_norm.weight)
    b.features.offset.data.copy_(first.layer_norm.bias)
    for layer, convolution in zip(others, b.features.convolutions, strict=True):
        copy(convolution, layer.conv)
    copy_parts(b, own.feature_projection, norm_in="layer_norm", project="projection")
    convolution = own.encoder.pos_conv_embed.conv
    kernel = convolution.parametrizations.weight.original1 if bug == "weight norm" else convolution.weight
    b.positions.kernel.data.copy_(kernel)
    b.positions.offset.data.copy_(convolution.bias)
    copy(b.norm, own.encoder.layer_norm)
    copy(b.letters, a.lm_head)
    for layer, target in zip(own.encoder.layers, b.layers, strict=True):
        attention = layer.attention
        copy(target.attention.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        copy(target.attention.out, attention.out_proj)
        copy(target.norm, layer.layer_norm)
        copy(target.last_norm, layer.final_layer_norm)
        copy(target.up, layer.feed_forward.intermediate_dense)
        copy(target.down, layer.feed_forward.output_dense)
    sound = torch.randn(BATCH, 300, generator=torch.Generator().manual_seed(1))
    return a, b, (sound,), (sound,)
