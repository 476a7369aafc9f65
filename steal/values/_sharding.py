"""How the tensor of one process belongs to a tensor that is distributed over a device mesh, as in torch's DTensor.

Placements are written as PyTorch prints them: `S(1)` (sharded along dimension 1), `S(0, 2)` (the same, strided with a
split factor of 2, as fully sharded parameters of tensor parallel layers are), `R` (replicated), `P(sum)` (partial: the
sum of all parts is the value). Torch has no placement for `Z(1)`: sharded in zigzag order, each part being one piece
from the front and one from the back, as context parallelism does to balance causal attention.
"""

import itertools
import math
import re
import reprlib
import sys
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..private._torch import NAMES, AutoDispatchBelowAutograd, disabled_torch_function_impl, make_subclass
from ._foreign import Spec
from ._raw import no_modes

_convert: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()  # `_sharding_on` with a cache, by torch's mesh
_MAX_CONVERTED = 1024  # layouts kept for each mesh
_UNDISTRIBUTED = {torch.Tensor, torch.nn.Parameter}
_MAX_RANKS = 2**20
_MAX_DIMS = 256
_MAX_SIZE = 2**28  # of a dimension: the indices of each are computed
_PLACEMENT = re.compile(r"R|P\((sum|avg|max|min|product)\)|([SZ])\((\d{1,9})(?:, (\d{1,9}))?\)")


@dataclass(frozen=True)
class Placement:
    """How a tensor is distributed over one dimension of a mesh.

    Attributes:
        kind: `"shard"`, `"replicate"` or `"partial"`.
        dim: of a shard: the tensor's dimension, not negative.
        split_factor: of a shard: more than 1 if it is strided (torch's `_StridedShard`).
        zigzag: of a shard: whether it is in zigzag order.
        reduce_op: of a partial value: `"sum"`, `"avg"`, `"max"`, `"min"` or `"product"`.
    """

    kind: str
    dim: int = 0
    split_factor: int = 1
    zigzag: bool = False
    reduce_op: str = "sum"

    def __str__(self) -> str:
        if self.zigzag:
            return f"Z({self.dim})"
        if self.kind == "shard":
            return f"S({self.dim})" if self.split_factor == 1 else f"S({self.dim}, {self.split_factor})"
        return "R" if self.kind == "replicate" else f"P({self.reduce_op})"

    @classmethod
    def parse(cls, text: str) -> "Placement":
        """Return the placement that is written as `text`.

        Raises:
            ValueError: the text is not a placement.
        """
        match = _PLACEMENT.fullmatch(text)
        if match is None:
            raise ValueError(f"{reprlib.repr(text)} is not a placement like 'S(0)', 'R' or 'P(sum)'")
        reduce_op, letter, dim, split_factor = match.groups()
        if dim is not None:
            return cls("shard", dim=int(dim), split_factor=int(split_factor or 1), zigzag=letter == "Z")
        return cls("replicate") if reduce_op is None else cls("partial", reduce_op=reduce_op)

    def split(self, tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
        """Return the shards of a tensor over `count` ranks, by DTensor's rule; the last ones may be empty."""
        if self.zigzag:
            pieces = _chunks(tensor, 2 * count, self.dim)
            return [torch.cat(pair, self.dim) for pair in zip(pieces[:count], reversed(pieces[count:]), strict=True)]
        if self.split_factor == 1:
            return _chunks(tensor, count, self.dim)
        split = [_chunks(piece, count, self.dim) for piece in _chunks(tensor, self.split_factor, self.dim)]
        return [torch.cat(parts, self.dim) for parts in zip(*split, strict=True)]


def _chunks(tensor: torch.Tensor, count: int, dim: int) -> list[torch.Tensor]:
    """Return `count` chunks of `torch.chunk`'s size; the last ones may be smaller or empty."""
    chunks = list(tensor.chunk(count, dim))
    return chunks + [tensor.narrow(dim, 0, 0)] * (count - len(chunks))


@dataclass(frozen=True)
class Mesh:
    """A device mesh.

    Attributes:
        shape: its size in each dimension.
        ranks: the global ranks in row-major order.
        names: of its dimensions, such as `("dp", "tp")`; empty if they have none.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = self.names or ("",) * len(self.shape)
        return ", ".join(f"{name}={size}" if name else str(size) for name, size in zip(names, self.shape, strict=True))

    @cached_property
    def coordinates(self) -> list[tuple[int, ...]]:
        """The coordinates of each of `ranks`."""
        return [*itertools.product(*map(range, self.shape))]


@dataclass(frozen=True)
class Sharding:
    """The layout of a distributed tensor.

    Attributes:
        mesh: the device mesh.
        placements: one for each dimension of the mesh.
        shape: the shape of the global tensor.
        source: where it is known from: `"DTensor"` if the value was one, else the conversion that took or made the
            plain tensor (`"from_local"`, `"to_local"`).
    """

    mesh: Mesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    source: str = "DTensor"

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.placements))} on {self.mesh}"

    @cached_property
    def shard_dims(self) -> tuple[int, ...]:
        """The dimensions of the mesh along which the tensor is sharded."""
        return tuple(index for index, placement in enumerate(self.placements) if placement.kind == "shard")

    @cached_property
    def reduced(self) -> "Sharding":
        """The layout with replicas for partial values, as that of a gradient with respect to the tensor."""
        placements = (Placement("replicate") if item.kind == "partial" else item for item in self.placements)
        return replace(self, placements=tuple(placements))

    @property
    def is_complete(self) -> bool:
        """Whether no part is a partial value."""
        return all(placement.kind != "partial" for placement in self.placements)

    def part_of(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the part of a global tensor that a rank has, where no part is a partial value."""
        return tensor[torch.meshgrid(*self.region(rank), indexing="ij")] if self.shard_dims else tensor

    def region(self, rank: int) -> list[torch.Tensor]:
        """Return the indices, in each dimension of the global tensor, of the part that a rank has."""
        place = self.mesh.coordinates[self.mesh.ranks.index(rank)]
        region = [torch.arange(size) for size in self.shape]
        for mesh_dim in self.shard_dims:
            placement, count = self.placements[mesh_dim], self.mesh.shape[mesh_dim]
            region[placement.dim] = replace(placement, dim=0).split(region[placement.dim], count)[place[mesh_dim]]
        return region

    def has_part(self, rank: int, shape: tuple[int, ...]) -> bool:
        """Return whether the part of a rank has this shape."""
        return rank in self.mesh.ranks and tuple(map(len, self.region(rank))) == tuple(shape)

    def to_json(self) -> Spec:
        """Return the layout as JSON."""
        return {**self._json}

    @cached_property
    def _json(self) -> Spec:
        return {
            "shape": self.shape,
            "placements": list(map(str, self.placements)),
            "mesh": self.mesh.shape,
            "ranks": self.mesh.ranks,
            "names": self.mesh.names,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, spec: Spec) -> "Sharding":
        """Return the layout that `to_json` wrote, from untrusted JSON.

        Raises:
            ValueError: the JSON does not describe a layout.
        """
        shape, mesh_shape, ranks = (_sizes(spec[name]) for name in ("shape", "mesh", "ranks"))
        placements = tuple(map(Placement.parse, spec["placements"]))
        names, source = tuple(spec["names"]), spec["source"]
        fits = (
            len(placements) == len(mesh_shape) <= _MAX_DIMS
            and len(shape) <= _MAX_DIMS
            and max(shape, default=0) <= _MAX_SIZE
            and 0 < math.prod(mesh_shape) == len(ranks) == len(set(ranks)) <= _MAX_RANKS
            and len(names) in (0, len(mesh_shape))
            and all(isinstance(text, str) for text in (*names, source))
            and all(0 <= placement.dim < len(shape) for placement in placements if placement.kind == "shard")
            and all(0 < placement.split_factor <= _MAX_RANKS // len(ranks) for placement in placements)
        )
        if not fits:
            raise ValueError(f"{reprlib.repr(spec)} is not the layout of a distributed tensor")
        return cls(Mesh(mesh_shape, ranks, names), placements, shape, source)


def _sizes(value: Spec) -> tuple[int, ...]:
    """Return a list of sizes from untrusted JSON."""
    if not isinstance(value, list | tuple) or any(type(item) is not int or item < 0 for item in value):
        raise ValueError(f"{reprlib.repr(value)} is not a list of sizes")
    return tuple(value)


class LocalShard(torch.Tensor):
    """The part of a distributed tensor that one process held; operations on it return plain tensors.

    Attributes:
        sharding: the layout of the distributed tensor.
    """

    sharding: Sharding
    __torch_function__ = disabled_torch_function_impl  # as `nn.Parameter`

    @classmethod
    def of(cls, tensor: torch.Tensor, sharding: Sharding) -> "LocalShard":
        """Return a view of a tensor that has the layout."""
        shard: LocalShard = make_subclass(cls, tensor.detach(), tensor.requires_grad)  # as `nn.Parameter`
        shard.sharding = sharding
        return shard


def local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, Sharding | None]:
    """Return the part of a tensor that is in this process, and its layout.

    No collective is run. The result of a collective that still runs is waited for. Any other tensor is returned as it
    is, with the layout None.
    """
    if type(tensor) in _UNDISTRIBUTED:
        return tensor, None
    if isinstance(tensor, LocalShard):
        return tensor.detach(), tensor.sharding
    if is_dtensor_type(type(tensor)):
        distributed: Any = tensor
        spec = distributed._spec  # noqa: SLF001  it has mesh and placements
        sharding = sharding_of(spec.mesh, spec.placements, distributed.shape)
        if sharding is None:
            return tensor, None
        local, _ = local_part(distributed._local_tensor)  # noqa: SLF001  to_local() would be part of the autograd graph
        return _mask(local.detach(), spec.placements), sharding
    pending = NAMES.loaded("AsyncCollectiveTensor")
    if pending is not None and isinstance(tensor, pending):
        # Not `trigger_wait`, which changes the tensor; waiting twice is allowed. Autograd would pass it through Python.
        with AutoDispatchBelowAutograd():  # as torch's custom operators do
            return torch.ops._c10d_functional.wait_tensor.default(tensor.elem), None  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
    return tensor, None


def is_dtensor_type(cls: type) -> bool:
    """Return whether a class is `DTensor` or derived from it."""
    dtensor = _class_of("torch.distributed.tensor", "DTensor")
    return dtensor is not None and issubclass(cls, dtensor)


def _class_of(module: str, name: str) -> type | None:
    """Return a class if its module is imported; else there are no instances."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def sharding_of(mesh: Any, placements: Any, shape: tuple[int, ...], source: str = "DTensor") -> Sharding | None:
    """Return the layout of a tensor with torch's `mesh` and `placements`; None for placements of unknown classes."""
    convert = _convert.get(mesh)
    if convert is None:
        convert = _convert.setdefault(mesh, lru_cache(_MAX_CONVERTED)(partial(_sharding_on, _mesh_of(mesh))))
    for placement in placements:
        if hasattr(placement, "mask_buffer"):  # the cache would keep the mask alive
            convert = convert.__wrapped__
            break
    sharding: Sharding | None = convert(tuple(placements), shape, source)
    return sharding


def _mesh_of(mesh: Any) -> Mesh:
    """Return the mesh that a `DeviceMesh` is."""
    with no_modes():
        ranks = mesh.mesh  # computed anew each time
        return Mesh(tuple(ranks.shape), tuple(ranks.flatten().tolist()), tuple(mesh.mesh_dim_names or ()))


def _sharding_on(mesh: Mesh, placements: tuple[Any, ...], shape: tuple[int, ...], source: str) -> Sharding | None:
    """Return what `sharding_of` returns, without a cache."""
    found = tuple(_placement_of(placement, len(shape)) for placement in placements)
    known = tuple(placement for placement in found if placement is not None)
    return Sharding(mesh, known, tuple(shape), source) if len(known) == len(found) else None


def _placement_of(placement: Any, rank: int) -> Placement | None:
    """Return the placement that one of torch's is; None for an unknown class. `rank` is that of the tensor."""
    if placement.is_partial():
        return Placement("partial", reduce_op=placement.reduce_op)
    if placement.is_replicate():
        return Placement("replicate")
    dim = getattr(placement, "dim", None)  # `is_shard` is False for strided shards
    if dim is None:
        return None
    return Placement("shard", dim=dim % rank if rank else 0, split_factor=int(getattr(placement, "split_factor", 1)))


def _mask(local: torch.Tensor, placements: Any) -> torch.Tensor:
    """Set the rows to zero that belong to other ranks' parts of an embedding, as DTensor does before it adds them."""
    for placement in placements:
        mask = getattr(getattr(placement, "mask_buffer", None), "data", None)
        if mask is not None:
            local = local.masked_fill(mask if mask.dim() == local.dim() else mask.unsqueeze(-1), 0)
    return local
