"""The dumps of several processes as one mapping, in which each distributed tensor is one value."""

import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._errors import DumpError, FilchError
from .._key import Key
from .._records import ModuleInfo, Record, Records
from ..dump._dump import Dump, restore
from ..values._decode import decode
from ..values._encode import encode
from ..values._foreign import Spec, skipped
from ..values._sharding import LocalShard, Mesh, Placement, Sharding, local_part
from ._join import is_same_bits, join
from ._layouts import Layouts

# The submodule that a wrapper of torch adds to the names of all modules below it.
_WRAPPERS = {
    "torch.nn.parallel.distributed:DistributedDataParallel": "module",
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel": "_fsdp_wrapped_module",
    "torch._dynamo.eval_frame:OptimizedModule": "_orig_mod",
}
_GRADIENT_OF = {"GI": "I", "GO": "O"}
UNKNOWN_LAYOUT = "its parts differ between ranks, and how they belong together is not known"


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


class Part(NamedTuple):
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

    parts: list[Part]
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
        part = Part(ranks, result.tensor, pieces)
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
        """Return a problem as it is: a part's index is its rank unless parts were put together before."""
        names = [part.ranks[0] for part in self.parts]
        return problem if names == list(range(len(names))) else f"{problem} (of the groups {names})"


class AssembledRecords(Records):
    """The dumps of several processes as one mapping from key to value (see `assemble`).

    Attributes:
        dumps: by rank.
        layouts: the declared and learned layouts.
    """

    def __init__(self, dumps: Mapping[int, Dump], layouts: Layouts) -> None:
        self.dumps, self.layouts = dumps, layouts
        self._keys = {rank: _unwrapped_keys(dump) for rank, dump in dumps.items()}
        records: dict[Key, Record] = {}
        modules: dict[str, ModuleInfo] = {}
        failed: dict[Key, str] = {}
        for rank, dump in dumps.items():
            wrappers = _wrapper_names(dump.modules)
            for key, own in self._keys[rank].items():
                if key.kind != "GP":
                    records.setdefault(key, dump.records[own])
            modules = {_unwrapped(name, wrappers): info for name, info in dump.modules.items()} | modules
            failed = {
                key._replace(name=_unwrapped(key.name, wrappers)): text for key, text in dump.failed.items()
            } | failed
        first = next(iter(dumps.values()))
        sources = [dump.source for dump in dumps.values()]
        super().__init__(records, modules, first.tensor_source, failed, f"{sources[0]} and {len(sources) - 1} more")

    def __getitem__(self, key: Any) -> Any:
        distributed = self.distributed(key)
        return self.rebuild(key, {path: self.resolve(Key(*key), path, item) for path, item in distributed.items()})

    def borrow(self, key: Any) -> Any:
        """See `Records.borrow`."""
        return self[key]

    def keys_of(self, rank: int) -> Iterable[Key]:
        """Return the keys that a rank has, in order of its run."""
        return self._keys[rank].keys()

    def local_values(self, key: Any) -> dict[int, Any]:
        """Return the value of each rank that has the key."""
        own = Key(*key)
        return {rank: dump[self._keys[rank][own]] for rank, dump in self.dumps.items() if own in self._keys[rank]}

    def distributed(self, key: Any, ranks: Collection[int] | None = None) -> dict[str, Distributed]:
        """Return the tensors of a record by path, put together as far as their layout is recorded.

        Args:
            key: of the record.
            ranks: the ranks whose values count; all, if None.
        """
        if key not in self.records:
            raise KeyError(f"there is no record {key!r}")
        own = Key(*key)
        by_path: dict[str, dict[int, torch.Tensor]] = {}
        for rank, value in self.local_values(own).items():
            for path, tensor in local_tensors(value).items() if ranks is None or rank in ranks else ():
                by_path.setdefault(path, {})[rank] = tensor
        if own.kind in _GRADIENT_OF:
            self._add_layouts(own, by_path)
        return {path: _join_recorded(held) for path, held in by_path.items()}

    def resolve(self, key: Key, path: str, item: Distributed) -> Distributed:
        """Put the remaining parts of a tensor together, if their layout was declared or learned, or all are equal."""
        if len(item.parts) == 1:
            return item
        return self.declared(key, item) or self.learned(key, path, item) or joined_if_equal(item) or item

    def declared(self, key: Key, item: Distributed) -> Distributed | None:
        """Return a tensor put together as declared for its key; None if nothing was declared for it.

        Raises:
            FilchError: the mesh has another number of ranks.
        """
        by_name = self.layouts.declared(key)
        dims = min(tensor.dim() for tensor in item.tensors)
        if by_name is None or any(placement.dim >= dims for placement in by_name.values() if placement.kind == "shard"):
            return None
        joined = {name for dump in item.layout.split(";") for name in self.layouts.mesh if f"{name}=" in dump}
        sizes = {name: size for name, size in self.layouts.mesh.items() if name not in joined}
        if prod(sizes.values()) != len(item.parts):
            raise FilchError(f"the mesh {dict(self.layouts.mesh)} does not have {len(item.parts)} ranks, as {key} does")
        placements = [by_name.get(name, Placement("replicate")) for name in sizes]
        return item.joined(layout_of(item.tensors, placements, tuple(sizes.values())), "declared")

    def learned(self, key: Key, path: str, item: Distributed) -> Distributed | None:
        """Return a tensor put together as in an earlier run; None if that is not known, or its shape has changed."""
        text = self.layouts.learned.get(key.place(path))
        if text is None:
            return None
        shape, placements, divisor = parse_learned(text)
        dims = min(tensor.dim() for tensor in item.tensors)
        if prod(shape) != len(item.parts) or any(one.kind == "shard" and one.dim >= dims for one in placements):
            return None
        return item.joined(layout_of(item.tensors, placements, shape), "learned", divisor)

    def learned_divisor(self, key: Key, path: str) -> int | None:
        """Return the divisor of a tensor in an earlier run; None if it is not known."""
        text = self.layouts.learned.get(key.place(path))
        return None if text is None else parse_learned(text)[2]

    def rebuild(self, key: Any, items: Mapping[str, Distributed]) -> Any:
        """Return the value of a key with the tensors at these paths; one whose layout is not known is skipped."""
        rank = min(self.local_values(key))
        found: list[torch.Tensor] = []

        def put(tensor: torch.Tensor, path: str) -> Spec:
            item = items[path]
            if len(item.parts) > 1:
                return skipped(tensor, UNKNOWN_LAYOUT)
            found.append(item.parts[0].tensor)
            return {"tensor": len(found) - 1}

        value = self.dumps[rank][self._keys[rank][Key(*key)]]
        return decode(encode(value, put, exact=False, local=False), found.__getitem__)

    def _add_layouts(self, key: Key, gradients: dict[str, dict[int, torch.Tensor]]) -> None:
        """Give plain gradients the layouts of the tensors with respect to which they are, if these are recorded."""
        of = key._replace(kind=_GRADIENT_OF[key.kind])
        values = self.local_values(of) if of in self.records else {}
        for rank, value in values.items():
            for path, tensor in local_tensors(value).items():
                gradient = gradients.get(path, {}).get(rank)
                if gradient is None or isinstance(gradient, LocalShard) or not isinstance(tensor, LocalShard):
                    continue
                if tensor.sharding.has_part(rank, gradient.shape):
                    gradients[path][rank] = LocalShard.of(gradient, tensor.sharding.reduced)


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


def local_tensors(value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a value by path, as `tensors` does, with the layouts of distributed ones."""
    found: dict[str, torch.Tensor] = {}

    def put(tensor: torch.Tensor, path: str) -> Spec:
        found[path] = tensor
        return {"tensor": None}

    encode(value, put, exact=False, local=False)
    return found


def _join_recorded(held: dict[int, torch.Tensor]) -> Distributed:
    """Put the tensors of ranks together that are parts of the same distributed tensors."""
    result = Distributed([])
    layouts: dict[str, None] = {}
    rest = dict(held)
    while rest:
        rank = min(rest)
        tensor = rest.pop(rank)
        if not isinstance(tensor, LocalShard):
            result.parts.append(Part((rank,), tensor, (Piece(rank, tensor, _whole),)))
            continue
        sharding = tensor.sharding
        others = {other: rest.pop(other) for other in sharding.mesh.ranks if other in rest}
        _check_agreement(sharding, others, result)
        joined = join({rank: tensor, **others}, sharding)
        pieces = (
            Piece(own, local_part(part)[0], _taking(_whole, sharding, own, 1))
            for own, part in {rank: tensor, **others}.items()
        )
        result.parts.append(Part((rank, *others), joined.tensor, tuple(pieces)))
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
            along = [place[dim] for place in grid.coordinates if not any(place[:dim] + place[dim + 1 :])]
            step = prod(sizes[dim + 1 :])
            own = tuple(_size(tensors[index * step], placement.dim) for index in along)
            shape[placement.dim] = sum(own)
            if dims.count(placement.dim) == 1 and not placement.zigzag:
                found[dim] = _with_sizes(placement, own)
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
    return tensor.shape[dim] if dim < tensor.dim() else 0


def assemble(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, layouts: Layouts | None = None
) -> AssembledRecords:
    """Open the dumps of all processes of one run, as one mapping from key to global value.

    DTensors, and plain tensors that one was made of or converted to, are put together by their recorded layouts. A
    plain tensor that is equal on all ranks, bit for bit, is taken for replicated. Other ones are put together as
    `layouts` tells; without, they are `Skipped`. No process group is needed. Values are put together when they are
    accessed. Gradients that a rank has accumulated before those of all ranks are reduced (`"GP"`) are left out; the
    final ones (`"GF"`) are there.

    Args:
        paths: the dumps, or a pattern such as `"run.*.onnx"`.
        layouts: the layouts of plain tensors.

    Raises:
        DumpError: a dump can't be read, or two are of the same rank.
    """
    dumps: dict[int, Dump] = {}
    for index, path in enumerate(_expanded(paths)):
        dump = restore(path)
        rank = int(dump.environment.get("rank", index))
        if rank in dumps:
            raise DumpError(f"{dump.source!r} and {dumps[rank].source!r} are both of rank {rank}")
        dumps[rank] = dump
    return AssembledRecords(dict(sorted(dumps.items())), layouts or Layouts())


def _expanded(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of the dumps; a pattern is expanded."""
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [
        name
        for path in (os.fspath(item) for item in listed)
        for name in ([path] if Path(path).exists() else sorted(glob.glob(path)) or [path])  # noqa: PTH207  a whole path
    ]
    if not found:
        raise DumpError("there is no dump to put together")
    return found


def parse_learned(text: str) -> tuple[tuple[int, ...], list[Placement], int]:
    """Return the mesh, the placements and the divisor of a learned layout, such as `"2x2: S(0), R / 2"`.

    Raises:
        FilchError: the text is not of this form.
    """
    match = re.fullmatch(r"(\d+(?:x\d+)*): (.+?)(?: / (\d+))?", text)
    try:
        if match is not None:
            mesh, names, divisor = match.groups()
            shape = tuple(map(int, mesh.split("x")))
            placements = [Placement.parse(name) for name in re.findall(r"[A-Z](?:\([^)]*\))?", names)]
            if len(placements) == len(shape):
                return shape, placements, int(divisor or 1)
    except ValueError:
        pass
    raise FilchError(f"{text!r} is not a layout like '2: S(0)'")


def _wrapper_names(modules: Mapping[str, ModuleInfo]) -> dict[str, str]:
    """Return the names of wrapped modules by the name of the wrapper."""
    steps = ((name, _WRAPPERS.get(info.type_name)) for name, info in modules.items())
    return {name: f"{name}.{step}" if name else step for name, step in steps if step is not None}


def _unwrapped(name: str, wrappers: Mapping[str, str]) -> str:
    """Return a name without the submodules that wrappers add."""
    for wrapper, inner in sorted(wrappers.items(), key=lambda pair: -len(pair[1])):
        if name == inner or name.startswith((f"{inner}.", f"{inner}/")):
            name = f"{wrapper}.{name[len(inner) :].removeprefix('.')}".strip(".")
    return name


def _unwrapped_keys(dump: Dump) -> dict[Key, Key]:
    """Return the keys of a dump by their names without wrappers; a wrapper's own records are left out."""
    wrappers = _wrapper_names(dump.modules)
    own = {key: key._replace(name=_unwrapped(key.name, wrappers)) for key in dump.records}
    taken = {new for key, new in own.items() if key.name not in wrappers}
    return {new: key for key, new in own.items() if key.name not in wrappers or new not in taken}
