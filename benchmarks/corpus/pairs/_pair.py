"""`Pair`: two published implementations of a model, and how weights of the second are made of those of the first."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

State = Mapping[str, Tensor]
EAGER = {"attn_implementation": "eager"}
_KERNELS = torch.library.Library("torchvision", "FRAGMENT")
try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:  # its kernels are for CUDA alone, and declare these operators only if they load
    for _name in ("nms", "qnms"):
        _KERNELS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@dataclass(frozen=True)
class Pair:
    """Two implementations of a model.

    Attributes:
        original: returns implementation A, with fresh weights.
        port: returns implementation B.
        weights: returns the weights of B, by name, given those of A.
        inputs: returns the arguments of A and of B.
        packages: the distributions of which B needs one, to be installed or not.
    """

    original: Callable[[], nn.Module]
    port: Callable[[], nn.Module]
    weights: Callable[[State], dict[str, Tensor]]
    inputs: Callable[[], tuple[tuple[Any, ...], tuple[Any, ...]]]
    packages: tuple[str, ...]


class Calling(nn.Module):
    """A model that is called in a way of its own, and of whose results some are returned."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args: Tensor) -> Any:
        """Call the model."""
        return self.call(self.model, *args)


def renamed(state: State, *rules: tuple[str, str | None]) -> dict[str, Tensor]:
    """Return weights by other names: each regular expression is replaced, in their order; None drops a weight."""
    found = {}
    for key, tensor in state.items():
        name: str | None = key
        for pattern, text in rules:
            if name is not None and re.search(pattern, name):
                name = None if text is None else re.sub(pattern, text, name)
        if name is not None:
            found[name] = tensor
    return found


def joined(state: State, pattern: str, parts: tuple[str, ...], name: str) -> dict[str, Tensor]:
    """Return weights of which some are joined: those whose names have one of `parts` in place of `#` in a pattern."""
    found = dict(state)
    for key in [key for key in state if re.fullmatch(pattern.replace("#", parts[0]), key)]:
        start = key.rpartition(parts[0])
        found[f"{start[0]}{name}{start[2]}"] = torch.cat([found.pop(f"{start[0]}{part}{start[2]}") for part in parts])
    return found


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Return the rows of queries or keys as an implementation needs them that rotates neighboring rows."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def token_ids(vocabulary: int = 96, *, length: int = 7) -> Tensor:
    """Return token ids, int64[2, length]."""
    return torch.randint(3, vocabulary, (2, length), generator=torch.Generator().manual_seed(1))


def image(size: int, batch: int = 2) -> Tensor:
    """Return images, float32[batch, 3, size, size]."""
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))
