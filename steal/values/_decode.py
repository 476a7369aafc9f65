"""The values that `encode` described, from JSON that is not trusted.

Decoding runs no code of the file's choosing: a class is only ever looked up among those that the process has imported
already, and is filled without calling its constructor, a property or `__setattr__`; nor its `__hash__`, where it is the
key of a dictionary. A class with a `__del__` would run it on what the file says in the end, so none is filled, and
what torch was told to unflatten a class by is a constructor like any other: such a class stays `Foreign`.
"""

import dataclasses
import enum
import inspect
import reprlib
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import FunctionType, MappingProxyType, ModuleType, SimpleNamespace, WrapperDescriptorType
from typing import Any

import torch

from .._errors import DAMAGE, DumpError, in_short
from ._arrays import array_of
from ._children import is_state_holder, slots_of
from ._dtypes import dtype_of
from ._foreign import DEEPEST, FACTORIES, Foreign, Get, Skipped, Spec
from ._raw import no_modes
from ._statistics import Statistics, from_json
from ._tensors import PARTED, distinct_bytes, integers, joined, laid, worn

_SEQUENCES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "list": list}
_NAMED = ("fields", "state")
_CONTAINERS = (*_SEQUENCES, "dict", "set", *_NAMED)
_SCALARS = (str, int, float, bool)
_EXACT = 2**53
_FREE = 2**23  # bytes that may be copied however few there are
_MOST_COLLIDED = 2**18
_DIGEST = 16  # bytes, see `Statistics.content`
_INFINITE = ("inf", "-inf", "nan")  # JSON has no such numbers


def decode(spec: Spec, get: Get, source: str | None = None) -> Any:
    """The value that `encode` described.

    Args:
        spec: JSON, from a file that is not trusted.
        get: called with what `put` returned for a tensor, under its tag `"tensor"`; once for each, however often the
            value refers to it.
        source: the path of the file, for messages.

    Raises:
        DumpError: the JSON is not of the form that `encode` writes.
    """
    try:
        if _is_watched():
            # What is made in inference mode could not be given to a model that trains.
            with no_modes(), torch.inference_mode(mode=False):
                return _Run(get).value(spec, 0)
        return _Run(get).value(spec, 0)
    except DAMAGE as error:
        where = "" if source is None else f" in {source!r}"
        what = f"{in_short(reprlib.repr(spec))} ({in_short(str(error))})"
        raise DumpError(f"the description of a value{where} is damaged: {what}") from error


def _is_watched() -> bool:
    """Whether a mode has a say in what torch makes here; leaving modes takes longer than most look-ups do."""
    return bool(
        torch._C._len_torch_dispatch_stack()  # noqa: SLF001  nothing public tells
        or torch._C._is_torch_function_mode_enabled()  # noqa: SLF001  as above
        or torch.is_inference_mode_enabled()
    )


class _Run:
    """One `decode`.

    Attributes:
        get: see `decode`.
        shared: what may be met again as `{"same": …}`.
        read: the tensors that were asked for, by reference.
        made: those that were made of them, by what of their specs made them. Like `read`, it is for a small file that
            asks for the same large tensor ten thousand times.
        copied: how many bytes were copied to make those.
        most: how many may be.
        collided: how often two keys of one hash were compared, about.
    """

    __slots__ = ("collided", "copied", "get", "made", "most", "read", "shared")

    def __init__(self, get: Get) -> None:
        self.get = get
        self.shared: dict[int, Any] = {}
        self.read: dict[int, torch.Tensor] = {}
        self.made: dict[str, torch.Tensor] = {}
        self.copied, self.most, self.collided = 0, _FREE, 0

    def value(self, spec: Spec, depth: int, *, hashed: bool = False) -> Any:
        """The value of a spec; if it is hashed, nothing in it is shared.

        The hash of a tuple that holds another twice, which holds another twice … would take for ever.
        """
        if type(spec) is not dict:
            if spec is None or type(spec) in _SCALARS:
                return spec
            raise TypeError("a bare list")
        if depth > 2 * DEEPEST:
            raise ValueError("nested too deeply")
        tag: Any = next(iter(spec), None)
        made: Any
        if tag == "tensor":
            made = self._tensor(spec)
        elif tag == "same":
            return ({} if hashed else self.shared)[spec["same"]]
        elif tag in _CONTAINERS:
            made = self._container(tag, spec, depth + 1, hashed=hashed)
        else:
            made = self._leaf(tag, spec)
            if hashed and issubclass(type(made), enum.Enum) and not _is_hashed_safely(made, []):
                made = _foreign_enum(spec)
        if "shared" in spec and not hashed:
            number = spec["shared"]
            if type(number) is not int or not 0 <= number < _EXACT:  # larger ones could be chosen to have one hash
                raise ValueError("no number of what is shared")
            self.shared[number] = made
        return made

    def _container(self, tag: str, spec: Spec, depth: int, *, hashed: bool) -> Any:
        if len(spec) == 1 and tag in _SEQUENCES:  # most of all that is stored
            return _SEQUENCES[tag]([self.value(item, depth, hashed=hashed) for _, item in spec[tag]])
        inside = hashed or tag == "set"
        items = [
            (
                key if type(key) is str else self.value(key, depth, hashed=True),
                self.value(item, depth, hashed=inside),
            )
            for key, item in spec[tag]
        ]
        if tag in _NAMED:
            items = [(_name(key), item) for key, item in items]
        self._check_hashes([key for key, _ in items])
        if tag == "set":
            self._check_hashes([item for _, item in items])
        attributes = {_name(key): self.value(item, depth, hashed=hashed) for key, item in spec.get("attributes", ())}
        name = spec.get("class")
        if name is None:
            return _plain(tag, items)
        made = _rebuilt(name, tag, items, attributes, spec)
        if made is None or (hashed and not _is_hashed_safely(made, items)):
            held = dict(enumerate(item for _, item in items)) if tag == "set" else dict(items)
            return Foreign(name, held, tag, attributes)
        return made

    def _check_hashes(self, keys: list[Any]) -> None:
        """Refuse keys that a dictionary would take minutes to tell apart; those of texts can't be foreseen."""
        if all(type(key) is str for key in keys):
            return
        counts = Counter(hash(key) for key in keys if type(key) is not str)
        self.collided += sum(count * count for count in counts.values() if count > 1)
        if self.collided > _MOST_COLLIDED:
            raise ValueError("too many of its keys have the same hash")

    def _leaf(self, tag: str, spec: Spec) -> Any:
        if tag in PARTED:
            return self._parted(tag, spec)
        if tag == "numpy":
            inner = self._part(spec["numpy"])
            return array_of(inner, spec, self._copy) if isinstance(inner, torch.Tensor) else inner
        return _LEAVES[tag](spec)

    def _tensor(self, spec: Spec) -> torch.Tensor:
        reference = spec["tensor"]
        if (tensor := self.read.get(reference)) is None:
            tensor = self.read[reference] = self.get(reference)
        else:
            tensor = tensor.detach()
        if len(spec) == 1:
            return tensor
        if "part" in spec or "order" in spec:
            form = str([reference, *map(spec.get, ("part", "dtype", "order"))])
            return worn(self._once(form, lambda: laid(tensor, spec, self._copy)), spec)
        return worn(laid(tensor, spec, self._copy), spec)

    def _part(self, spec: Spec) -> Any:
        """A tensor as it is stored, or what stands for it; numpy and torch copy what is made of it."""
        if "tensor" in spec:
            return self._tensor({name: spec[name] for name in ("tensor", "part", "dtype") if name in spec})
        return _LEAVES[next(iter(spec), "")](spec)

    def _parted(self, tag: str, spec: Spec) -> Any:
        form = spec[tag]
        found = {name: self._part(inner) for name, inner in form.items() if isinstance(inner, dict)}
        rows = [self._part(inner) for inner in form["rows"]] if tag == "nested" else []
        parts = [*found.values(), *rows]
        missing = next((item for item in parts if not isinstance(item, torch.Tensor)), None)
        if missing is not None:  # it was not stored
            return missing

        def make() -> torch.Tensor:
            self._copy(sum(item.nbytes for item in parts))
            return joined(tag, form, found, rows)

        made = self._once(tag + str(form), make)
        return made.requires_grad_() if spec.get("requires_grad") is True else made

    def _once(self, form: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What `make` makes; a view of that, if something of this form was made before."""
        if form in self.made:
            return self.made[form].detach()
        return self.made.setdefault(form, make())

    def _copy(self, nbytes: int) -> None:
        """Say that so many bytes are about to be copied.

        Whatever `encode` writes is copied once at most: who changes the order of a tensor has stored it in that order.
        """
        self.copied += nbytes
        if self.copied > self.most:
            self.most = _FREE + distinct_bytes(self.read.values())
            if self.copied > self.most:
                raise ValueError("it asks for more copies of its tensors than a value has")


def _rebuilt(name: str, tag: str, items: list[tuple[Any, Any]], attributes: dict[str, Any], spec: Spec) -> Any:
    """An instance of the class of this name, or None."""
    cls = _imported(name)
    return None if cls is None or hasattr(cls, "__del__") else _made(cls, tag, items, attributes, spec)


def _name(key: Any) -> str:
    if type(key) not in _SCALARS:
        raise TypeError("a name that is no text")
    return str(key)


def _is_hashed_safely(made: Any, items: list[tuple[Any, Any]]) -> bool:
    """Whether telling `made` from others runs no code but Python's and what `dataclasses` wrote for its class.

    A dictionary asks its keys, and the file chose their class. That code reads the fields and asks them in turn.
    """
    cls = type(made)
    if any("__getattr__" in vars(base) for base in cls.__mro__):
        return False
    if dataclasses.is_dataclass(cls) and len(items) != len(dataclasses.fields(cls)):
        return False  # a field that is not set may be a property
    asked = [inspect.getattr_static(cls, name) for name in ("__hash__", "__eq__", "__getattribute__")]
    return all(isinstance(item, WrapperDescriptorType) or _is_known(item) for item in asked)


def _is_known(function: Any) -> bool:
    generated = isinstance(function, FunctionType) and function.__code__.co_filename == "<string>"
    return generated or function is vars(enum.Enum)["__hash__"]


def _plain(tag: str, items: list[tuple[Any, Any]]) -> Any:
    makers: dict[str, Callable[[Any], Any]] = {**_SEQUENCES, "set": set}
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


def _statistics(spec: Spec) -> Statistics:
    held = spec["statistics"]
    texts = (held["what"], held["dtype"], held["content"])
    numbers = (held["minimum"], held["maximum"], held["mean"], held["std"])
    if any(type(text) is not str for text in texts) or len(bytes.fromhex(held["content"])) != _DIGEST:
        raise ValueError("no statistics have such texts")
    # In memory a shape is still the tuple that no JSON has.
    if type(held["shape"]) not in (list, tuple) or min(integers([*held["shape"], held["nan"], held["inf"]])) < 0:
        raise ValueError("no statistics have such counts")
    if not all(number is None or type(number) in (int, float) or number in _INFINITE for number in numbers):
        raise ValueError("no statistics have such numbers")
    return from_json(held)


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
    return _foreign_enum(spec)


def _foreign_enum(spec: Spec) -> Foreign:
    return Foreign(spec["class"], {"value" if isinstance(spec["enum"], int) else "name": spec["enum"]})


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
    "statistics": _statistics,
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
