"""DINOv2 as its authors have it: fused projections, and positions for a smaller image from the conversion."""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention, silu
from transformers import Dinov2Config

from support.models.zoo import build

from ._port import BATCH, EAGER, Pair, copy, copy_parts

SIDE, PATCH = 32, 8


class SwiGlu(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.w12, self.w3 = nn.Linear(width, 2 * inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.w12(x).chunk(2, -1)
        return self.w3(silu(x1) * x2)


class MemoryAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ScaledBlock(nn.Module):
    """A layer with the scale of its attention in the weights, and that of its perceptron as a parameter."""

    def __init__(self, config: Dinov2Config, inner: int):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn, self.mlp = MemoryAttention(width, config.num_attention_heads), SwiGlu(width, inner)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.gamma * self.mlp(self.norm2(x))


class DinoV2(nn.Module):
    def __init__(self, config: Dinov2Config, inner: int):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.patch = nn.Linear(config.num_channels * PATCH**2, width)
        self.places = nn.Parameter(torch.zeros(SIDE // PATCH, SIDE // PATCH, width))
        self.token = nn.Parameter(torch.zeros(width))  # with its position
        self.blocks = nn.ModuleList(ScaledBlock(config, inner) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width, eps)
        self.head = nn.Linear(2 * width, config.num_labels)

    def embed(self, pixels: Tensor) -> Tensor:
        squares = pixels.permute(0, 2, 3, 1).unflatten(2, (-1, PATCH)).unflatten(1, (-1, PATCH))
        x = self.patch(squares.transpose(2, 3).flatten(3)) + self.places
        return torch.cat([self.token.expand(len(x), 1, -1), x.flatten(1, 2)], 1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embed(pixels)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(torch.cat([x[:, 0], x[:, 1:].mean(1)], -1))


def places_of(own: nn.Module) -> Tensor:
    """Return the positions of the patches of an image of `SIDE` pixels, `[rows, columns, width]`."""
    positions = own.position_embeddings[0, 1:]
    side = int(len(positions) ** 0.5)
    grid = positions.view(side, side, -1).permute(2, 0, 1)[None]
    return interpolate(grid, (SIDE // PATCH,) * 2, mode="bicubic", align_corners=False)[0].permute(1, 2, 0)


def make(_: str | None = None) -> Pair:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2}
    images = {"image_size": 48, "patch_size": PATCH, "use_swiglu_ffn": True, "num_labels": 5, "layerscale_value": 0.3}
    a = build("Dinov2ForImageClassification", sizes | images | EAGER)
    own = a.dinov2
    b = DinoV2(a.config, own.encoder.layer[0].mlp.up_proj.out_features)
    projection = own.embeddings.patch_embeddings.projection
    b.patch.weight.data.copy_(projection.weight.permute(0, 2, 3, 1).flatten(1))
    b.patch.bias.data.copy_(projection.bias)
    b.places.data.copy_(places_of(own.embeddings))
    b.token.data.copy_((own.embeddings.cls_token + own.embeddings.position_embeddings[:, :1])[0, 0])
    copy(b.norm, own.layernorm)
    copy(b.head, a.classifier)
    for layer, block in zip(own.encoder.layer, b.blocks, strict=True):
        attention, mlp = layer.attention, layer.mlp
        copy_parts(block, layer, norm1="norm1", norm2="norm2")
        copy(block.attn.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        block.attn.proj.weight.data.copy_(attention.o_proj.weight * layer.layer_scale1.lambda1[:, None])
        block.attn.proj.bias.data.copy_(attention.o_proj.bias * layer.layer_scale1.lambda1)
        copy(block.mlp.w12, mlp.gate_proj, mlp.up_proj)
        copy(block.mlp.w3, mlp.down_proj)
        block.gamma.data.copy_(layer.layer_scale2.lambda1)
    pixels = torch.randn(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return a, b, (pixels,), (pixels,)
