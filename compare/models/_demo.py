"""A language model small enough to be captured, exported and read in a minute."""

from typing import Any

import torch
from torch import nn


class Embedding(nn.Module):
    """The sum of token and position embeddings."""

    def __init__(self, vocabulary: int, context: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.pe = nn.Embedding(context, size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Map `(batch, length)` tokens to `(batch, length, size)`."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        embedded: torch.Tensor = self.embedding(input_ids) + self.pe(positions)
        return embedded


class AttentionBlock(nn.Module):
    """One head of causal attention."""

    mask: torch.Tensor

    def __init__(self, size: int, head: int, context: int) -> None:
        super().__init__()
        self.query = nn.Linear(size, head, bias=False)
        self.key = nn.Linear(size, head, bias=False)
        self.value = nn.Linear(size, head, bias=False)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1))
        self.scale = head**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(batch, length, size)` to `(batch, length, head)`."""
        length = x.shape[1]
        scores = self.query(x) @ self.key(x).transpose(1, 2) * self.scale + self.mask[:length, :length]
        attended: torch.Tensor = torch.softmax(scores, dim=-1) @ self.value(x)
        return attended


class MultiAttentionBlock(nn.Module):
    """Multi-head causal attention."""

    def __init__(self, size: int, heads: int, context: int) -> None:
        super().__init__()
        self.attention = nn.ModuleList(AttentionBlock(size, size // heads, context) for _ in range(heads))
        self.linear = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(batch, length, size)` to the same shape."""
        mixed: torch.Tensor = self.linear(torch.cat([head(x) for head in self.attention], dim=-1))
        return mixed


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(size, hidden)
        self.relu = nn.ReLU()
        self.linear_2 = nn.Linear(hidden, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(batch, length, size)` to the same shape."""
        out: torch.Tensor = self.linear_2(self.relu(self.linear_1(x)))
        return out


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each with a preceding norm and a residual connection."""

    def __init__(self, size: int, heads: int, hidden: int, context: int) -> None:
        super().__init__()
        self.attention = MultiAttentionBlock(size, heads, context)
        self.feed_forward = FeedForward(size, hidden)
        self.norm_1 = nn.LayerNorm(size)
        self.norm_2 = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `(batch, length, size)` to the same shape."""
        attended: torch.Tensor = x + self.attention(self.norm_1(x))
        out: torch.Tensor = attended + self.feed_forward(self.norm_2(attended))
        return out


class LLM(nn.Module):
    """A language model of one layer, without a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary=1024, context=256, size=16)
        self.decoder = DecoderLayer(size=16, heads=2, hidden=128, context=256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Map `(batch, length)` tokens to `(batch, length, size)`."""
        decoded: torch.Tensor = self.decoder(self.embedding(input_ids))
        return decoded


def tiny_llm(*, dynamic_shapes: bool = False, seed: int = 0) -> tuple[Any, ...]:
    """Return a language model of one layer and 16 dimensions with random weights, and arguments for it.

    Args:
        dynamic_shapes: also return dynamic shapes to export it with.
        seed: the seed of weights and tokens.

    Returns:
        the model in eval mode; its arguments, `(int64[2, 30],)`; and the dynamic shapes if `dynamic_shapes` is true.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LLM().eval()
        inputs = (torch.randint(0, 1024, (2, 30)),)
    if not dynamic_shapes:
        return model, inputs
    batch, length = torch.export.Dim("batch", min=1, max=1024), torch.export.Dim("length", min=1, max=255)
    return model, inputs, {"input_ids": {0: batch, 1: length}}
