"""SigLIP as in JAX: one class of towers, kernels by head, the head that pools in it, and one matrix of logits."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu
from transformers import SiglipConfig

from support.models.zoo import build

from ._port import BATCH, EAGER, Pair, copy, copy_parts, token_ids


class DotAttention(nn.Module):
    """Attention with kernels `[width, heads, size]`."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.zeros(width, heads, width // heads)) for _ in range(3))
        self.offsets = nn.Parameter(torch.zeros(3, heads, width // heads))
        self.out, self.out_offset = (
            nn.Parameter(torch.zeros(heads, width // heads, width)),
            nn.Parameter(torch.zeros(width)),
        )

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        other = x if other is None else other
        q = torch.einsum("bqd,dhe->bqhe", x, self.query) + self.offsets[0]
        k = torch.einsum("bkd,dhe->bkhe", other, self.key) + self.offsets[1]
        v = torch.einsum("bkd,dhe->bkhe", other, self.value) + self.offsets[2]
        weights = torch.einsum("bqhe,bkhe->bhqk", q * q.shape[-1] ** -0.5, k).softmax(-1)
        mixed = torch.einsum("bhqk,bkhe->bqhe", weights, v)
        return torch.einsum("bqhe,hed->bqd", mixed, self.out) + self.out_offset


class MlpBlock(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x), approximate="tanh"))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        self.norm_a, self.norm_m = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6)
        self.attention, self.mlp = DotAttention(width, heads), MlpBlock(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_a(x))
        return x + self.mlp(self.norm_m(x))


class Tower(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, depth: int, places: int):
        super().__init__()
        self.places = nn.Parameter(torch.zeros(places, width))
        self.blocks = nn.ModuleList(EncoderBlock(width, heads, inner) for _ in range(depth))
        self.norm = nn.LayerNorm(width, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Pool(nn.Module):
    """Attention of one probe to all patches."""

    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, width))
        self.attention, self.norm, self.mlp = (
            DotAttention(width, heads),
            nn.LayerNorm(width, 1e-6),
            MlpBlock(width, inner),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(self.probe.expand(len(x), -1, -1), x)
        return (y + self.mlp(self.norm(y)))[:, 0]


class Siglip(nn.Module):
    def __init__(self, config: SiglipConfig):
        super().__init__()
        text, image = config.text_config, config.vision_config
        self.patch = image.patch_size
        sizes = text.hidden_size, text.num_attention_heads, text.intermediate_size, text.num_hidden_layers
        self.words = nn.Embedding(text.vocab_size, text.hidden_size)
        self.text, self.text_out = (
            Tower(*sizes, text.max_position_embeddings),
            nn.Linear(text.hidden_size, text.projection_size),
        )
        sizes = image.hidden_size, image.num_attention_heads, image.intermediate_size, image.num_hidden_layers
        self.kernel, self.offset = (
            nn.Parameter(torch.zeros(self.patch, self.patch, 3, image.hidden_size)),
            nn.Parameter(torch.zeros(image.hidden_size)),
        )
        self.image, self.pool = Tower(*sizes, (image.image_size // self.patch) ** 2), Pool(*sizes[:3])
        self.temperature, self.shift = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def embed_image(self, pixels: Tensor) -> Tensor:
        x = conv2d(pixels, self.kernel.permute(3, 2, 0, 1), self.offset, self.patch)
        return self.pool(self.image(x.flatten(2).mT))

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.text_out(self.text(self.words(ids))[:, -1])

    def unit(self, x: Tensor) -> Tensor:
        return x / x.square().sum(-1, keepdim=True).sqrt()

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor:
        image, text = self.unit(self.embed_image(pixels)), self.unit(self.embed_text(ids))
        return image @ text.T * self.temperature + self.shift


def copy_attention(target: DotAttention, weights: list[Tensor], biases: list[Tensor], out: nn.Module) -> None:
    """Copy an attention, given the weights and the biases of its query, key and value."""
    size = target.query.shape[-1]
    for kernel, weight in zip((target.query, target.key, target.value), weights, strict=True):
        kernel.data.copy_(weight.T.unflatten(1, (-1, size)))
    target.offsets.data.copy_(torch.stack(biases).unflatten(1, (-1, size)))
    target.out.data.copy_(out.weight.T.unflatten(0, (-1, size)))
    target.out_offset.data.copy_(out.bias)


def copy_mlp(target: MlpBlock, own: nn.Module) -> None:
    copy_parts(target, own, up="fc1", down="fc2")


def copy_tower(target: Tower, own: nn.Module, norm: nn.Module) -> None:
    target.places.data.copy_(own.embeddings.position_embedding.weight)
    copy(target.norm, norm)
    for layer, block in zip(own.encoder.layers, target.blocks, strict=True):
        attention = layer.self_attn
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        weights, biases = [part.weight for part in parts], [part.bias for part in parts]
        copy_attention(block.attention, weights, biases, attention.out_proj)
        copy_parts(block, layer, norm_a="layer_norm1", norm_m="layer_norm2")
        copy_mlp(block.mlp, layer.mlp)


def make(_: str | None = None) -> Pair:
    sizes = {"hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4}
    tokens = {"vocab_size": 96, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    towers = {"text_config": sizes | tokens, "vision_config": sizes | {"image_size": 32, "patch_size": 8}}
    a = build("SiglipModel", towers | EAGER)
    b = Siglip(a.config)
    text, image, pool = a.text_model, a.vision_model, a.vision_model.head
    copy_parts(b, text, words="embeddings.token_embedding", text_out="head")
    copy_tower(b.text, text, text.final_layer_norm)
    copy_tower(b.image, image, image.post_layernorm)
    b.kernel.data.copy_(image.embeddings.patch_embedding.weight.permute(2, 3, 1, 0))
    b.offset.data.copy_(image.embeddings.patch_embedding.bias)
    b.pool.probe.data.copy_(pool.probe[0])
    attention = pool.attention
    weights, biases = [*attention.in_proj_weight.chunk(3)], [*attention.in_proj_bias.chunk(3)]
    copy_attention(b.pool.attention, weights, biases, attention.out_proj)
    copy(b.pool.norm, pool.layernorm)
    copy_mlp(b.pool.mlp, pool.mlp)
    b.temperature.data.copy_(a.logit_scale.exp())
    b.shift.data.copy_(a.logit_bias)
    pixels = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return a, b, (token_ids(), pixels), (token_ids(), pixels)
