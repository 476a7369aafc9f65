"""Convert nested Python values to JSON plus a list of tensors.

The JSON form (`Spec`) is the value itself for null, booleans, strings, integers up to 2**53 and finite floats. Any
other value is an object with one tag, such as `{"tuple": [...]}` or `{"tensor": 3}`. Tensors are passed to a `put`
function, which returns the reference in the spec. An object that occurs again is written as `{"same": n}`; its first
occurrence has the entry `"shared": n`.
"""

import enum
import itertools
import math
import struct
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..private._torch import DisableTorchFunction
from ._arrays import array_to_tensor
from ._children import Child, children, is_cache_class, step_to
from ._dtypes import OPAQUE_DTYPES, is_storable
from ._foreign import FACTORIES, MAX_DEPTH, MAX_EXACT_INT, MAX_PARTS, UNKNOWN, Foreign, Put, Spec, skipped, type_name
from ._raw import is_mode_active, no_modes
from ._sharding import local_part
from ._tensors import is_simple, split_parts, stored_form

_PART_SIZE = 64  # characters of a path or bytes of a value that count as one part when a value is traversed
_REVISIT_COST = 16  # cost factor of parts that were traversed before
_NAN = struct.pack(">d", math.nan)


def encode(value: Any, put: Put, path: str = "", *, exact: bool = True, local: bool = True) -> Spec:
    """Convert `value` to JSON, calling `put` for every tensor; never raises because of the value.

    Args:
        value: any nesting of tensors and other values.
        put: called with each tensor and its path (`[0].last_hidden_state`); returns the tensor's spec.
        path: the path of `value`.
        exact: also record memory order and the identity of shared objects. Otherwise each occurrence of a tensor is
            put separately, as a whole.
        local: of a DTensor, put the part that is in this process, and add its layout to the spec; else put the DTensor.
    """
    state = _State(put, exact=exact, local=local)
    if is_mode_active():  # modes of the model must not see the operations that read its tensors
        with no_modes():
            return _ENCODERS.get(type(value), _encode_other)(state, value, path, 0)
    return _ENCODERS.get(type(value), _encode_other)(state, value, path, 0)


class _State:
    """State of one `encode` call.

    Attributes:
        put: see `encode`.
        exact: see `encode`.
        local: see `encode`.
        budget: how many more parts the value may have; a mapping may be endless.
        traversed: the `id`s of objects that were traversed before, where `exact` is False.
        seen: the objects that may occur again and their specs, by `id`; None while the object is being encoded. They
            are held so that no other object gets the same id.
        shared: the number of objects that occurred again.
    """

    __slots__ = ("budget", "exact", "local", "put", "seen", "shared", "traversed")

    def __init__(self, put: Put, *, exact: bool, local: bool) -> None:
        self.put, self.exact, self.local = put, exact, local
        self.budget, self.shared = MAX_PARTS, 0
        self.seen: dict[int, tuple[Any, Spec]] = {}
        self.traversed: set[int] = set()

    def count(self, value: Any, path: str, parts: int, size: int = 0) -> None:
        """Count the parts that are about to be traversed and the bytes copied for them.

        A small file can contain lists that contain another list twice, which contains another twice, and so on, or
        keys that make each path a megabyte long. The limit ends such traversals early.
        """
        if self.exact:
            self.budget -= parts
            return
        parts, size = parts * (1 + len(path) // _PART_SIZE), size // _PART_SIZE
        if id(value) in self.traversed:
            parts, size = _REVISIT_COST * (parts + 1), _REVISIT_COST * size
        self.traversed.add(id(value))
        self.budget -= parts + size

    def count_copy(self, value: Any) -> None:
        """Count the bytes of a leaf that is copied for its spec, unless it is the first copy of the object."""
        if not self.exact and issubclass(type(value), bytes | bytearray | torch.Size | np.ndarray):
            size = (value.nbytes if isinstance(value, np.ndarray) else len(value)) if id(value) in self.traversed else 0
            self.count(value, "", 0, size)

    def reference_to(self, spec: Spec) -> Spec:
        """Return the spec of an object that occurred before with spec `spec`."""
        if "skipped" in spec:
            return dict(spec)
        if "shared" not in spec:
            spec["shared"] = self.shared
            self.shared += 1
        return {"same": spec["shared"]}

    def remember(self, value: Any, spec: Spec) -> Spec:
        """Remember the spec of an object that may occur again."""
        if self.exact:
            self.seen[id(value)] = value, spec
        else:  # it was there only to notice a value that contains itself
            self.seen.pop(id(value), None)
        return spec


def _encode_as_is(_state: _State, value: Any, _path: str, _depth: int) -> Spec:
    """Return a value that is its own spec."""
    return value


def _encode_int(state: _State, value: int, _path: str, _depth: int) -> Spec:
    """Encode an integer; one that other JSON readers would round, in hexadecimal."""
    if -MAX_EXACT_INT <= value <= MAX_EXACT_INT:
        return value
    state.budget -= 0 if state.exact else value.bit_length() // _PART_SIZE
    return {"int": hex(value)}


def _encode_float(state: _State, value: float, _path: str, _depth: int) -> Spec:
    """Encode a float; a NaN with another payload than Python's with its bits."""
    if math.isfinite(value):
        return value
    spec = {"float": str(value)}
    if state.exact and math.isnan(value) and struct.pack(">d", value) != _NAN:
        spec["bits"] = struct.pack(">d", value).hex()
    return spec


def _encode_complex(state: _State, value: complex, _path: str, _depth: int) -> Spec:
    """Encode a complex number; see `_encode_float`."""
    both = value.real, value.imag
    spec: Spec = {"complex": [part.hex() for part in both]}
    if state.exact and any(math.isnan(part) and struct.pack(">d", part) != _NAN for part in both):
        spec["bits"] = struct.pack(">2d", *both).hex()
    return spec


# The next three run in every hook, so they avoid function calls.
def _encode_tuple(state: _State, value: tuple[Any, ...], path: str, depth: int) -> Spec:
    if state.exact:
        state.budget -= len(value)
    else:
        state.count(value, path, len(value))
    if depth > MAX_DEPTH or state.budget < 0:
        return _too_large(value, depth)
    items = []
    for index, item in enumerate(value):
        items.append([index, _ENCODERS.get(type(item), _encode_other)(state, item, f"{path}[{index}]", depth + 1)])
    return {"tuple": items}


def _encode_list(state: _State, value: list[Any], path: str, depth: int) -> Spec:
    if id(value) in state.seen:
        return _encode_repeated(state, value)
    if state.exact:
        state.budget -= len(value)
    else:
        state.count(value, path, len(value))
    if depth > MAX_DEPTH or state.budget < 0:
        return _too_large(value, depth)
    state.seen[id(value)] = value, None  # while it is encoded: a list may contain itself
    items = []
    for index, item in enumerate(value[:]):  # a copy: reading items may run user code that changes the list
        items.append([index, _ENCODERS.get(type(item), _encode_other)(state, item, f"{path}[{index}]", depth + 1)])
    return state.remember(value, {"list": items})


def _encode_dict(state: _State, value: dict[Any, Any], path: str, depth: int) -> Spec:
    if id(value) in state.seen:
        return _encode_repeated(state, value)
    if not value:
        return state.remember(value, {"dict": []})
    if state.exact:
        state.budget -= len(value)
    else:
        state.count(value, path, len(value), sum(len(key) for key in value if type(key) is str))
    if depth > MAX_DEPTH or state.budget < 0:
        return _too_large(value, depth)
    state.seen[id(value)] = value, None
    items = []
    for index, (key, item) in enumerate(list(value.items())):
        label = key if type(key) is str else _encode_key(state, key, path, index)
        items.append([label, _ENCODERS.get(type(item), _encode_other)(state, item, path + step_to(key), depth + 1)])
    return state.remember(value, {"dict": items})


def _too_large(value: Any, depth: int) -> Spec:
    """Return the placeholder of a value that is too deep or has too many parts."""
    return skipped(value, "it is nested too deeply" if depth > MAX_DEPTH else f"it has more than {MAX_PARTS} parts")


def _encode_repeated(state: _State, value: Any) -> Spec:
    """Encode an object that occurred before, or that contains itself."""
    _, spec = state.seen[id(value)]
    return skipped(value, "it contains itself") if spec is None else state.reference_to(spec)


def _encode_tensor(state: _State, value: torch.Tensor, path: str, depth: int) -> Spec:  # noqa: ARG001  as the other encoders
    """Encode a tensor, which may have occurred before."""
    if not state.exact:
        return _encode_any_tensor(state, value, path)
    if id(value) in state.seen:
        return _encode_repeated(state, value)
    is_plain = type(value) is torch.Tensor and is_simple(value)
    spec = state.put(value, path) if is_plain else _encode_any_tensor(state, value, path)
    state.seen[id(value)] = value, spec
    return spec


def _encode_any_tensor(state: _State, value: torch.Tensor, path: str) -> Spec:
    """Encode a tensor of any class or layout, by its parts if it isn't dense."""
    tag_and_parts, stored = None, value
    extra: Spec = {}
    layout: Spec = {}
    with DisableTorchFunction():  # subclasses must not change how they are read
        try:
            if state.local:
                value, layout = local_form(value, exact=state.exact)
                stored = value
            if type(value) is torch.Tensor and is_simple(value):
                pass
            elif is_storable(value) or value.dtype in OPAQUE_DTYPES:
                stored, extra = stored_form(value, exact=state.exact)
            else:
                tag_and_parts = split_parts(value, exact=state.exact)
        except Exception:  # noqa: BLE001, S110  its attributes raise: `put` stores or skips it as it is
            pass
        if tag_and_parts is not None:
            return _encode_parts(state, value, tag_and_parts, path)
        spec = state.put(stored, path)
    extra |= layout
    return {**spec, **extra} if extra and "tensor" in spec else spec


def local_form(value: torch.Tensor, *, exact: bool) -> tuple[torch.Tensor, Spec]:
    """Return the part of a distributed tensor that is in this process, and the entries to add to its spec.

    Any other value is returned as it is, with no entries. Without `exact` only the layout is added.
    """
    local, sharding = local_part(value)
    if sharding is None:
        return local, {}
    layout: Spec = {"sharding": sharding.to_json()}
    return local, layout | {"requires_grad": True} if exact and value.requires_grad else layout


def _encode_parts(state: _State, value: torch.Tensor, tag_and_parts: tuple[str, Spec], path: str) -> Spec:
    """Encode a tensor that `split_parts` has split; skip it if a part is skipped."""
    tag, entries = tag_and_parts
    inner = _State(state.put, exact=False, local=True)  # the layout of the parts doesn't matter: they will be copied
    parts: Spec = {}
    for name, part in entries.items():
        if isinstance(part, torch.Tensor):
            parts[name] = _encode_any_tensor(inner, part, f"{path}.{name}")
        elif isinstance(part, tuple):  # the rows of a nested tensor
            parts[name] = [_encode_any_tensor(inner, row, f"{path}[{index}]") for index, row in enumerate(part)]
        else:
            parts[name] = part
    specs = [*parts.values(), *parts.get("rows", ())]
    skipped_part = next((spec for spec in specs if isinstance(spec, dict) and "skipped" in spec), None)
    if skipped_part is not None:
        return skipped(value, skipped_part["reason"])
    return {tag: parts, "requires_grad": True} if state.exact and value.requires_grad else {tag: parts}


def _encode_other(state: _State, value: Any, path: str, depth: int) -> Spec:
    """Encode a value whose exact type has no encoder; everything that may run code of the value is inside `try`."""
    cls = type(value)
    if issubclass(cls, torch.Tensor):
        return _encode_tensor(state, value, path, depth)
    if id(value) in state.seen:
        return _encode_repeated(state, value)
    state.count_copy(value)
    array: tuple[torch.Tensor, Spec] | str | None = None  # of a NumPy array: what to store, or why not to
    details: Spec = {}
    child_list: list[Child] = []
    tag = ""
    try:
        if issubclass(cls, np.ndarray | np.generic) and not issubclass(cls, np.ma.MaskedArray):
            array = array_to_tensor(value, exact=state.exact)
        elif (leaf := _encode_leaf(state, value)) is not None:
            return leaf
        else:
            tag, steps = children(value) or ("", iter(()))
            child_list = list(itertools.islice(steps, max(0, state.budget + 1)))
            details = _container_details(value) if tag else {}
    except Exception as error:  # noqa: BLE001  a user's class that can't be read must not end the run
        return skipped(value, f"reading it raised {type(error).__name__}")
    if isinstance(array, str):
        return skipped(value, array)
    if array is not None:
        spec = {"numpy": state.put(array[0], path), **array[1]}
        return spec if issubclass(cls, np.generic) else state.remember(value, spec)
    if not tag:
        return skipped(value, UNKNOWN)
    state.count(value, path, len(child_list), sum(len(step) for step, _, _ in child_list))
    if depth > MAX_DEPTH or state.budget < 0:
        return _too_large(value, depth)
    state.seen[id(value)] = value, None
    return state.remember(value, _encode_container(state, tag, child_list, path, depth + 1) | details)


def _encode_container(state: _State, tag: str, child_list: list[Child], path: str, depth: int) -> Spec:
    """Return the spec of a container.

    Args:
        state: the state of the `encode` call.
        tag: the kind of the container (see `children`).
        child_list: its children (see `children`).
        path: its path.
        depth: the depth of its children.
    """
    items: list[Spec] = []
    attributes: list[Spec] = []
    for index, (step, key, child) in enumerate(child_list):
        if tag == "set" and step.startswith("["):
            items.append([index, _encode_hashable(state, child, path + step, f"element {index} of a set")])
            continue
        label = _encode_key(state, key, path, index)
        is_attribute = step.startswith(".") and tag not in ("fields", "state")
        (attributes if is_attribute else items).append(
            [label, _ENCODERS.get(type(child), _encode_other)(state, child, path + step, depth)]
        )
    return {tag: items, "attributes": attributes} if attributes else {tag: items}


def _encode_key(state: _State, key: Any, path: str, index: int) -> Spec:
    """Encode a key of a dictionary, by its index."""
    return _encode_hashable(state, key, f"{path}.keys()[{index}]", f"key {index} of a dictionary")


def _encode_hashable(state: _State, value: Any, path: str, place: str) -> Spec:
    """Encode a dictionary key or set element: of little depth and without sharing, so that hashing it is fast."""
    if type(value) in (int, str):
        return _ENCODERS.get(type(value), _encode_other)(state, value, path, 0)
    inner = _State(state.put, exact=False, local=True)
    inner.budget, inner.traversed = state.budget, state.traversed
    # A NumPy scalar as a key is equal to the Python scalar.
    plain = value.item() if issubclass(type(value), np.generic) else value
    spec = _ENCODERS.get(type(plain), _encode_other)(inner, plain, path, MAX_DEPTH - 2)
    state.budget = inner.budget
    # The reason includes the place: two equal placeholders would become one key.
    return skipped(value, f"it is {place}") if isinstance(spec, dict) and "skipped" in spec else spec


def _encode_leaf(state: _State, value: Any) -> Spec:
    """Return the spec of a value without items; None for any other value, and for arrays."""
    cls = type(value)
    if issubclass(cls, enum.Enum):
        return _encode_enum(cls, value)
    for base, plain, encoder in _SUBCLASSED:
        if issubclass(cls, base):  # of a subclass, only the built-in value is stored
            return encoder(state, plain(value), "", 0)
    if value is Ellipsis or value is NotImplemented:
        return {"constant": str(value)}
    if issubclass(cls, type) and is_cache_class(value):  # an empty cache stores the class of its future layers
        return {"type": type_name(value)}
    if cls in (slice, range):
        ends = [value.start, value.stop, value.step]
        if all(end is None or type(end) in (int, bool) for end in ends):
            return {cls.__name__: [end if end is None else _encode_int(state, int(end), "", 0) for end in ends]}
    if issubclass(cls, torch.Size):
        return {"size": [int(dim) for dim in value]}
    if issubclass(cls, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    return {"device": str(value)} if issubclass(cls, torch.device) else None


def _encode_enum(cls: type[enum.Enum], value: Any) -> Spec:
    """Return the spec of an enum member by name, or of a combination of flags by number."""
    if value._name_ in cls.__members__:
        return {"enum": value._name_, "class": type_name(cls)}
    if issubclass(cls, enum.Flag) and isinstance(value._value_, int):  # a combination of flags
        return {"enum": int(value._value_), "class": type_name(cls)}
    return skipped(value, UNKNOWN)


def _container_details(value: Any) -> Spec:
    """Return the entries of a container's spec besides its items."""
    cls = type(value)
    if cls is Foreign:
        return {"class": value.type_name}
    spec: Spec = {} if cls in (tuple, list, dict, set) else {"class": type_name(cls)}
    if issubclass(cls, deque) and value.maxlen is not None:
        spec["maxlen"] = value.maxlen
    if issubclass(cls, defaultdict) and any(value.default_factory is factory for factory in FACTORIES.values()):
        spec["factory"] = type_name(value.default_factory)
    return spec


_Encoder = Callable[[_State, Any, str, int], Spec]
_ENCODERS: dict[type, _Encoder] = {
    torch.Tensor: _encode_tensor, torch.nn.Parameter: _encode_tensor,
    tuple: _encode_tuple, list: _encode_list, dict: _encode_dict,
    type(None): _encode_as_is, bool: _encode_as_is, str: _encode_as_is,
    int: _encode_int, float: _encode_float, complex: _encode_complex,
}  # fmt: skip
_SUBCLASSED: tuple[tuple[type, Callable[[Any], Any], _Encoder], ...] = (
    (int, int.__int__, _encode_int),
    (float, float.__float__, _encode_float),
    (complex, complex.__complex__, _encode_complex),
    (str, str.__str__, _encode_as_is),
    (bytes, bytes.hex, lambda _state, text, _path, _depth: {"bytes": text}),
    (bytearray, bytearray.hex, lambda _state, text, _path, _depth: {"bytes": text, "class": "builtins:bytearray"}),
)
