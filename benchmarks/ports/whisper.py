"""Whisper as its first implementation has it: fused projections, and queries and keys scaled alike."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import WhisperConfig

from support.models.zoo import WHISPER, build

from ._port import BATCH, EAGER, Pair, copy, copy_parts, token_ids


class Attention(nn.Module):
    """Attention of a sequence to itself or to another one."""

    def __init__(self, width: int, heads: int, bug: str | None, *, masked: bool = False):
        super().__init__()
        self.bug, self.heads, self.masked = bug, heads, masked
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        q = self.query(x)
        k, v = self.key_value(x if other is None else other).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        scale = q.shape[-1] ** -0.25
        scores = (q * scale) @ (k * (1.0 if self.bug == "keys not scaled" else scale)).mT
        if self.masked and self.bug != "no mask":
            scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, bug: str | None, *, decodes: bool):
        super().__init__()
        self.norm_self, self.self_attention = nn.LayerNorm(width), Attention(width, heads, bug, masked=decodes)
        if decodes:
            self.norm_cross, self.cross = nn.LayerNorm(width), Attention(width, heads, bug)
        approximation = "tanh" if bug == "activation" else "none"
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(approximation), nn.Linear(inner, width))

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        x = x + self.self_attention(self.norm_self(x))
        if encoded is not None:
            x = x + self.cross(self.norm_cross(x), encoded)
        return x + self.mlp(self.norm_mlp(x))


class Encoder(nn.Module):
    def __init__(self, config: WhisperConfig, bug: str | None):
        super().__init__()
        width = config.d_model
        self.first = nn.Conv1d(config.num_mel_bins, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.zeros(config.max_source_positions, width))
        sizes = width, config.encoder_ffn_dim, config.encoder_attention_heads
        self.blocks = nn.Sequential(*(Block(*sizes, bug, decodes=False) for _ in range(config.encoder_layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> Tensor:
        x = gelu(self.second(gelu(self.first(features)))).mT
        return self.norm(self.blocks(x + self.positions))


class Whisper(nn.Module):
    def __init__(self, config: WhisperConfig, bug: str | None):
        super().__init__()
        width = config.d_model
        self.encoder = Encoder(config, bug)
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Parameter(torch.zeros(config.max_target_positions, width))
        sizes = width, config.decoder_ffn_dim, config.decoder_attention_heads
        self.blocks = nn.ModuleList(Block(*sizes, bug, decodes=True) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        encoded = self.encoder(features)
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, encoded)
        return self.norm(x) @ self.tokens.weight.T


def copy_attention(target: Attention, source: nn.Module) -> None:
    """Copy an attention; its keys have no bias."""
    copy_parts(target, source, query="q_proj", out="out_proj")
    target.key_value.weight.data.copy_(torch.cat([source.k_proj.weight, source.v_proj.weight]))
    target.key_value.bias.data.copy_(torch.cat([torch.zeros_like(source.v_proj.bias), source.v_proj.bias]))


def make(bug: str | None = None) -> Pair:
    a = build("WhisperForConditionalGeneration", WHISPER | EAGER | {"max_target_positions": 12})
    b = Whisper(a.config, bug)
    encoder, decoder = a.model.encoder, a.model.decoder
    copy(b.encoder.first, encoder.conv1)
    copy(b.encoder.second, encoder.conv2)
    copy(b.encoder.norm, encoder.layer_norm)
    copy_parts(b, decoder, tokens="embed_tokens", norm="layer_norm")
    b.encoder.positions.data.copy_(encoder.embed_positions.weight)
    b.positions.data.copy_(decoder.embed_positions.weight)
    for own, block in zip((*encoder.layers, *decoder.layers), (*b.encoder.blocks, *b.blocks), strict=True):
        copy(block.norm_self, own.self_attn_layer_norm)
        copy_attention(block.self_attention, own.self_attn)
        if hasattr(own, "encoder_attn"):
            copy(block.norm_cross, own.encoder_attn_layer_norm)
            copy_attention(block.cross, own.encoder_attn)
        copy(block.norm_mlp, own.final_layer_norm)
        copy(block.mlp[0], own.fc1)
        copy(block.mlp[2], own.fc2)
    features = torch.randn(BATCH, 8, 20, generator=torch.Generator().manual_seed(2))
    return a, b, (features, None, token_ids(6)), (features, token_ids(6))
