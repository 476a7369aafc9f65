"""Caches of transformers whose layers with a sliding window keep the last keys and values only."""

import math
from typing import Any

import torch

from filch.steal.private._transformers import DynamicCache, DynamicLayer


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
        """See `CacheLayerMixin.update`; what is kept leaves one place in the window for the next query's own token."""
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
        layer = max(self.layers, key=lambda item: item.sliding_window if item.is_sliding else math.inf)
        return 0 if layer.keys is None else layer.keys.shape[-2]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  the same for all layers
        """Return the place of the next token among the columns of the mask."""
        return self.kept

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the number of keys of a layer, and the column of the mask of the first one."""
        keys = self.layers[layer_idx].keys
        past = 0 if keys is None else keys.shape[-2]
        return past + query_length, self.kept - past


class SlotLayer(DynamicLayer):  # type: ignore[misc]  # as above
    """Keys and values in a fixed number of slots, of one token in each update.

    When all slots are used, they move by one, as those of `StaticSlidingWindowLayer`. The number of tokens is a tensor
    here, with one for each row; `StaticSlidingWindowLayer` has a number in Python for all rows.

    Args:
        slots: the number of slots: those of a window, or as many as there will be tokens.
        is_sliding: whether the layer has a window.
    """

    is_compileable = True
    cumulative_length: torch.Tensor

    def __init__(self, slots: int, *, is_sliding: bool) -> None:
        super().__init__()
        self.slots, self.is_sliding = slots, is_sliding

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make empty slots for states of these shapes."""
        super().lazy_initialization(key_states, value_states)
        self.keys, self.values = (
            item.new_zeros(*item.shape[:2], self.slots, item.shape[3]) for item in (key_states, value_states)
        )
        self.cumulative_length = torch.zeros(len(key_states), dtype=torch.long, device=key_states.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the keys and values of a new token, [rows, heads, 1, size], in their slot; return those of all slots.

        See `CacheLayerMixin.update`; the caller has called `lazy_initialization` before the first token.
        """
        length = self.cumulative_length[:, None, None, None]
        slots = torch.arange(self.slots, device=length.device)[:, None]
        is_new = slots == length.clamp(max=self.slots - 1)  # the first unused slot, or else the last one
        is_full = length >= self.slots
        held: tuple[Any, Any] = self.keys, self.values
        self.keys, self.values = (
            torch.where(is_new, new, torch.where(is_full, old.roll(-1, 2), old))
            for old, new in zip(held, (key_states, value_states), strict=True)
        )
        self.cumulative_length = self.cumulative_length + 1
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002  the same for all
        """Return the number of slots, and the column of the mask of the first one."""
        return self.slots, 0


class SlotCache(DynamicCache):  # type: ignore[misc]  # as above
    """A cache of `SlotLayer`.

    The mask has a column for each slot of the layer that has most of them, with 1 for each token up to the new one. For
    a layer with fewer slots, its first columns are right, too. It alone says which slots are used, so that each row may
    have another number of tokens.
    """

    layers: list[Any]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the place of the new token among the columns of the mask: behind all slots that it may see."""
        slots: int = self.layers[layer_idx].slots
        return slots - 1
