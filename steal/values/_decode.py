"""Rebuild the values that `encode` described, from untrusted JSON.

Decoding must not run code that the file chooses. Classes are looked up only among those already imported. Instances
are created without calling constructors, properties, `__setattr__`, or, for dictionary keys, `__hash__`. Classes with
`__del__` are never instantiated, and neither are classes registered with pytree, as their unflatten function is a
constructor: these become `Foreign`.
"""

import contextlib
import dataclasses
import enum
import inspect
import reprlib
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType, ModuleType, SimpleNamespace, WrapperDescriptorType
from typing import Any

import torch

from .._errors import DAMAGE, DumpError, one_line
from ._arrays import tensor_to_array
from ._children import is_cache_class, slots_of
from ._dtypes import dtype_of
from ._foreign import FACTORIES, MAX_DEPTH, MAX_EXACT_INT, Foreign, Get, Skipped, Spec
from ._raw import is_mode_active, no_modes
from ._sharding import Sharding
from ._statistics import statistics_from_json
from ._tensors import PART_TAGS, apply_class_and_shape, apply_layout, distinct_bytes, join_parts

_SEQUENCES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "list": list}
_NAMED = ("fields", "state")
_CONTAINERS = (*_SEQUENCES, "dict", "set", *_NAMED)
_SCALARS = (str, int, float, bool)
_FREE_COPY_BYTES = 2**23  # bytes that may always be copied, however small the dump
_MAX_COLLISIONS = 2**18


def decode(
    spec: Spec, get: Get, source: str | None = None, shardings: Mapping[int, Sharding] = MappingProxyType({})
) -> Any:
    """Return the value that `encode` described.

    Args:
        spec: untrusted JSON.
        get: returns the tensor of a reference; called once per reference, however often the value contains it.
        source: the path of the file, for messages.
        shardings: the layouts of plain tensors, by reference.

    Raises:
        DumpError: the JSON doesn't have the form that `encode` writes.
    """
    try:
        # Disabling modes is slower than most look-ups.
        if is_mode_active() or torch.is_inference_mode_enabled():
            # Tensors created in inference mode can't be used by a model that trains.
            with no_modes(), torch.inference_mode(mode=False):
                return _ValueDecoder(get, shardings).value(spec, 0)
        return _ValueDecoder(get, shardings).value(spec, 0)
    except DAMAGE as error:
        where = "" if source is None else f" in {source!r}"
        what = f"{one_line(reprlib.repr(spec))} ({one_line(str(error))})"
        raise DumpError(f"the description of a value{where} is damaged: {what}") from error


class _ValueDecoder:
    """State of one `decode` call.

    Attributes:
        get: see `decode`.
        shardings: see `decode`.
        shared: the objects that `{"same": …}` may refer to, by number.
        tensors: the tensors returned by `get`, by reference.
        derived: the tensors derived from them, by the relevant part of their specs. Without this cache and `tensors`, a
            small file could ask for copies of one large tensor ten thousand times.
        copied: the number of bytes copied for those.
        copy_limit: the limit of `copied`.
        collisions: an estimate of the comparisons between keys of equal hash.
    """

    __slots__ = ("collisions", "copied", "copy_limit", "derived", "get", "shardings", "shared", "tensors")

    def __init__(self, get: Get, shardings: Mapping[int, Sharding]) -> None:
        self.get, self.shardings = get, shardings
        self.shared: dict[int, Any] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.derived: dict[str, torch.Tensor] = {}
        self.copied, self.copy_limit, self.collisions = 0, _FREE_COPY_BYTES, 0

    def value(self, spec: Spec, depth: int, *, hashed: bool = False) -> Any:
        """Return the value of a spec.

        Inside dictionary keys and set elements (`hashed`), shared objects are refused: hashing a tuple that contains
        another twice, which contains another twice, and so on, would take forever.
        """
        if type(spec) is not dict:
            if spec is None or type(spec) in _SCALARS:
                return spec
            raise TypeError("a list without a tag")
        if depth > 2 * MAX_DEPTH:  # `encode` writes at most MAX_DEPTH levels, and a few more inside keys
            raise ValueError("nested too deeply")
        tag: Any = next(iter(spec), None)
        result: Any
        if tag == "tensor":
            result = self._tensor(spec)
        elif tag == "same":
            return ({} if hashed else self.shared)[spec["same"]]
        elif tag in _CONTAINERS:
            result = self._container(tag, spec, depth + 1, hashed=hashed)
        else:
            result = self._leaf(tag, spec)
            if hashed and issubclass(type(result), enum.Enum) and not _is_hashed_safely(result, []):
                result = _foreign_enum(spec)
        if "shared" in spec and not hashed:
            number = spec["shared"]
            if type(number) is not int or not 0 <= number < MAX_EXACT_INT:  # larger ones can be chosen to collide
                raise ValueError(f'"shared" is {reprlib.repr(number)}, not a number')
            self.shared[number] = result
        return result

    def _container(self, tag: str, spec: Spec, depth: int, *, hashed: bool) -> Any:
        """Return a container with its items and attributes; a `Foreign` if its class can't be instantiated safely."""
        if len(spec) == 1 and tag in _SEQUENCES:  # the fast path, for most containers
            return _SEQUENCES[tag]([self.value(item, depth, hashed=hashed) for _, item in spec[tag]])
        items_hashed = hashed or tag == "set"
        items = [
            (
                key if type(key) is str else self.value(key, depth, hashed=True),
                self.value(item, depth, hashed=items_hashed),
            )
            for key, item in spec[tag]
        ]
        if tag in _NAMED:
            items = [(_to_str(key), item) for key, item in items]
        self._check_hashes([key for key, _ in items])
        if tag == "set":
            self._check_hashes([item for _, item in items])
        attributes = {_to_str(key): self.value(item, depth, hashed=hashed) for key, item in spec.get("attributes", ())}
        name = spec.get("class")
        if name is None:
            values = [item for _, item in items]
            return dict(items) if tag == "dict" else set(values) if tag == "set" else _SEQUENCES[tag](values)
        cls = _imported_class(name)
        result = None if cls is None or hasattr(cls, "__del__") else _instantiate(cls, tag, items, attributes, spec)
        if result is None or (hashed and not _is_hashed_safely(result, items)):
            contents = dict(enumerate(item for _, item in items)) if tag == "set" else dict(items)
            return Foreign(name, contents, tag, attributes)
        return result

    def _check_hashes(self, keys: list[Any]) -> None:
        """Refuse keys with too many equal hashes, which make a dictionary slow; Python salts the hashes of strings."""
        if all(type(key) is str for key in keys):
            return
        counts = Counter(hash(key) for key in keys if type(key) is not str)
        self.collisions += sum(count * count for count in counts.values() if count > 1)
        if self.collisions > _MAX_COLLISIONS:
            raise ValueError("too many keys have the same hash")

    def _leaf(self, tag: str, spec: Spec) -> Any:
        """Return the value of a spec that has neither items nor a stored tensor of its own."""
        if tag in PART_TAGS:
            return self._composite(tag, spec)
        if tag == "numpy":
            inner = self._part(spec["numpy"])  # a tensor, or a placeholder if its data was not stored
            return tensor_to_array(inner, spec, self._count_copy) if isinstance(inner, torch.Tensor) else inner
        return _LEAVES[tag](spec)

    def _tensor(self, spec: Spec) -> torch.Tensor:
        """Return a dense tensor: a new view of the stored one, with the entries of its spec (see `_tensors`)."""
        reference = spec["tensor"]
        if (tensor := self.tensors.get(reference)) is None:
            tensor = self.tensors[reference] = self.get(reference)
        else:
            tensor = tensor.detach()  # a tensor object for each occurrence, with the same memory
        # A layout is that of the stored tensor, not of a part of it.
        if self.shardings and "sharding" not in spec and reference in self.shardings and "part" not in spec:
            return self._tensor({**spec, "sharding": self.shardings[reference].to_json()})
        if len(spec) == 1:
            return tensor

        def make() -> torch.Tensor:
            return apply_layout(tensor, spec, self._count_copy)

        may_copy = "part" in spec or "order" in spec
        cache_key = str([reference, *map(spec.get, ("part", "dtype", "order"))])
        return apply_class_and_shape(self._cached(cache_key, make) if may_copy else make(), spec)

    def _part(self, spec: Spec) -> Any:
        """Return the tensor or placeholder of a part, without `"class"` and the like: the caller copies it."""
        if "tensor" in spec:
            return self._tensor({name: spec[name] for name in ("tensor", "part", "dtype") if name in spec})
        return _LEAVES[next(iter(spec), "")](spec)

    def _composite(self, tag: str, spec: Spec) -> Any:
        """Return a sparse, nested, masked or quantized tensor from its parts."""
        entries = spec[tag]
        tensors = {name: self._part(inner) for name, inner in entries.items() if isinstance(inner, dict)}
        rows = [self._part(inner) for inner in entries["rows"]] if tag == "nested" else []
        parts = [*tensors.values(), *rows]
        placeholder = next((item for item in parts if not isinstance(item, torch.Tensor)), None)  # such as `Skipped`
        if placeholder is not None:
            return placeholder

        def make() -> torch.Tensor:
            self._count_copy(sum(item.nbytes for item in parts))
            return join_parts(tag, entries, tensors, rows)

        result = self._cached(tag + str(entries), make)
        return result.requires_grad_() if spec.get("requires_grad") is True else result

    def _cached(self, cache_key: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the cached tensor of a key as a new view, or the result of `make`."""
        if cache_key in self.derived:
            return self.derived[cache_key].detach()
        return self.derived.setdefault(cache_key, make())

    def _count_copy(self, nbytes: int) -> None:
        """Count bytes that are about to be copied, and refuse more than the stored tensors have.

        What `encode` writes needs at most one copy of each stored byte.
        """
        self.copied += nbytes
        if self.copied > self.copy_limit:
            # Computed only when needed: it is slow, and grows with the tensors that were read.
            self.copy_limit = _FREE_COPY_BYTES + distinct_bytes(self.tensors.values())
            if self.copied > self.copy_limit:
                raise ValueError("it asks for more copies of its tensors than it has bytes")


def _to_str(key: Any) -> str:
    """Return the name of a field or an attribute, which JSON may contain as a number."""
    if type(key) not in _SCALARS:
        raise TypeError(f"{reprlib.repr(key)} is not a name")
    return str(key)


def _is_hashed_safely(result: Any, items: list[tuple[Any, Any]]) -> bool:
    """Return whether hashing and comparing `result` runs only code of Python or of the `dataclasses` decorator.

    A dictionary calls these methods of its keys, whose class the file chose; they read fields, recursively.
    """
    cls = type(result)
    if any("__getattr__" in vars(base) for base in cls.__mro__):
        return False
    if dataclasses.is_dataclass(cls) and len(items) != len(dataclasses.fields(cls)):
        return False  # reading a field that is not set may run a property
    methods = [inspect.getattr_static(cls, name) for name in ("__hash__", "__eq__", "__getattribute__")]
    return all(isinstance(item, WrapperDescriptorType) or _is_trusted_method(item) for item in methods)


def _is_trusted_method(function: Any) -> bool:
    """Return whether a method was generated by the `dataclasses` decorator, or is that of `Enum`."""
    is_generated = isinstance(function, FunctionType) and function.__code__.co_filename == "<string>"
    return is_generated or function is vars(enum.Enum)["__hash__"]


def _instantiate(cls: type, tag: str, items: list[tuple[Any, Any]], attributes: dict[str, Any], spec: Spec) -> Any:
    """Create an instance of `cls` without its constructor; None if the spec doesn't match the class."""
    if tag in ("fields", "state"):
        return _instantiate_with_fields(cls, dict(items))
    if cls is MappingProxyType:
        return MappingProxyType(dict(items))
    values = [item for _, item in items]
    if tag == "tuple" and cls.__module__ == "torch.return_types":
        # torch's structseqs (such as torch.max's result) refuse tuple.__new__; their constructor runs no Python code.
        return cls(values)
    base = next((base for base in _BASES[tag] if issubclass(cls, base)), None)
    if base is None or hasattr(cls, "_fields"):  # a named tuple has the tag "fields"
        return None
    try:
        result = base.__new__(cls, values) if base in (tuple, frozenset) else base.__new__(cls)
    except TypeError:  # a C class with its own `__new__`
        return None
    if base in (list, set):
        base.__init__(result, values)
    elif base is deque:
        deque.__init__(result, values, spec.get("maxlen"))
    elif tag == "dict":
        _fill_dict(base, result, items, spec.get("factory"))
    return result if _set_attributes(result, attributes) else None


def _fill_dict(base: Any, result: Any, items: list[tuple[Any, Any]], factory: str | None) -> None:
    """Add items to an instance of a subclass of `base`, and set its default factory, without overridden methods."""
    for key, item in items:
        base.__setitem__(result, key, item)
    if base is defaultdict and factory is not None:
        vars(defaultdict)["default_factory"].__set__(result, FACTORIES[factory])


_BASES: dict[str, tuple[Any, ...]] = {
    "tuple": (tuple,),
    "list": (list, deque),
    "set": (set, frozenset),
    "dict": (OrderedDict, defaultdict, dict),
}


def _set_attributes(result: Any, attributes: dict[str, Any]) -> bool:
    """Set attributes without calling properties or `__setattr__`; return False if one can't be set."""
    slots = slots_of(type(result))
    for name, item in attributes.items():
        if name in slots:
            slots[name].__set__(result, item)
        elif not hasattr(result, "__dict__") or hasattr(
            type(inspect.getattr_static(type(result), name, None)), "__set__"
        ):
            return False  # a property hides the entry of `__dict__`
        else:
            vars(result)[name] = item
    return True


def _instantiate_with_fields(cls: type, fields: dict[str, Any]) -> Any:
    """Create an instance of `cls` with these fields, without its constructor; None if the class has other fields."""
    if issubclass(cls, tuple):
        fits = tuple(fields) == getattr(cls, "_fields", None)
        return tuple.__new__(cls, fields.values()) if fits else None
    if issubclass(cls, SimpleNamespace) or is_cache_class(cls):
        result = SimpleNamespace.__new__(cls) if issubclass(cls, SimpleNamespace) else object.__new__(cls)
        return result if _set_attributes(result, fields) else None
    known = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    if not known or not fields.keys() <= set(known):  # setting another attribute could run a property
        return None
    if issubclass(cls, OrderedDict):  # ModelOutput: each field is an attribute and an item; omitted fields are None
        result = OrderedDict.__new__(cls)
        for name, item in fields.items():
            OrderedDict.__setitem__(result, name, item)
        fields = dict.fromkeys(known) | fields
    else:
        result = object.__new__(cls)
    return result if _set_attributes(result, fields) else None


def _imported_class(class_name: str) -> type | None:
    """Return the imported class of this name, or None."""
    if class_name == "builtins:mappingproxy":  # its `__module__` doesn't contain it
        return MappingProxyType
    module, _, qualified = class_name.partition(":")
    value: Any = sys.modules.get(module)  # no getattr below: a module's `__getattr__` may import more
    for part in qualified.split("."):
        value = vars(value).get(part) if isinstance(value, type | ModuleType) else None
    return value if isinstance(value, type) else None


def _decode_float(spec: Spec) -> float:
    """Return a float that JSON has no number for: an infinity or a NaN."""
    return _doubles(spec["bits"], 1)[0] if "bits" in spec else float(spec["float"])


def _decode_complex(spec: Spec) -> complex:
    """Return a complex number."""
    return complex(*_doubles(spec["bits"], 2) if "bits" in spec else map(float.fromhex, spec["complex"]))


def _doubles(bits: str, count: int) -> tuple[float, ...]:
    """Return `count` floats from their bits in hexadecimal, which keep the payload of a NaN."""
    raw = bytes.fromhex(bits)
    if len(raw) != 8 * count:
        raise ValueError(f"expected {8 * count} bytes for {count} float64, found {len(raw)}")
    return struct.unpack(f">{count}d", raw)


def _decode_bytes(spec: Spec) -> bytes | bytearray:
    """Return bytes or a bytearray."""
    value = bytes.fromhex(spec["bytes"])
    return bytearray(value) if spec.get("class") == "builtins:bytearray" else value


def _decode_enum(spec: Spec) -> Any:
    """Return a member of an enumeration, or a combination of flags; a `Foreign` if it is not imported."""
    cls, name = _imported_class(spec["class"]), spec["enum"]
    if cls is not None and issubclass(cls, enum.Enum):
        if name in cls.__members__:
            return cls.__members__[name]
        if isinstance(name, int) and issubclass(cls, enum.Flag) and _has_builtin_lookup(cls):
            with contextlib.suppress(ValueError):  # the imported class has no such flag
                return cls(name)
    return _foreign_enum(spec)


def _foreign_enum(spec: Spec) -> Foreign:
    """Return a placeholder for a member of an enumeration."""
    return Foreign(spec["class"], {"value" if isinstance(spec["enum"], int) else "name": spec["enum"]})


def _has_builtin_lookup(cls: type[enum.Flag]) -> bool:
    """Return whether looking up a flag by number runs only code of Python."""
    is_builtin = getattr(cls._missing_, "__func__", None) is enum.Flag._missing_.__func__  # type: ignore[attr-defined]
    return is_builtin and type(cls) is enum.EnumType


def _decode_type(spec: Spec) -> Any:
    """Return the class of a cache layer, the only kind of class that `encode` stores as a value."""
    cls = _imported_class(spec["type"])
    is_allowed = cls is not None and is_cache_class(cls)
    return cls if is_allowed else Skipped("builtins:type", f"{spec['type']} is not imported")


def _decode_torch(spec: Spec) -> Any:
    """Return a dtype, layout or memory format of torch by its name."""
    name = spec["torch"]
    value = dtype_of(name) or getattr(torch, name)
    if not isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"torch.{name} is not a dtype, layout or memory format")
    return value


def _decode_integer(spec: Spec) -> int | None:
    """Return an end of a slice or a range; a large integer is written in hexadecimal."""
    value = int(spec["int"], 16) if isinstance(spec, dict) else spec
    if not (value is None or isinstance(value, int)):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _decode_size(spec: Spec) -> torch.Size:
    """Return a `torch.Size`."""
    if any(not -(2**63) <= dim < 2**63 for dim in spec["size"]):
        raise ValueError("a dimension is out of range")  # torch would notice much later
    return torch.Size(spec["size"])


_LEAVES: dict[str, Callable[[Spec], Any]] = {
    "statistics": lambda spec: statistics_from_json(spec["statistics"]),
    "skipped": lambda spec: Skipped(str(spec["skipped"]), str(spec["reason"])),
    "int": lambda spec: int(spec["int"], 16),
    "float": _decode_float,
    "complex": _decode_complex,
    "bytes": _decode_bytes,
    "size": _decode_size,
    "torch": _decode_torch,
    "device": lambda spec: torch.device(spec["device"]),
    "constant": lambda spec: {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[spec["constant"]],
    "enum": _decode_enum,
    "type": _decode_type,
    "slice": lambda spec: slice(*map(_decode_integer, spec["slice"])),
    "range": lambda spec: range(*map(_decode_integer, spec["range"])),  # type: ignore[arg-type]
}
