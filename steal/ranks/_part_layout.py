"""The layout of parts of which only the shapes and the placements are known."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..values._sharding import Mesh, Placement, Sharding


def layout_of(
    tensors: Sequence[torch.Tensor], placements: Sequence[Placement], mesh: tuple[int, ...] | None = None
) -> Sharding:
    """Return the layout of parts over a mesh whose ranks are their indices; the global shape follows from the parts."""
    sizes = mesh or (len(tensors),)
    grid = Mesh(sizes, tuple(range(len(tensors))))
    shape, found = list(tensors[0].shape), list(placements)
    for mesh_dim, placement in enumerate(placements):
        if placement.kind == "shard" and placement.dim < len(shape):
            sharding = {
                index for index, item in enumerate(placements) if (item.kind, item.dim) == ("shard", placement.dim)
            }
            part_sizes = tuple(
                _size(tensor, placement.dim)
                for tensor, place in zip(tensors, grid.coordinates, strict=True)
                if not any(number for index, number in enumerate(place) if index not in sharding)  # each part once
            )
            shape[placement.dim] = sum(part_sizes)
            if len(sharding) == 1 and not placement.zigzag:  # only these may be uneven
                found[mesh_dim] = _with_sizes(placement, part_sizes)
    return Sharding(grid, tuple(found), tuple(shape), "")


@dataclass(frozen=True)
class _Uneven(Placement):
    """Shards of any sizes, as the rows that are sent to experts.

    Attributes:
        sizes: of the shards.
    """

    sizes: tuple[int, ...] = ()

    def split(self, tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
        """See `Placement.split`; `count` must be that of the sizes."""
        return list(torch.split(tensor, list(self.sizes[:count]), self.dim))

    __str__ = Placement.__str__


def _with_sizes(placement: Placement, sizes: tuple[int, ...]) -> Placement:
    """Return a placement that splits into shards of these sizes."""
    regular = placement.split(torch.empty([1] * placement.dim + [sum(sizes)]), len(sizes))
    is_regular = tuple(part.shape[placement.dim] for part in regular) == sizes
    return placement if is_regular else _Uneven(placement.kind, dim=placement.dim, sizes=sizes)


def _size(tensor: torch.Tensor, dim: int) -> int:
    return tensor.shape[dim] if dim < tensor.dim() else 0  # a part may have fewer dimensions
