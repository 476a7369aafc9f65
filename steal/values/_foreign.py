"""What stands for a value that can't be given back as it was, and the words that dumps are written in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ._dtypes import short

Spec = Any  # what `json` reads and writes
Put = Callable[[torch.Tensor, str], Spec]  # (tensor, its path) -> the spec that stands for it, a new one each time
Get = Callable[[Spec], Any]  # the inverse: the inside of {"tensor": …} -> tensor

DEEPEST = 100  # deeper nesting than any model's
MOST = 2**20  # more parts than any value has that ends


@dataclass(frozen=True)
class Foreign:
    """Stands for an object whose class is not imported where the dump is restored (or can't be rebuilt).

    Attributes:
        type_name: `"module:QualifiedName"`.
        fields: what the object held, by name, key or index; also readable as attributes and items.
        kind: what it was: `"fields"` or `"state"` for an object, `"dict"`, `"list"`, `"tuple"` or `"set"`.
        attributes: what a list or another container had besides its items.
    """

    type_name: str
    fields: dict[Any, Any]
    kind: str = "fields"
    attributes: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        for held in (self.__dict__.get("fields", {}), self.__dict__.get("attributes", {})):
            if name in held:
                return held[name]
        raise AttributeError(f"{self.__dict__.get('type_name')} was stored without {name!r}")

    def __getitem__(self, key: Any) -> Any:
        return self.fields[key]

    def __hash__(self) -> int:
        try:  # the key of a dictionary may be foreign
            return hash((self.type_name, *self.fields.items()))
        except TypeError:
            return hash((self.type_name, *self.fields))


@dataclass(frozen=True)
class Skipped:
    """Stands for a value that was not stored.

    Attributes:
        what: what it was, as `describe` writes it (`f32[2, 3]`) or a class name.
        reason: why it was not stored.
    """

    what: str
    reason: str


def type_name(cls: type) -> str:
    """`"module:QualifiedName"`, the form in which dumps name classes."""
    module, name = (type.__getattribute__(cls, part) for part in ("__module__", "__qualname__"))  # past its metaclass
    return f"{module}:{name}"


def skipped(value: Any, reason: str) -> Spec:
    """The spec of a value that is not stored: what it is, and the reason."""
    cls = type(value)
    return {"skipped": short(value) if issubclass(cls, torch.Tensor) else type_name(cls), "reason": reason}


FACTORIES = {type_name(cls): cls for cls in (list, dict, set, tuple, int, float, str, bool)}  # of a defaultdict
