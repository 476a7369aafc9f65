"""The tensors of all ranks at one place of a record, and how they are put together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import NamedTuple

import torch

from ..values._sharding import LocalShard, Placement, Sharding, local_part
from ._join import is_same_bits, join
from ._part_layout import layout_of


class Piece(NamedTuple):
    """What one rank has of a tensor.

    Attributes:
        rank: the rank.
        tensor: what it has.
        take: returns what it should have of a global tensor; None if it has a partial value.
    """

    rank: int
    tensor: torch.Tensor
    take: Callable[[torch.Tensor], torch.Tensor] | None


class RankPart(NamedTuple):
    """The tensor of one rank, or one that was put together of several ranks.

    Attributes:
        ranks: the ranks.
        tensor: the tensor.
        pieces: what each of the ranks has of it.
    """

    ranks: tuple[int, ...]
    tensor: torch.Tensor
    pieces: tuple[Piece, ...]


@dataclass
class Distributed:
    """The tensors of all ranks at one place of a record, put together as far as their layout is recorded.

    Attributes:
        parts: one if all is known.
        layout: how they were put together, and how that is known: `"S(1), R (DTensor)"`.
        problems: what is wrong with the parts, in sentences.
        ranks: the ranks to which the problems belong.
        shards: how many shards a tensor has that was put together of parts without recorded layouts.
    """

    parts: list[RankPart]
    layout: str = ""
    problems: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    shards: int = 1

    @property
    def pieces(self) -> list[Piece]:
        """What each rank has."""
        return [piece for part in self.parts for piece in part.pieces]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor of each part."""
        return [part.tensor for part in self.parts]

    def joined(self, sharding: Sharding, source: str, divisor: int = 1) -> "Distributed":
        """Return the tensor that the parts are together.

        Args:
            sharding: the layout over a mesh whose ranks are the indices of `parts`.
            source: how the layout is known.
            divisor: of the tensor: gradients are n times as large if each of n ranks has the mean loss of its part.
        """
        result = join(dict(enumerate(self.tensors)), sharding)
        if divisor > 1:
            result.tensor, source = result.tensor / divisor, f"{source}, divided by {divisor}"
        ranks = tuple(rank for part in self.parts for rank in part.ranks)
        placements = ", ".join(map(str, sharding.placements))
        known = f"{self.layout}; {placements} ({source})" if self.layout else f"{placements} ({source})"
        problems = [self._with_ranks(problem) for problem in result.problems]
        wrong = [rank for index in result.ranks for rank in self.parts[index].ranks]
        pieces = tuple(
            Piece(piece.rank, piece.tensor, _taking(piece.take, sharding, index, divisor))
            for index, part in enumerate(self.parts)
            for piece in part.pieces
        )
        shards = self.shards * prod(sharding.mesh.shape[dim] for dim in sharding.shard_dims)
        part = RankPart(ranks, result.tensor, pieces)
        return Distributed([part], known, self.problems + problems, self.ranks + wrong, shards)

    def divided(self, divisor: float) -> "Distributed":
        """Return a tensor of one part, divided."""
        part = self.parts[0]
        pieces = (
            Piece(piece.rank, piece.tensor, take and partial(_multiplied, take, divisor))
            for piece in part.pieces
            for take in (piece.take,)
        )
        divided = part._replace(tensor=part.tensor / divisor, pieces=tuple(pieces))
        return replace(self, parts=[divided], layout=f"{self.layout} divided by {divisor:.4g}".strip())

    def _with_ranks(self, problem: str) -> str:
        """Return a problem, which names parts by index; if that is not the rank, add the first rank of each part."""
        names = [part.ranks[0] for part in self.parts]
        return problem if names == list(range(len(names))) else f"{problem} (of the groups {names})"


def join_recorded(held: dict[int, torch.Tensor]) -> Distributed:
    """Put the tensors of ranks together that are parts of the same distributed tensors."""
    result = Distributed([])
    layouts: dict[str, None] = {}
    rest = dict(held)
    while rest:
        rank = min(rest)
        tensor = rest.pop(rank)
        if not isinstance(tensor, LocalShard):
            result.parts.append(RankPart((rank,), tensor, (Piece(rank, tensor, _whole),)))
            continue
        sharding = tensor.sharding
        others = {other: rest.pop(other) for other in sharding.mesh.ranks if other in rest}
        _check_agreement(sharding, others, result)
        joined = join({rank: tensor, **others}, sharding)
        pieces = (
            Piece(own, local_part(part)[0], _taking(_whole, sharding, own, 1))
            for own, part in {rank: tensor, **others}.items()
        )
        result.parts.append(RankPart((rank, *others), joined.tensor, tuple(pieces)))
        result.problems += joined.problems
        result.ranks += joined.ranks
        layouts[f"{sharding} ({sharding.source})"] = None
    result.layout = "; ".join(layouts)
    return result


def _check_agreement(sharding: Sharding, others: Mapping[int, torch.Tensor], result: Distributed) -> None:
    """Note the ranks whose part has another layout."""
    for rank, tensor in others.items():
        own = tensor.sharding if isinstance(tensor, LocalShard) else None
        if own is None or (own.placements, own.shape) != (sharding.placements, sharding.shape):
            result.problems.append(f"rank {rank} has {own or 'a plain tensor'} where others have {sharding}")
            result.ranks.append(rank)


def joined_if_equal(item: Distributed) -> Distributed | None:
    """Return the tensor of which all parts are replicas; None if they are not equal, bit for bit."""
    first, *others = item.tensors
    if not all(is_same_bits(first, other) for other in others):
        return None
    return item.joined(layout_of(item.tensors, [Placement("replicate")]), "equal on all ranks")


def _taking(
    take: Callable[[torch.Tensor], torch.Tensor] | None, sharding: Sharding, index: int, divisor: int
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return a function from a global tensor to what a rank should have of it, by its share of part `index`."""
    if take is None or not sharding.is_complete:
        return None
    return partial(_multiplied, lambda tensor: take(sharding.part_of(tensor, index)), divisor)


def _multiplied(take: Callable[[torch.Tensor], torch.Tensor], factor: float, tensor: torch.Tensor) -> torch.Tensor:
    return take(tensor) * factor if factor != 1 else take(tensor)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
