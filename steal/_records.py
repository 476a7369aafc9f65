"""What captures and dumps have in common: a mapping from key to value, decoded when it is asked for."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from ._describe import describe
from ._key import Key
from ._structure import Spec, decode, type_name


@dataclass(frozen=True)
class Origin:
    """Where in the run a record was taken.

    Attributes:
        path: the module's path inside the outermost module (`""` for that one itself); None for `steal_append`.
        call: which call of an outermost module it belongs to, counted over the capture; None outside of any.
        iteration: how many times the module at `path` ran before within that call.
    """

    path: str | None
    call: int | None
    iteration: int


@dataclass(frozen=True)
class Record:
    """One captured value as it is held: its JSON form, and where it was taken."""

    spec: Spec
    origin: Origin


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
        marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        try:
            parameters = inspect.signature(module.forward).parameters.values()
        except (TypeError, ValueError):  # scripted modules and C functions have no signature
            return cls(type_name(type(module)))
        return cls(type_name(type(module)), tuple(marks.get(item.kind, "") + item.name for item in parameters))


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


class Holder(Protocol):
    """Whoever has the numbers: memory, or a file."""

    def get(self, reference: Spec) -> torch.Tensor:
        """The tensor that `reference` stands for."""


class Records(Mapping[Any, Any]):
    """A read-only mapping from `Key` (or the equal tuple) to the nested value that was taken, in the order of the run.

    Attributes:
        records: the undecoded records by key.
        modules: what is known of each stolen module, by name.
        source: where the values are (a path, or `"memory"`), for messages.
        holder: who has the numbers.
    """

    def __init__(
        self, records: dict[Key, Record], modules: dict[str, ModuleInfo], holder: Holder, source: str = "memory"
    ) -> None:
        self.records = records
        self.modules = modules
        self.source = source
        self.holder = holder

    # A mapping's own `==` would compare tensors by truth value; whether two captures are the same is `compare.diff`'s.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, key: Any) -> Any:
        return decode(self.records[key].spec, self.holder.get)

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
        return [Call(index, _outermost(self.records, keys), tuple(keys)) for index, keys in found.items()]


def _outermost(records: Mapping[Key, Record], keys: list[Key]) -> str:
    return next((key.name for key in keys if records[key].origin.path == ""), keys[0].name)
