"""ViT with a linear layer for its patches, and the last norm only where its result is used."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import ViTConfig

from support.models.zoo import VISION, build

from ._port import BATCH, EAGER, Pair, copy, copy_parts


class Patches(nn.Module):
    def __init__(self, config: ViTConfig):
        super().__init__()
        self.size = config.patch_size
        self.linear = nn.Linear(config.num_channels * self.size**2, config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        parts = pixels.unflatten(3, (-1, self.size)).unflatten(2, (-1, self.size))  # [batch, channels, 4, 8, 4, 8]
        return self.linear(parts.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2))


class Block(nn.Module):
    def __init__(self, config: ViTConfig, bug: str | None):
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.first, self.second = nn.LayerNorm(width, eps), nn.LayerNorm(width, 1e-3 if bug == "eps" else eps)
        self.heads = nn.MultiheadAttention(width, config.num_attention_heads, batch_first=True)
        self.up, self.down = nn.Linear(width, config.intermediate_size), nn.Linear(config.intermediate_size, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        x = x + self.heads(normed, normed, normed, need_weights=False)[0]
        return x + self.down(gelu(self.up(self.second(x))))


class Vit(nn.Module):
    def __init__(self, config: ViTConfig, bug: str | None):
        super().__init__()
        self.bug = bug
        self.patches = Patches(config)
        count = (config.image_size // config.patch_size) ** 2 + 1
        self.token = nn.Parameter(torch.zeros(config.hidden_size))
        self.places = nn.Parameter(torch.zeros(count, config.hidden_size))
        self.blocks = nn.ModuleList(Block(config, bug) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patches(pixels)
        token = self.token.expand(len(patches), 1, -1)
        if self.bug == "no position of the token":
            x = torch.cat([token, patches + self.places[1:]], 1)
        else:
            x = torch.cat([token, patches], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def make(bug: str | None = None) -> Pair:
    a = build("ViTForImageClassification", VISION | EAGER)
    b = Vit(a.config, bug).eval()
    embeddings = a.vit.embeddings
    projection = embeddings.patch_embeddings.projection
    order = (0, 1, 2, 3) if bug == "order of pixels" else (0, 2, 3, 1)
    b.patches.linear.weight.data.copy_(projection.weight.permute(order).flatten(1))
    b.patches.linear.bias.data.copy_(projection.bias)
    b.token.data.copy_(embeddings.cls_token[0, 0])
    b.places.data.copy_(embeddings.position_embeddings[0])
    copy_parts(b, a, norm="vit.layernorm", head="classifier")
    for own, block in zip(a.vit.layers, b.blocks, strict=True):
        parts = own.attention.q_proj, own.attention.k_proj, own.attention.v_proj
        block.heads.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
        block.heads.in_proj_bias.data.copy_(torch.cat([part.bias for part in parts]))
        copy(block.heads.out_proj, own.attention.o_proj)
        copy_parts(block, own, first="layernorm_before", second="layernorm_after", up="mlp.fc1", down="mlp.fc2")
    pixels = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return a, b, (pixels,), (pixels,)
