"""Placeholders for values that can't be stored or restored, and the types of the JSON form."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ._dtypes import dtype_and_shape

Spec = Any  # a JSON value
Put = Callable[[torch.Tensor, str], Spec]  # (tensor, path) -> a new spec that refers to the tensor
Get = Callable[[Spec], Any]  # the inverse: the content of {"tensor": …} -> the tensor

MAX_DEPTH = 100  # levels of nesting; no model nests deeper
MAX_PARTS = 2**20  # parts of one value; only endless ones have more
MAX_EXACT_INT = 2**53  # larger integers lose digits in other JSON readers
UNKNOWN = "Filch does not know how to store it"  # the reason for skipping objects of unknown classes


@dataclass(frozen=True)
class Foreign:
    """An object whose class is not imported where the dump is restored, or can't be rebuilt.

    Attributes:
        type_name: `"module:QualifiedName"`.
        fields: the object's contents by name, key or index; also readable as attributes and items.
        kind: `"fields"` or `"state"` for an object, `"dict"`, `"list"`, `"tuple"` or `"set"` for a container.
        attributes: the instance attributes of a container.
    """

    type_name: str
    fields: dict[Any, Any]
    kind: str = "fields"
    attributes: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        # Through `__dict__`: while the attributes are not set, as in unpickling, `self.fields` would come back here.
        for contents in (self.__dict__.get("fields", {}), self.__dict__.get("attributes", {})):
            if name in contents:
                return contents[name]
        raise AttributeError(f"{self.__dict__.get('type_name')} was stored without {name!r}")

    def __getitem__(self, key: Any) -> Any:
        return self.fields[key]

    def __hash__(self) -> int:
        try:  # it may be a dictionary key
            return hash((self.type_name, *self.fields.items()))
        except TypeError:
            return hash((self.type_name, *self.fields))


@dataclass(frozen=True)
class Skipped:
    """A placeholder for a value that was not stored.

    Attributes:
        what: dtype and shape of a tensor, as `describe` writes them (`f32[2, 3]`), or a class name.
        reason: why it was not stored.
    """

    what: str
    reason: str


def type_name(cls: type) -> str:
    """Return the name of a class as dumps write it: `"module:QualifiedName"`."""
    # Not getattr: a metaclass can override it.
    module, name = (type.__getattribute__(cls, part) for part in ("__module__", "__qualname__"))
    return f"{module}:{name}"


def class_name(cls: type) -> str:
    """Return a class's name without its module and outer classes."""
    return type_name(cls).rpartition(":")[2].rpartition(".")[2]


def skipped(value: Any, reason: str) -> Spec:
    """Return the spec of a value that is not stored."""
    cls = type(value)
    return {"skipped": dtype_and_shape(value) if issubclass(cls, torch.Tensor) else type_name(cls), "reason": reason}


FACTORIES = {type_name(cls): cls for cls in (list, dict, set, tuple, int, float, str, bool)}  # of `defaultdict`
