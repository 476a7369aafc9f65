"""Put the parts of a distributed tensor together, without a process group."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .._errors import DumpError
from ..values._sharding import Placement, Sharding, local_part

# Limits of a tensor: bytes, however little of it is stored; and times the bytes of its stored parts, if it is larger.
_MAX_UNSTORED, _MAX_GROWTH = 2**31, 64
_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.mean(0),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
    "product": lambda parts: parts.prod(0),
}


@dataclass
class JoinedTensor:
    """A tensor that was put together.

    Attributes:
        tensor: the global tensor; elements of ranks that are missing are NaN, or 0 in a tensor of integers.
        problems: what is wrong with the parts, in sentences: replicas that differ, ranks that are missing, shards of a
            wrong shape.
        ranks: the ranks to which the problems belong.
    """

    tensor: torch.Tensor
    problems: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)


def join(parts: Mapping[int, torch.Tensor], sharding: Sharding) -> JoinedTensor:
    """Put the parts of a tensor together as `DTensor.full_tensor` does.

    Args:
        parts: the part of each rank; those of one mesh.
        sharding: the layout.
    """
    mesh = sharding.mesh
    joined = JoinedTensor(torch.empty(0))
    ranks = dict(zip(mesh.coordinates, mesh.ranks, strict=True))
    held = {place: local_part(parts[rank])[0] for place, rank in ranks.items() if rank in parts}
    missing = [rank for rank in mesh.ranks if rank not in parts]
    if missing:
        joined.problems.append(f"rank {_listed(missing)} has no such value")
        joined.ranks += missing
    for dim, placement in enumerate(sharding.placements):
        if placement.kind != "shard":
            held = _fold(held, dim, placement, ranks, joined)
    if sharding.shard_dims:
        joined.tensor = _scatter(held, sharding, ranks, joined)
    else:
        joined.tensor = next(iter(held.values()))  # all parts were folded into one
    return joined


_Place = tuple[int, ...]  # coordinates in a mesh


def _fold(
    held: dict[_Place, torch.Tensor], dim: int, placement: Placement, ranks: dict[_Place, int], joined: JoinedTensor
) -> dict[_Place, torch.Tensor]:
    """Reduce the parts along a dimension of the mesh to one, at coordinate 0; compare them if they are replicas."""
    groups: dict[_Place, list[_Place]] = {}
    for place in held:
        groups.setdefault((*place[:dim], 0, *place[dim + 1 :]), []).append(place)
    folded = {}
    for first, places in groups.items():
        values = [held[place] for place in places]
        if placement.kind == "replicate":
            folded[first] = values[check_replicas(values, [ranks[place] for place in places], joined)]
        else:
            folded[first] = reduce_parts(values, placement.reduce_op)
    return folded


def reduce_parts(parts: Sequence[torch.Tensor], reduce_op: str) -> torch.Tensor:
    """Return the value of which these are the partial values; a part of another shape counts as missing."""
    return _REDUCTIONS[reduce_op](torch.stack([part for part in parts if part.shape == parts[0].shape]))


def check_replicas(values: Sequence[torch.Tensor], ranks: Sequence[int], joined: JoinedTensor) -> int:
    """Return the index of the value that most replicas have, bit for bit; note the ranks that have another one."""
    equal = [[is_same_bits(value, other) for other in values] for value in values]
    best = max(range(len(values)), key=lambda index: (sum(equal[index]), -index))  # the first of several
    odd = [index for index, same in enumerate(equal[best]) if not same]
    if odd:
        text = f"the replica of rank {_listed([ranks[index] for index in odd])} differs from that of rank {ranks[best]}"
        joined.problems.append(f"{text}{_amount(values[best], [values[index] for index in odd])}")
        joined.ranks += [ranks[index] for index in odd]
    return best


def is_same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bytes."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.reshape(-1).view(torch.uint8)


def _amount(value: torch.Tensor, others: Sequence[torch.Tensor]) -> str:
    """Return by how much others differ from a value at most, to end a sentence; `""` if they can't be subtracted."""
    if not value.dtype.is_floating_point or any(other.shape != value.shape for other in others):
        return ""
    largest = max((other.double() - value.double()).abs().max().item() for other in others)
    return f" by {largest:.1e}"


def _scatter(
    held: dict[_Place, torch.Tensor], sharding: Sharding, ranks: dict[_Place, int], joined: JoinedTensor
) -> torch.Tensor:
    """Return the global tensor with all shards in their places."""
    first, stored = next(iter(held.values())), sum(part.nbytes for part in held.values())
    nbytes = math.prod(sharding.shape) * first.itemsize
    if nbytes > max(_MAX_UNSTORED, _MAX_GROWTH * stored):  # layouts come from files of unknown origin
        raise DumpError(f"a layout asks for a tensor of {nbytes} bytes, of which the dumps have {stored}")
    full = first.new_zeros(sharding.shape)
    if full.is_floating_point() or full.is_complex():
        full.fill_(float("nan"))
    for place, shard in held.items():
        region = sharding.region(ranks[place])
        belongs = [len(indices) for indices in region]
        if belongs != list(shard.shape):
            joined.problems.append(f"the shard of rank {ranks[place]} has shape {list(shard.shape)}, not {belongs}")
            joined.ranks.append(ranks[place])
        elif shard.numel():
            full[open_grid(region)] = shard.detach().to(full.dtype)
    return full


def open_grid(region: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return the index that selects a region of a tensor, from the indices of each of its dimensions."""
    slices = [_as_slice(indices) for indices in region]
    if all(item is not None for item in slices):
        return tuple(slices)
    rank = len(region)
    return tuple(
        indices.view(*[-1 if dim == other else 1 for other in range(rank)]) for dim, indices in enumerate(region)
    )


def _as_slice(indices: torch.Tensor) -> slice | None:
    """Return the slice with these ascending indices; None if they are not consecutive."""
    if not len(indices):
        return slice(0, 0)
    start, stop = int(indices[0]), int(indices[-1]) + 1
    return slice(start, stop) if stop - start == len(indices) else None


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
