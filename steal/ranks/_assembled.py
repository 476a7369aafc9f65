"""The dumps of several processes as one mapping, in which each distributed tensor is one value."""

import glob
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .._errors import DumpError
from .._key import Key
from .._records import ModuleInfo, Record, Records
from ..dump._dump import Dump, restore
from ..values._decode import decode
from ..values._encode import encode
from ..values._foreign import Spec, skipped
from ..values._sharding import LocalShard
from ._distributed import Distributed, join_recorded, joined_if_equal
from ._layouts import Layouts
from ._module_names import unwrapped, unwrapped_keys, wrapper_names

_GRADIENT_OF = {"GI": "I", "GO": "O"}  # the kind of the value, by that of its gradient
_UNKNOWN_LAYOUT = "its parts differ between ranks, and how they belong together is not known"


class _FirstRecords(Mapping[Key, Record]):
    """The records of the first rank that has each key, read on access; those of `"GP"` are left out (see `assemble`).

    Args:
        dumps: by rank.
        keys: of each rank: the key in its dump for each key.
    """

    def __init__(self, dumps: Mapping[int, Dump], keys: Mapping[int, Mapping[Key, Key]]) -> None:
        self._dumps, self._keys = dumps, keys
        self._order = dict.fromkeys(key for known in keys.values() for key in known if key.kind != "GP")

    def __getitem__(self, key: Any) -> Record:
        if key not in self._order:
            raise KeyError(key)
        rank = next(rank for rank, known in self._keys.items() if key in known)
        return self._dumps[rank].records[self._keys[rank][key]]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


class AssembledRecords(Records):
    """The dumps of several processes as one mapping from key to value (see `assemble`).

    Attributes:
        dumps: by rank.
        layouts: the declared and learned layouts.
    """

    def __init__(self, dumps: Mapping[int, Dump], layouts: Layouts) -> None:
        self.dumps, self.layouts = dumps, layouts
        self._keys = {rank: unwrapped_keys(dump) for rank, dump in dumps.items()}
        modules: dict[str, ModuleInfo] = {}
        failed: dict[Key, str] = {}
        for dump in dumps.values():
            wrappers = wrapper_names(dump.modules)
            modules = {unwrapped(name, wrappers): info for name, info in dump.modules.items()} | modules
            failed = {
                key._replace(name=unwrapped(key.name, wrappers)): text for key, text in dump.failed.items()
            } | failed
        first = next(iter(dumps.values()))
        sources = [dump.source for dump in dumps.values()]
        super().__init__(
            _FirstRecords(dumps, self._keys),
            modules,
            first.tensor_source,
            failed,
            f"{sources[0]} and {len(sources) - 1} more",
        )

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
        wanted = Key(*key)
        return {rank: dump[self._keys[rank][wanted]] for rank, dump in self.dumps.items() if wanted in self._keys[rank]}

    def distributed(self, key: Any, ranks: Collection[int] | None = None) -> dict[str, Distributed]:
        """Return the tensors of a record by path, put together as far as their layout is recorded.

        Args:
            key: of the record.
            ranks: the ranks whose values count; all, if None.
        """
        if key not in self.records:
            raise KeyError(f"there is no record {key!r}")
        wanted = Key(*key)
        by_path: dict[str, dict[int, torch.Tensor]] = {}
        for rank, value in self.local_values(wanted).items():
            for path, tensor in _local_tensors(value).items() if ranks is None or rank in ranks else ():
                by_path.setdefault(path, {})[rank] = tensor
        if wanted.kind in _GRADIENT_OF:
            self._add_layouts(wanted, by_path)
        return {path: join_recorded(held) for path, held in by_path.items()}

    def resolve(self, key: Key, path: str, item: Distributed) -> Distributed:
        """Put the remaining parts of a tensor together, if their layout was declared or learned, or all are equal."""
        if len(item.parts) == 1:
            return item
        layouts = self.layouts
        known = layouts.join_declared(key, item) or layouts.join_learned(key, path, item)
        return known or joined_if_equal(item) or item

    def rebuild(self, key: Any, items: Mapping[str, Distributed]) -> Any:
        """Return the value of a key, nested as on its first rank, with the tensors at these paths.

        A tensor that is still in several parts, as its layout is not known, is skipped.
        """
        rank = min(self.local_values(key))
        found: list[torch.Tensor] = []

        def put(tensor: torch.Tensor, path: str) -> Spec:
            item = items[path]
            if len(item.parts) > 1:
                return skipped(tensor, _UNKNOWN_LAYOUT)
            found.append(item.parts[0].tensor)
            return {"tensor": len(found) - 1}

        value = self.dumps[rank][self._keys[rank][Key(*key)]]
        return decode(encode(value, put, exact=False, local=False), found.__getitem__)

    def _add_layouts(self, key: Key, gradients: dict[str, dict[int, torch.Tensor]]) -> None:
        """Give plain gradients the layouts of the tensors with respect to which they are, if these are recorded."""
        of = key._replace(kind=_GRADIENT_OF[key.kind])
        values = self.local_values(of) if of in self.records else {}
        for rank, value in values.items():
            for path, tensor in _local_tensors(value).items():
                gradient = gradients.get(path, {}).get(rank)
                if gradient is None or isinstance(gradient, LocalShard) or not isinstance(tensor, LocalShard):
                    continue
                if tensor.sharding.has_part(rank, gradient.shape):
                    gradients[path][rank] = LocalShard.of(gradient, tensor.sharding.reduced)


def _local_tensors(value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a value by path, as `tensors` does, with the layouts of distributed ones."""
    found: dict[str, torch.Tensor] = {}

    def put(tensor: torch.Tensor, path: str) -> Spec:
        found[path] = tensor
        return {"tensor": None}

    encode(value, put, exact=False, local=False)
    return found


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
    """Return the paths of the dumps; a pattern is expanded, or kept if it matches nothing: `restore` refuses it."""
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [
        name
        for path in (os.fspath(item) for item in listed)
        for name in ([path] if Path(path).exists() else sorted(glob.glob(path)) or [path])  # noqa: PTH207  a whole path
    ]
    if not found:
        raise DumpError("there is no dump to put together")
    return found
