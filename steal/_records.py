"""What captures and dumps have in common: a mapping from key to value, decoded when it is asked for."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ._key import Key
from .values._describe import describe
from .values._structure import Spec, decode, type_name


class Origin(NamedTuple):
    """Where in the run a record was taken.

    Attributes:
        path: the module's path inside the outermost module (`""` for that one itself); None for `steal_append`.
        call: which call of an outermost module it belongs to, counted over the capture; None outside of any.
        iteration: how many times the module at `path` ran before within that call.
        source: the line of the model's code that called it (`"model.py:12"`), where that was asked for.
    """

    path: str | None
    call: int | None
    iteration: int
    source: str | None = None


class Record(NamedTuple):
    """One captured value as it is held: its JSON form, and where it was taken."""

    spec: Spec
    origin: Origin


@functools.lru_cache(maxsize=1024)  # a model has few classes; of functions that aren't a class's own, none is held here
def _of_method(method: Any) -> tuple[str, ...]:
    return _parameters(method)[1:]


def _parameters(function: Any) -> tuple[str, ...]:
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # scripted modules and C functions have no signature
        return ()
    return tuple(marks.get(item.kind, "") + item.name for item in parameters)


@dataclass(frozen=True)
class ModuleInfo:
    """What is known of a stolen module.

    Attributes:
        type_name: its class, as `"module:QualifiedName"`.
        parameters: the parameters of its `forward` by name; `*name` and `**name` for the variadic ones.
    """

    type_name: str
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, module: nn.Module) -> "ModuleInfo":
        """What there is to know of `module`."""
        kind = type(module)
        plain = getattr(module.forward, "__func__", None) is kind.forward
        return cls(type_name(kind), _of_method(kind.forward) if plain else _parameters(module.forward))


@dataclass(frozen=True)
class Call:
    """One call of an outermost module.

    Attributes:
        index: which one, counted over the capture.
        name: the outermost module's name.
        keys: the keys recorded during it, in the order in which they were taken.
    """

    index: int
    name: str
    keys: tuple[Key, ...] = field(repr=False)


@dataclass
class Totals:
    """How much a capture took.

    Attributes:
        records: how many values.
        nbytes: the bytes of the tensors that were kept.
        shared: the bytes of those that were kept already, and so not once more.
        recomputed: calls during a backward pass, as activation checkpointing makes them; these are no new iterations,
            and nothing of them is kept.
        waited: seconds for which the model had to wait for the disk.
    """

    records: int = 0
    nbytes: int = 0
    shared: int = 0
    recomputed: int = 0
    waited: float = 0.0


class Taken(Mapping[Key, Record]):
    """The records of a capture that may still run, read when they are asked for.

    A record is many small objects; a million of them would be looked through by Python's garbage collector over and
    over. So a store keeps them in one piece each.
    """

    def __init__(self, rows: Callable[[int], Iterable[Sequence[Any]]]) -> None:
        """`rows` gives the records from a number on: name, iteration, kind, spec and what an `Origin` has."""
        self._rows = rows
        self._found: dict[Key, Record] = {}
        self._count = 0

    def _all(self) -> dict[Key, Record]:
        for name, iteration, kind, spec, *origin in self._rows(self._count):
            self._found[Key(name, iteration, kind)] = Record(spec, Origin(*origin))
            self._count += 1
        return self._found

    def __getitem__(self, key: Key) -> Record:
        return self._all()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class Holder(Protocol):
    """Whoever has the numbers: memory, or a file."""

    def get(self, reference: Spec) -> torch.Tensor:
        """The tensor that `reference` stands for."""
        ...

    def view(self, reference: Spec) -> torch.Tensor:
        """The same, in the holder's own memory if it has it there."""
        ...


class Records(Mapping[Any, Any]):
    """A read-only mapping from `Key` (or the equal tuple) to the nested value that was taken, in the order of the run.

    Attributes:
        records: the undecoded records by key.
        modules: what is known of each stolen module, by name.
        source: where the values are (a path, or `"memory"`), for messages.
        holder: who has the numbers.
        failed: the calls that raised, by the key that their output would have had: the exception in one line.
    """

    def __init__(
        self,
        records: Mapping[Key, Record],
        modules: dict[str, ModuleInfo],
        holder: Holder,
        source: str = "memory",
        *,
        failed: dict[Key, str] | None = None,
    ) -> None:
        self.records = records
        self.modules = modules
        self.source = source
        self.holder = holder
        self.failed = {} if failed is None else failed

    # A mapping's own `==` would compare tensors by truth value; whether two captures are the same is `compare.diff`'s.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  a mapping has none

    def __getitem__(self, key: Any) -> Any:
        return decode(self.records[key].spec, self.holder.get)

    def borrow(self, key: Any) -> Any:
        """The value of a key, to be read alone: its tensors may be the holder's own, one for all keys that have it."""
        return decode(self.records[key].spec, self.holder.view)

    def __contains__(self, key: object) -> bool:
        return key in self.records  # Mapping's own would read the value

    def __iter__(self) -> Iterator[Key]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} values in {self.source}>"

    def describe(self) -> str:
        """One line a record: its key and what it holds."""
        return "\n".join(f"{key} -- {describe(value)}" for key, value in self.items())

    def calls(self) -> list[Call]:
        """The calls of outermost modules, in order."""
        found: dict[int, list[Key]] = {}
        for key, record in self.records.items():
            if record.origin.call is not None:
                found.setdefault(record.origin.call, []).append(key)
        return [Call(index, _outermost(self, keys), tuple(keys)) for index, keys in found.items()]


def _outermost(held: Records, keys: list[Key]) -> str:
    of_modules = [key for key in keys if key.name in held.modules] or keys  # not of parameters, nor of ATen calls
    return next((key.name for key in of_modules if held.records[key].origin.path == ""), of_modules[0].name)
