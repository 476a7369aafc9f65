"""A cache of transformers whose layers with a sliding window keep the last keys and values only."""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer


class WindowLayer(DynamicLayer):  # type: ignore[misc]  # mypy does not follow transformers
    """Keys and values that a window still reaches: with the token that a query has itself, those of a whole window.

    It computes what `DynamicSlidingWindowLayer` does. That one counts its tokens in Python, so that an exported program
    has their number as a constant.

    Args:
        sliding_window: the number of tokens that a query attends to, with its own.
    """

    is_sliding = True

    def __init__(self, sliding_window: int) -> None:
        super().__init__()
        self.sliding_window = sliding_window

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `CacheLayerMixin.update`."""
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        start = torch.sym_max(keys.shape[-2] - (self.sliding_window - 1), 0)  # type: ignore[no-untyped-call]
        self.keys, self.values = keys[:, :, start:], values[:, :, start:]
        return keys, values


class WindowCache(DynamicCache):  # type: ignore[misc]  # as above
    """A cache with layers that keep all tokens, and `WindowLayer`.

    The mask has a column for each token that any of its layers keeps.
    """

    layers: list[Any]

    @property
    def kept(self) -> int:
        """The number of tokens in the layer that keeps most of them."""
        layer = next((layer for layer in self.layers if not layer.is_sliding), self.layers[0])
        return 0 if layer.keys is None else layer.keys.shape[-2]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  the same for all layers
        """Return the place of the next token among the columns of the mask."""
        return self.kept

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the number of keys of a layer, and the column of the mask of the first one."""
        keys = self.layers[layer_idx].keys
        past = 0 if keys is None else keys.shape[-2]
        return past + query_length, self.kept - past
