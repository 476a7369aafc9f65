"""The layout of parts of which only the shapes and the placements are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from ..values._sharding import Mesh, Placement, Sharding


def layout_of(
    tensors: Sequence[torch.Tensor], placements: Sequence[Placement], mesh: tuple[int, ...] | None = None
) -> Sharding:
    """Return the layout of parts over a mesh whose ranks are their indices; the global shape follows from the parts."""
    sizes = mesh or (len(tensors),)
    grid = Mesh(sizes, tuple(range(len(tensors))))
    shape, found = list(tensors[0].shape), list(placements)
    dims = [placement.dim for placement in placements if placement.kind == "shard"]
    for dim, placement in enumerate(placements):
        if placement.kind == "shard" and placement.dim < len(shape):
            # The coordinates in this dimension of the mesh of the ranks that are at 0 in all others.
            along = [place[dim] for place in grid.coordinates if not any(place[:dim] + place[dim + 1 :])]
            step = prod(sizes[dim + 1 :])
            part_sizes = tuple(_size(tensors[index * step], placement.dim) for index in along)
            shape[placement.dim] = sum(part_sizes)
            if dims.count(placement.dim) == 1 and not placement.zigzag:  # only these may be uneven
                found[dim] = _with_sizes(placement, part_sizes)
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
