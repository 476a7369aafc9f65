"""The common part of captures and dumps: a mapping from key to value, decoded on access."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ._key import Key
from ._tf32 import Product, tf32_products
from .text._markup import for_html, html_table
from .values._decode import decode
from .values._describe import describe
from .values._foreign import Spec, type_name
from .values._raw import no_modes_or_grad

_SHOWN = 50  # records in a notebook


class Origin(NamedTuple):
    """The position of a record in the run.

    Attributes:
        path: the module's path in the outermost module (`""` for that module itself); None for `steal_append`.
        call: the index of the outermost module's call, counted over the capture; None outside of any.
        iteration: how many times the module at `path` was called before within that call.
        source: the line of the model's code that made the call (`"model.py:12"`), if recorded.
    """

    path: str | None
    call: int | None
    iteration: int
    source: str | None = None


class Record(NamedTuple):
    """A captured value as stored: its JSON form and its position in the run."""

    spec: Spec
    origin: Origin


@functools.lru_cache(maxsize=1024)  # only methods of classes, of which a model has few; other functions aren't kept
def _method_parameters(method: Any) -> tuple[str, ...]:
    return _parameters(method)[1:]  # without `self`


def _parameters(function: Any) -> tuple[str, ...]:
    """Return the parameter names of a function, with `*name` and `**name` for the variadic ones."""
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # scripted modules and C functions have no signature
        return ()
    return tuple(marks.get(item.kind, "") + item.name for item in parameters)


@dataclass(frozen=True)
class ModuleInfo:
    """The class and parameter names of a captured module.

    Attributes:
        type_name: its class as `"module:QualifiedName"`.
        parameters: the parameter names of its `forward`, with `*name` and `**name` for the variadic ones.
        tf32: the products whose float32 factors the GPU may round to TF32 that its first weight is on.
    """

    type_name: str
    parameters: tuple[str, ...] = ()
    tf32: frozenset[Product] = frozenset()

    @classmethod
    def of(cls, module: nn.Module) -> "ModuleInfo":
        """Return the information about `module`."""
        kind = type(module)
        is_method = getattr(module.forward, "__func__", None) is kind.forward  # else replaced on the instance
        parameters = _method_parameters(kind.forward) if is_method else _parameters(module.forward)
        weight = next(module.parameters(), None)
        with no_modes_or_grad():
            device = None if weight is None else weight.device
        return cls(type_name(kind), parameters, tf32_products(device))


@dataclass(frozen=True)
class Call:
    """A call of an outermost module.

    Attributes:
        index: its index in the capture.
        name: the outermost module's name.
        keys: the keys recorded during the call, in order.
    """

    index: int
    name: str
    keys: tuple[Key, ...] = field(repr=False)


@dataclass
class Totals:
    """The amount of data in a capture.

    Attributes:
        records: the number of recorded values.
        nbytes: the bytes of stored tensors.
        shared: the bytes of tensors that were stored already, and so not again.
        recomputed: the number of calls during a backward pass, as made by activation checkpointing; these are not
            recorded and do not count as iterations.
        waited: seconds for which the model waited for the disk.
    """

    records: int = 0
    nbytes: int = 0
    shared: int = 0
    recomputed: int = 0
    waited: float = 0.0


class LazyRecords(Mapping[Key, Record]):
    """The records of a running capture, read on access.

    Python's garbage collector would scan the many small objects of a million records again and again. So a store keeps
    each record in one object.
    """

    def __init__(self, rows: Callable[[int], Iterable[Sequence[Any]]]) -> None:
        """Read from `rows`, which returns all rows from an index on: name, iteration, kind, spec, and `Origin`."""
        self._read_rows = rows
        self._records: dict[Key, Record] = {}
        self._count = 0

    def _all(self) -> dict[Key, Record]:
        for name, iteration, kind, spec, *origin in self._read_rows(self._count):
            self._records[Key(name, iteration, kind)] = Record(spec, Origin(*origin))
            self._count += 1
        return self._records

    def __getitem__(self, key: Key) -> Record:
        return self._all()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class TensorSource(Protocol):
    """Provides the tensors of records, from memory or a file."""

    def get(self, reference: Spec) -> torch.Tensor:
        """Return the tensor of a reference in a spec."""
        ...

    def view(self, reference: Spec) -> torch.Tensor:
        """Return the tensor without a copy, if it is in memory."""
        ...


class Records(Mapping[Any, Any]):
    """A read-only mapping from `Key` (or the equal tuple) to the recorded nested value, in the order of the run.

    Attributes:
        records: the undecoded records by key.
        modules: the captured modules, by name.
        source: where the values are stored (a path, or `"memory"`), for messages.
        tensor_source: provides the tensors.
        failed: the exceptions of calls that raised, in one line, by the key that the output would have had.
    """

    def __init__(
        self,
        records: Mapping[Key, Record],
        modules: dict[str, ModuleInfo],
        tensor_source: TensorSource,
        failed: Mapping[Key, str],
        source: str = "memory",
    ) -> None:
        self.records = records
        self.modules = modules
        self.source = source
        self.tensor_source = tensor_source
        self.failed = failed

    # Mapping's `==` would use the truth value of tensors; use `compare.diff` to compare two captures.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  a mapping has none

    def __getitem__(self, key: Any) -> Any:
        return decode(self.records[key].spec, self.tensor_source.get)

    def arguments_key(self, name: str, iteration: int) -> Key:
        """Return the key of the arguments that the caller of a module gave, before forward pre-hooks changed them."""
        given = Key(name, iteration, "A")
        return given if given in self.records else Key(name, iteration, "I")

    def borrow(self, key: Any) -> Any:
        """Return a value for reading only: its tensors may be shared with other keys and the storage."""
        return decode(self.records[key].spec, self.tensor_source.view)

    def __contains__(self, key: object) -> bool:
        return key in self.records  # Mapping's own would decode the value

    def __iter__(self) -> Iterator[Key]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} values in {self.source}>"

    def _repr_html_(self) -> str:
        """Return the first records as a table, for a notebook."""
        rows = [(key.label, describe(self[key])) for key in islice(self, _SHOWN)]
        rest = f"<p>and {len(self) - _SHOWN} more values</p>" if len(self) > _SHOWN else ""
        return f"<p>{for_html(repr(self))}</p>{html_table(('value', 'is'), rows)}{rest}"

    def describe(self) -> str:
        """Return one line per record: its key and a description of its value."""
        return "\n".join(f"{key} -- {describe(value)}" for key, value in self.items())

    def calls(self) -> list[Call]:
        """Return the calls of outermost modules, in order."""
        keys_by_call: dict[int, list[Key]] = {}
        for key, record in self.records.items():
            if record.origin.call is not None:
                keys_by_call.setdefault(record.origin.call, []).append(key)
        return [Call(index, _outermost(self, keys), tuple(keys)) for index, keys in keys_by_call.items()]


def _outermost(records: Records, keys: list[Key]) -> str:
    """Return the name of the outermost module of the call during which these keys were recorded.

    If it has no record itself, this is the name of the first module that has one.
    """
    of_modules = [key for key in keys if key.name in records.modules] or keys  # not of parameters or ATen calls
    return next((key.name for key in of_modules if records.records[key].origin.path == ""), of_modules[0].name)
