"""Any nesting of Python values as JSON plus a list of tensors, and back.

The JSON form (`Spec`) is plain for what JSON can say (`null`, booleans, strings, small integers, finite floats) and an
object with one tag otherwise, e.g. `{"tuple": [...]}` or `{"tensor": 3}`. Tensors are handed out to, and asked back
from, whoever holds them. Decoding runs no code of the file's choosing: a class is only ever looked up among those that
the process has imported already, and is filled without calling its constructor.
"""

import dataclasses
import enum
import math
import reprlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ._dtypes import dtype_of, short
from ._errors import DAMAGE, DumpError

Spec = Any  # what `json` reads and writes
Put = Callable[[torch.Tensor, str], Spec]  # (tensor, its path) -> the spec that stands for it
Get = Callable[[Spec], Any]  # the inverse: the inside of {"tensor": …} -> tensor

_DEEPEST = 100  # deeper nesting than any model's
_EXACT = 2**53  # integers beyond lose digits in other JSON readers
_SCALARS = (bool, int, float, complex, str, bytes)


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Stands for an object whose class is not imported where the dump is restored (or can't be rebuilt).

    Attributes:
        type_name: `"module:QualifiedName"`.
        fields: what the object held, by name; also readable as attributes.
    """

    type_name: str
    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(f"{self.__dict__.get('type_name')} was stored without {name!r}") from None


@dataclasses.dataclass(frozen=True)
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
    return f"{cls.__module__}:{cls.__qualname__}"


def encode(value: Any, put: Put, path: str = "", above: tuple[int, ...] = ()) -> Spec:
    """Describe `value` as JSON; every tensor in it goes through `put`.

    Args:
        value: what a module took or gave.
        put: called with each tensor and its path (`[0].last_hidden_state`); its result stands for the tensor.
        path: where `value` stands.
        above: the `id` of each container that `value` is in.
    """
    if isinstance(value, torch.Tensor):
        return put(value, path)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return _ndarray(value, put, path)
    if value is None or (isinstance(value, _SCALARS) and not isinstance(value, enum.Enum)):
        return _scalar(value)
    if len(above) > _DEEPEST:
        return skipped(value, "it is nested too deeply")
    if id(value) in above:
        return skipped(value, "it contains itself")
    try:
        tag, steps = children(value) or (None, ())
        listed = list(steps)
    except Exception as error:  # noqa: BLE001  a class of the user's that won't be read is no reason to end the run
        return skipped(value, f"reading it raised {type(error).__name__}")
    if tag is not None:
        inside = (*above, id(value))
        items = [
            [_label(key, index), encode(child, put, path + step, inside)]
            for index, (step, key, child) in enumerate(listed)
        ]
        if type(value) in (tuple, list, dict):
            return {tag: items}
        return {tag: items, "class": value.type_name if isinstance(value, Foreign) else type_name(type(value))}
    return _constant(value)


def children(value: Any) -> tuple[str, Iterator[tuple[str, Any, Any]]] | None:
    """How a container is taken apart: its tag, and (path step, key, child) for each child; None for no container."""
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, Foreign):
        return "fields", ((f".{name}", name, item) for name, item in value.fields.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "fields", ((f".{name}", name, item) for name, item in zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        tag = "tuple" if isinstance(value, tuple) else "list"
        return tag, ((f"[{index}]", index, item) for index, item in enumerate(value))
    if isinstance(value, Mapping):  # ModelOutput is one, with None fields left out, as everybody reads it
        named = dataclasses.is_dataclass(value)
        return "fields" if named else "dict", (
            (f".{key}" if named else f"[{key!r}]", key, item) for key, item in list(value.items())
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return "fields", ((f".{name}", name, getattr(value, name)) for name in names)
    if _is_state_holder(type(value)):
        return "state", ((f".{name}", name, item) for name, item in list(vars(value).items()))
    return None


def _is_state_holder(cls: type) -> bool:
    """Whether a class is nothing but its attributes, which are enough to rebuild it: the caches of transformers."""
    return any(base.__module__ == "transformers.cache_utils" for base in cls.__mro__[:-1])


def _label(key: Any, index: int) -> Spec:
    if type(key) in (int, str):
        return _scalar(key)
    if isinstance(key, np.generic):
        key = key.item()  # equal, and found by the same look-ups
    reason = f"it is key {index} of a dictionary"  # with its place, as two keys must not become one
    spec = encode(key, lambda tensor, _: skipped(tensor, reason), above=(0,) * (_DEEPEST - 2))
    return skipped(key, reason) if isinstance(spec, dict) and "skipped" in spec else spec


def _scalar(value: Any) -> Spec:
    plain = next((base for base in _SCALARS if isinstance(value, base)), None)
    if value is None or plain in (bool, str):
        return value if plain is None else plain(value)
    if plain is int:
        return int(value) if abs(value) <= _EXACT else {"int": hex(value)}
    if plain is float:
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if plain is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    return {"bytes": value.hex()}


def _ndarray(value: Any, put: Put, path: str) -> Spec:
    try:
        held = put(torch.from_numpy(np.array(value)), path)
    except (TypeError, ValueError):  # ValueError: the other byte order
        return skipped(value, f"torch has no dtype {value.dtype}")
    return {"numpy": held, "scalar": True} if isinstance(value, np.generic) else {"numpy": held}


def _constant(value: Any) -> Spec:
    """What is neither container nor number, where it has a name to be found by again."""
    if isinstance(value, torch.Size):
        return {"size": [int(dim) for dim in value]}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, enum.Enum) and value.name in type(value).__members__:  # flags may be several at once
        return {"enum": value.name, "class": type_name(type(value))}
    if isinstance(value, type) and _is_state_holder(value):  # an empty cache knows the class of its layers to come
        return {"type": type_name(value)}
    if isinstance(value, slice | range):
        parts = [value.start, value.stop, value.step]
        if all(part is None or isinstance(part, int) for part in parts):
            return {type(value).__name__: [_scalar(part) for part in parts]}
    return skipped(value, "Filch does not know how to store it")


def skipped(value: Any, reason: str) -> Spec:
    """The spec of a value that is not stored: what it is, and the reason."""
    what = short(value) if isinstance(value, torch.Tensor) else type_name(type(value))
    return {"skipped": what, "reason": reason}


def decode(spec: Spec, get: Get) -> Any:
    """The value that `encode` described.

    Args:
        spec: JSON, from a file that is not trusted.
        get: called with what `put` returned for a tensor, under its tag `"tensor"`.

    Raises:
        DumpError: the JSON is not of the form that `encode` writes.
    """
    try:
        return _decode(spec, get, 0)
    except DAMAGE as error:
        raise DumpError(f"the description of a value is damaged: {reprlib.repr(spec)} ({error})") from error


def _decode(spec: Spec, get: Get, depth: int) -> Any:
    if not isinstance(spec, dict):
        if spec is None or isinstance(spec, bool | int | float | str):
            return spec
        raise TypeError("a bare list")
    if depth > 2 * _DEEPEST:
        raise ValueError("nested too deeply")
    tag: Any = next(iter(spec), None)
    if tag in ("tuple", "list", "dict", "fields", "state"):
        items = [(_decode(key, get, depth + 1), _decode(item, get, depth + 1)) for key, item in spec[tag]]
        return _rebuild(tag, items, spec.get("class"))
    return _LEAVES[tag](spec, get)


def _rebuild(tag: str, items: list[tuple[Any, Any]], class_name: str | None) -> Any:
    values = [item for _, item in items]
    if class_name is None:
        return {"tuple": tuple, "list": list}[tag](values) if tag != "dict" else dict(items)
    cls = _imported(class_name)
    if tag == "tuple":
        # torch's own structseqs (torch.max's result) refuse tuple.__new__; they take the sequence and run no Python.
        return cls(values) if cls is not None and cls.__module__ == "torch.return_types" else tuple(values)
    if tag == "dict":
        return OrderedDict(items) if cls is OrderedDict else dict(items)
    if tag == "list":
        return values
    fields = {str(name): item for name, item in items}
    made = _filled(cls, fields) if cls is not None else None
    return Foreign(class_name, fields) if made is None else made


def _filled(cls: type, fields: dict[str, Any]) -> Any:
    """An instance of `cls` with these fields, made without its constructor; None if they don't fit the class."""
    if issubclass(cls, tuple):
        fits = tuple(fields) == getattr(cls, "_fields", None)
        return tuple.__new__(cls, fields.values()) if fits else None
    if _is_state_holder(cls):
        made = object.__new__(cls)
        vars(made).update(fields)
        return made
    known = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    if not known or not fields.keys() <= set(known):  # setting others could run code: a property's
        return None
    if issubclass(cls, OrderedDict):  # ModelOutput: an attribute and an item each, the missing ones None
        made = OrderedDict.__new__(cls)
        for name, item in fields.items():
            OrderedDict.__setitem__(made, name, item)
        fields = dict.fromkeys(known) | fields
    else:
        made = object.__new__(cls)
    for name, item in fields.items():
        object.__setattr__(made, name, item)
    return made


def _imported(class_name: str) -> type | None:
    """The class of this name among what is imported; `getattr` would import more, where a module has `__getattr__`."""
    module, _, qualified = class_name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
    return found if isinstance(found, type) else None


def _decode_enum(spec: Spec, _: Get) -> Any:
    cls = _imported(spec["class"])
    members = cls.__members__ if cls is not None and issubclass(cls, enum.Enum) else {}
    name = spec["enum"]
    return members[name] if name in members else Foreign(spec["class"], {"name": name})


def _decode_type(spec: Spec, _: Get) -> Any:
    cls = _imported(spec["type"])
    known = cls is not None and _is_state_holder(cls)
    return cls if known else Skipped("builtins:type", f"{spec['type']} is not imported")


def _decode_torch(spec: Spec, _: Get) -> Any:
    found = dtype_of(spec["torch"]) or getattr(torch, spec["torch"])
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"torch.{spec['torch']} is no dtype, layout or memory format")
    return found


def _decode_numpy(spec: Spec, get: Get) -> Any:
    held = spec["numpy"]
    if "tensor" not in held:
        return _LEAVES["skipped"](held, get)
    array = get(held["tensor"]).numpy()
    return array[()] if spec.get("scalar") else array


def _integer(spec: Spec) -> int | None:
    found = int(spec["int"], 16) if isinstance(spec, dict) else spec
    if not (found is None or isinstance(found, int)):
        raise TypeError(f"{found!r} is no integer")
    return found


def _decode_size(spec: Spec, _: Get) -> torch.Size:
    if any(not -(2**63) <= dim < 2**63 for dim in spec["size"]):
        raise ValueError("a dimension is out of range")  # torch would find that out much later
    return torch.Size(spec["size"])


_LEAVES: dict[str, Callable[[Spec, Get], Any]] = {
    "tensor": lambda spec, get: get(spec["tensor"]),
    "numpy": _decode_numpy,
    "skipped": lambda spec, _: Skipped(str(spec["skipped"]), str(spec["reason"])),
    "int": lambda spec, _: int(spec["int"], 16),
    "float": lambda spec, _: float(spec["float"]),
    "complex": lambda spec, _: complex(*map(float.fromhex, spec["complex"])),
    "bytes": lambda spec, _: bytes.fromhex(spec["bytes"]),
    "size": _decode_size,
    "torch": _decode_torch,
    "device": lambda spec, _: torch.device(spec["device"]),
    "enum": _decode_enum,
    "type": _decode_type,
    "slice": lambda spec, _: slice(*map(_integer, spec["slice"])),
    "range": lambda spec, _: range(*map(_integer, spec["range"])),  # type: ignore[arg-type]
}


def tensors(value: Any) -> dict[str, torch.Tensor]:
    """All tensors of a nested value by path, in order; the same paths whether or not a class could be rebuilt.

    >>> list(tensors({"mask": torch.zeros(2), "pair": (torch.ones(1), 3)}))
    ["['mask']", "['pair'][0]"]
    """
    found: dict[str, torch.Tensor] = {}

    def put(tensor: torch.Tensor, path: str) -> Spec:
        found[path] = tensor

    encode(value, put)
    return found


def structure(value: Any) -> Spec:
    """How a value is nested, and all that it holds besides the numbers of its tensors; equal for values built alike."""
    return encode(value, lambda _tensor, _path: {"tensor": None})
