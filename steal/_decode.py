"""The values that `encode` described, from JSON that is not trusted.

Decoding runs no code of the file's choosing: a class is only ever looked up among those that the process has imported
already, and is filled without calling its constructor, a property or `__setattr__`. (The keys of a dictionary are
hashed, by their class.) A class with a `__del__` would run it on what the file says in the end, so none is filled, and
what torch was told to unflatten a class by is a constructor like any other: such a class stays `Foreign`.
"""

import dataclasses
import enum
import inspect
import reprlib
import struct
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import torch

from ._arrays import array_of
from ._children import is_state_holder, slots_of
from ._dtypes import dtype_of
from ._errors import DAMAGE, DumpError
from ._foreign import DEEPEST, FACTORIES, Foreign, Get, Skipped, Spec
from ._raw import no_modes
from ._statistics import from_json
from ._tensors import dressed, joined

_CONTAINERS = ("tuple", "list", "dict", "set", "fields", "state")


def decode(spec: Spec, get: Get) -> Any:
    """The value that `encode` described.

    Args:
        spec: JSON, from a file that is not trusted.
        get: called with what `put` returned for a tensor, under its tag `"tensor"`.

    Raises:
        DumpError: the JSON is not of the form that `encode` writes.
    """
    try:
        # What is made in inference mode could not be given to a model that trains.
        with no_modes(), torch.inference_mode(mode=False):
            return _Run(get, {}).value(spec, 0)
    except DAMAGE as error:
        raise DumpError(f"the description of a value is damaged: {reprlib.repr(spec)} ({error})") from error


@dataclasses.dataclass
class _Run:
    """One `decode`.

    Attributes:
        get: see `decode`.
        shared: what may be met again as `{"same": …}`; None inside of what is hashed: the hash of a tuple that holds
            another twice, which holds another twice … would take for ever.
    """

    get: Get
    shared: dict[int, Any] | None

    def value(self, spec: Spec, depth: int) -> Any:
        if not isinstance(spec, dict):
            if spec is None or isinstance(spec, bool | int | float | str):
                return spec
            raise TypeError("a bare list")
        if depth > 2 * DEEPEST:
            raise ValueError("nested too deeply")
        tag: Any = next(iter(spec), None)
        if tag == "same":
            return (self.shared or {})[spec["same"]]
        made = self._container(tag, spec, depth + 1) if tag in _CONTAINERS else self._leaf(tag, spec, depth + 1)
        if "shared" in spec and self.shared is not None:
            self.shared[spec["shared"]] = made
        return made

    def _container(self, tag: str, spec: Spec, depth: int) -> Any:
        hashed = _Run(self.get, None)
        inside = hashed if tag == "set" else self
        items = [(hashed.value(key, depth), inside.value(item, depth)) for key, item in spec[tag]]
        attributes = {str(name): self.value(item, depth) for name, item in spec.get("attributes", ())}
        return _rebuilt(tag, items, attributes, spec)

    def _leaf(self, tag: str, spec: Spec, depth: int) -> Any:
        if tag == "tensor":
            tensor = self.get(spec["tensor"])
            return tensor if len(spec) == 1 else dressed(tensor, spec)
        if tag in ("sparse", "nested", "masked", "quantized"):
            return joined(tag, spec, lambda part: self.value(part, depth))
        if tag == "numpy":
            held = spec["numpy"]  # a tensor as it is stored: numpy copies what is expanded
            return array_of(self.get(held["tensor"]), spec) if "tensor" in held else _LEAVES["skipped"](held)
        return _LEAVES[tag](spec)


def _rebuilt(tag: str, items: list[tuple[Any, Any]], attributes: dict[str, Any], spec: Spec) -> Any:
    name = spec.get("class")
    if name is None:
        return _plain(tag, items)
    cls = _imported(name)
    if tag in ("fields", "state"):
        items = [(str(key), item) for key, item in items]
    made = None if cls is None or hasattr(cls, "__del__") else _made(cls, tag, items, attributes, spec)
    if made is not None:
        return made
    return Foreign(name, dict(enumerate(item for _, item in items)) if tag == "set" else dict(items), tag, attributes)


def _plain(tag: str, items: list[tuple[Any, Any]]) -> Any:
    makers: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "list": list, "set": set}
    return dict(items) if tag == "dict" else makers[tag](item for _, item in items)


def _made(cls: type, tag: str, items: list[tuple[Any, Any]], attributes: dict[str, Any], spec: Spec) -> Any:
    """An instance of `cls`, made without its constructor; None if this is not what such a class holds."""
    if tag in ("fields", "state"):
        return _filled(cls, dict(items))
    if cls is MappingProxyType:
        return MappingProxyType(dict(items))
    values = [item for _, item in items]
    if tag == "tuple" and cls.__module__ == "torch.return_types":
        # torch's own structseqs (torch.max's result) refuse tuple.__new__; they take the sequence and run no Python.
        return cls(values)
    base = next((base for base in _BASES[tag] if issubclass(cls, base)), None)
    if base is None or hasattr(cls, "_fields"):
        return None
    try:
        made = base.__new__(cls, values) if base in (tuple, frozenset) else base.__new__(cls)
    except TypeError:  # a class of C with a `__new__` of its own
        return None
    if base in (list, set):
        base.__init__(made, values)
    elif base is deque:
        deque.__init__(made, values, spec.get("maxlen"))
    elif tag == "dict":
        _fill_dict(base, made, items, spec.get("factory"))
    return made if _set_attributes(made, attributes) else None


def _fill_dict(base: Any, made: Any, items: list[tuple[Any, Any]], factory: str | None) -> None:
    for key, item in items:
        base.__setitem__(made, key, item)
    if base is defaultdict and factory is not None:
        vars(defaultdict)["default_factory"].__set__(made, FACTORIES[factory])


_BASES: dict[str, tuple[Any, ...]] = {
    "tuple": (tuple,),
    "list": (list, deque),
    "set": (set, frozenset),
    "dict": (OrderedDict, defaultdict, dict),
}


def _set_attributes(made: Any, attributes: dict[str, Any]) -> bool:
    """Put attributes where they were, past properties and `__setattr__`; False if there is no place for one."""
    slots = slots_of(type(made))
    for name, item in attributes.items():
        if name in slots:
            slots[name].__set__(made, item)
        elif not hasattr(made, "__dict__") or hasattr(type(inspect.getattr_static(type(made), name, None)), "__set__"):
            return False  # a property would hide what is put behind it
        else:
            vars(made)[name] = item
    return True


def _filled(cls: type, fields: dict[str, Any]) -> Any:
    """An instance of `cls` with these fields, made without its constructor; None if they don't fit the class."""
    if issubclass(cls, tuple):
        fits = tuple(fields) == getattr(cls, "_fields", None)
        return tuple.__new__(cls, fields.values()) if fits else None
    if issubclass(cls, SimpleNamespace) or is_state_holder(cls):
        made = SimpleNamespace.__new__(cls) if issubclass(cls, SimpleNamespace) else object.__new__(cls)
        return made if _set_attributes(made, fields) else None
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
    return made if _set_attributes(made, fields) else None


def _imported(class_name: str) -> type | None:
    """The class of this name among what is imported; `getattr` would import more, where a module has `__getattr__`."""
    if class_name == "builtins:mappingproxy":  # named there, and not to be found there
        return MappingProxyType
    module, _, qualified = class_name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
    return found if isinstance(found, type) else None


def _float(spec: Spec) -> float:
    return _doubles(spec["bits"], 1)[0] if "bits" in spec else float(spec["float"])


def _complex(spec: Spec) -> complex:
    return complex(*_doubles(spec["bits"], 2) if "bits" in spec else map(float.fromhex, spec["complex"]))


def _doubles(bits: str, count: int) -> tuple[float, ...]:
    raw = bytes.fromhex(bits)
    if len(raw) != 8 * count:
        raise ValueError(f"{len(raw)} bytes are not {count} numbers")
    return struct.unpack(f">{count}d", raw)


def _bytes(spec: Spec) -> bytes | bytearray:
    found = bytes.fromhex(spec["bytes"])
    return bytearray(found) if spec.get("class") == "builtins:bytearray" else found


def _enum(spec: Spec) -> Any:
    cls, name = _imported(spec["class"]), spec["enum"]
    if cls is None or not issubclass(cls, enum.Enum):
        cls = None
    elif not isinstance(name, int):
        cls = cls if name in cls.__members__ else None
    elif not (issubclass(cls, enum.Flag) and _is_plain(cls)):
        cls = None
    try:
        if cls is not None:
            return cls(name) if isinstance(name, int) else cls.__members__[name]
    except ValueError:  # a flag that the class of today does not have
        pass
    return Foreign(spec["class"], {"value" if isinstance(name, int) else "name": name})


def _is_plain(cls: type[enum.Flag]) -> bool:
    """Whether looking a number up among flags runs torch's and Python's code alone."""
    finds = getattr(cls._missing_, "__func__", None) is enum.Flag._missing_.__func__  # type: ignore[attr-defined]
    return finds and type(cls) is enum.EnumType


def _type(spec: Spec) -> Any:
    cls = _imported(spec["type"])
    known = cls is not None and is_state_holder(cls)
    return cls if known else Skipped("builtins:type", f"{spec['type']} is not imported")


def _torch(spec: Spec) -> Any:
    name = spec["torch"]
    found = dtype_of(name) or getattr(torch, name)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"torch.{name} is no dtype, layout or memory format")
    return found


def _integer(spec: Spec) -> int | None:
    found = int(spec["int"], 16) if isinstance(spec, dict) else spec
    if not (found is None or isinstance(found, int)):
        raise TypeError(f"{found!r} is no integer")
    return found


def _size(spec: Spec) -> torch.Size:
    if any(not -(2**63) <= dim < 2**63 for dim in spec["size"]):
        raise ValueError("a dimension is out of range")  # torch would find that out much later
    return torch.Size(spec["size"])


_LEAVES: dict[str, Callable[[Spec], Any]] = {
    "statistics": lambda spec: from_json(spec["statistics"]),
    "skipped": lambda spec: Skipped(str(spec["skipped"]), str(spec["reason"])),
    "int": lambda spec: int(spec["int"], 16),
    "float": _float,
    "complex": _complex,
    "bytes": _bytes,
    "size": _size,
    "torch": _torch,
    "device": lambda spec: torch.device(spec["device"]),
    "constant": lambda spec: {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[spec["constant"]],
    "enum": _enum,
    "type": _type,
    "slice": lambda spec: slice(*map(_integer, spec["slice"])),
    "range": lambda spec: range(*map(_integer, spec["range"])),  # type: ignore[arg-type]
}
