"""`Plan`: the calls with which a model computes some sequences of tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

PADDING = -1  # in place of a position
Cache = Literal["dynamic", "static", "none"]
Side = Literal["left", "right"]


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """One call of a model.

    Attributes:
        sequences: the index of the sequence in each row.
        tokens: int64 in the shape [rows, queries].
        positions: the position of each token in its sequence, `PADDING` for padding; in the shape of `tokens`.
        keys: likewise, of all tokens that the call attends to, which are those of the cache and its own: [rows, keys].
        is_first: whether it begins with an empty cache.
        slots: the number of slots of a static cache; 0 for other caches.
        is_judged: whether its values are compared; otherwise it only prepares later calls.
    """

    sequences: tuple[int, ...]
    tokens: torch.Tensor
    positions: torch.Tensor
    keys: torch.Tensor
    is_first: bool
    slots: int = 0
    is_judged: bool = True


@dataclass(frozen=True, eq=False)
class Plan:
    """Calls with which a model computes all tokens of some sequences.

    Attributes:
        calls: the calls in order.
        cache: the kind of cache that goes from call to call.
        with_positions: whether the model gets the positions of the tokens, or has to find them by itself.
        reuses_cache: whether a cache that is full is reset, in place of a new one.
    """

    calls: tuple[PlannedCall, ...]
    cache: Cache = "dynamic"
    with_positions: bool = True
    reuses_cache: bool = False


def together(tokens: torch.Tensor, order: Sequence[int] | None = None) -> tuple[PlannedCall, ...]:
    """Return one call with all sequences.

    Args:
        tokens: int64 in the shape [sequences, length].
        order: which sequence is in which row; None for the given order.
    """
    return chunks(tokens, tokens.shape[1], order=order)


def alone(sequences: Sequence[torch.Tensor]) -> tuple[PlannedCall, ...]:
    """Return one call for each sequence; each is int64 in the shape [length]."""
    calls = (chunks(tokens[None], len(tokens), order=(index,)) for index, tokens in enumerate(sequences))
    return tuple(call for item in calls for call in item)


def chunks(
    tokens: torch.Tensor, size: int, *, first: int | None = None, order: Sequence[int] | None = None
) -> tuple[PlannedCall, ...]:
    """Return calls with a number of tokens each, of which the later ones read the cache.

    Args:
        tokens: int64 in the shape [rows, length].
        size: the number of tokens of a call.
        first: that of the first call; None if it is the same.
        order: see `together`; `tokens` has a row for each sequence, or the rows as they are if there is only one.
    """
    rows = tuple(range(len(tokens)) if order is None else order)
    given = tokens[list(rows)] if len(tokens) > 1 else tokens
    positions = torch.arange(tokens.shape[1]).expand(len(rows), -1)
    return _calls(rows, given, positions, _spans(tokens.shape[1], size, first or size))


def masked(tokens: torch.Tensor, mask: torch.Tensor, spans: Sequence[tuple[int, int]]) -> tuple[PlannedCall, ...]:
    """Return calls with sequences of which some tokens are masked, as padding is.

    Args:
        tokens: int64 in the shape [sequences, length].
        mask: which tokens are attended to, int64 in the shape of `tokens`.
        spans: the first position of each call, and the one after its last.
    """
    positions = torch.where(mask.bool(), mask.cumsum(-1) - 1, PADDING)
    return _calls(tuple(range(len(tokens))), tokens, positions, spans)


def _calls(
    sequences: tuple[int, ...], tokens: torch.Tensor, positions: torch.Tensor, spans: Iterable[tuple[int, int]]
) -> tuple[PlannedCall, ...]:
    """Return a call for each span of columns; see `PlannedCall` for the arguments."""
    return tuple(
        PlannedCall(sequences, tokens[:, start:end], positions[:, start:end], positions[:, :end], start == 0)
        for start, end in spans
    )


def _spans(length: int, size: int, first: int) -> Iterable[tuple[int, int]]:
    """Return the first column of each call, and the one after its last: of `first` columns, then of `size` each."""
    return pairwise([0, *range(first, length, size), length])


def padded(sequences: Sequence[torch.Tensor], side: Side, size: int, filler: int) -> tuple[PlannedCall, ...]:
    """Return calls with sequences of different lengths, which padding makes equally long.

    Args:
        sequences: int64 in the shape [length].
        side: where the padding is.
        size: the number of columns of the first call; later ones have one each. Padding on the right needs all columns.
        filler: the token in the place of padding.
    """
    longest = max(map(len, sequences))
    tokens = torch.full((len(sequences), longest), filler)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(sequences):
        start = longest - len(sequence) if side == "left" else 0
        tokens[row, start : start + len(sequence)] = sequence
        mask[row, start : start + len(sequence)] = 1
    return masked(tokens, mask, [*_spans(longest, 1, size)])
