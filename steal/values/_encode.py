"""Any nesting of Python values as JSON plus a list of tensors (see `_structure` for the form)."""

import enum
import itertools
import math
import struct
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ._arrays import array_form
from ._children import Child, children, is_state_holder, step_to
from ._dtypes import SHELLS, not_storable
from ._foreign import DEEPEST, FACTORIES, MOST, Foreign, Put, Spec, skipped, type_name
from ._raw import dispatch_modes, function_mode, no_modes
from ._tensors import held, is_usual, parts

_EXACT = 2**53  # integers beyond lose digits in other JSON readers
_LONG = 64  # characters of a path, or bytes of a value, that count as a part of it where one is walked
_AGAIN = 16  # how much more the parts count that a walk met before
_NAN = struct.pack(">d", math.nan)
UNKNOWN = "Filch does not know how to store it"


def encode(value: Any, put: Put, path: str = "", *, exact: bool = True) -> Spec:
    """Describe `value` as JSON; every tensor in it goes through `put`. Nothing that `value` does makes it raise.

    Args:
        value: what a module took or gave.
        put: called with each tensor and its path (`[0].last_hidden_state`); its result stands for the tensor.
        path: where `value` stands.
        exact: say also how tensors lie in memory and which objects are one and the same; else each tensor is put
            wherever it stands, whole.
    """
    # What reads a tensor is our own business, not that of a mode that the model runs in.
    modes = function_mode() or dispatch_modes()
    if not modes:
        if type(value) is torch.Tensor and is_usual(value):  # what most modules give
            return put(value, path)
        if type(value) is tuple and (tensor := _only_tensor(value)) is not None:  # what most modules take
            return {"tuple": [[0, {"tuple": [[0, put(tensor, f"{path}[0][0]")]]}], [1, {"dict": []}]]}
    run = _Run(put, exact=exact)
    if modes:
        with no_modes():
            return _KNOWN.get(type(value), _other)(run, value, path, 0)
    return _KNOWN.get(type(value), _other)(run, value, path, 0)


def _only_tensor(value: tuple[Any, ...]) -> torch.Tensor | None:
    """The one thing in the arguments of a call, if that is a usual tensor: `((tensor,), {})`."""
    if len(value) != 2:
        return None
    args, kwargs = value
    if type(args) is not tuple or len(args) != 1 or type(kwargs) is not dict or kwargs:
        return None
    tensor = args[0]
    return tensor if type(tensor) is torch.Tensor and is_usual(tensor) else None


class _Run:
    """What one `encode` knows of the value so far.

    Attributes:
        put: see `encode`.
        exact: see `encode`.
        left: how many more parts the value may have; a mapping may never end.
        met: by `id`, what was met before, where nothing is described as `{"same": …}`.
        seen: by `id`, the objects that may be met again (held, so that no other gets the same) and their specs; None
            while the object is being described.
        shared: how many of them were.
    """

    __slots__ = ("exact", "left", "met", "put", "seen", "shared")

    def __init__(self, put: Put, *, exact: bool) -> None:
        self.put, self.exact = put, exact
        self.left, self.shared = MOST, 0
        self.seen: dict[int, tuple[Any, Spec]] = {}
        self.met: set[int] = set()

    def count(self, value: Any, path: str, parts: int, size: int = 0) -> None:
        """Take note of parts that are about to be gone through, and of the `size` of what is copied for them.

        A small file can hold lists that hold another twice, which holds another twice …, and keys that make the path of
        each part a megabyte long: a walk ends before it has gone through all of that.
        """
        if self.exact:
            self.left -= parts
            return
        parts, size = parts * (1 + len(path) // _LONG), size // _LONG
        if id(value) in self.met:
            parts, size = _AGAIN * (parts + 1), _AGAIN * size
        self.met.add(id(value))
        self.left -= parts + size

    def count_copy(self, value: Any) -> None:
        """Take note of a value without parts that is copied to describe it; once is no more than the value takes."""
        if not self.exact and issubclass(type(value), bytes | bytearray | torch.Size | np.ndarray):
            size = (value.nbytes if isinstance(value, np.ndarray) else len(value)) if id(value) in self.met else 0
            self.count(value, "", 0, size)

    def again(self, spec: Spec) -> Spec:
        """The spec of an object that was met before, as `spec`."""
        if "skipped" in spec:
            return dict(spec)
        if "shared" not in spec:
            spec["shared"] = self.shared
            self.shared += 1
        return {"same": spec["shared"]}

    def keep(self, value: Any, spec: Spec) -> Spec:
        """Remember the spec of an object that may be met again."""
        if self.exact:
            self.seen[id(value)] = value, spec
        else:
            self.seen.pop(id(value), None)
        return spec


def _same(_run: _Run, value: Any, _path: str, _depth: int) -> Spec:
    return value


def _int(run: _Run, value: int, _path: str, _depth: int) -> Spec:
    if -_EXACT <= value <= _EXACT:
        return value
    run.left -= 0 if run.exact else value.bit_length() // _LONG
    return {"int": hex(value)}


def _float(run: _Run, value: float, _path: str, _depth: int) -> Spec:
    if math.isfinite(value):
        return value
    spec = {"float": str(value)}
    if run.exact and math.isnan(value) and struct.pack(">d", value) != _NAN:
        spec["bits"] = struct.pack(">d", value).hex()
    return spec


def _complex(run: _Run, value: complex, _path: str, _depth: int) -> Spec:
    both = value.real, value.imag
    spec: Spec = {"complex": [part.hex() for part in both]}
    if run.exact and any(math.isnan(part) and struct.pack(">d", part) != _NAN for part in both):
        spec["bits"] = struct.pack(">2d", *both).hex()
    return spec


# Of these three and of what they call for a tensor, much runs in every hook: no call is made that can be spared.
def _tuple(run: _Run, value: tuple[Any, ...], path: str, depth: int) -> Spec:
    if run.exact:
        run.left -= len(value)
    else:
        run.count(value, path, len(value))
    if depth > DEEPEST or run.left < 0:
        return _refused(value, depth)
    items = []
    for index, item in enumerate(value):
        items.append([index, _KNOWN.get(type(item), _other)(run, item, f"{path}[{index}]", depth + 1)])
    return {"tuple": items}


def _list(run: _Run, value: list[Any], path: str, depth: int) -> Spec:
    if (found := run.seen.get(id(value))) is not None:
        return _met(run, value, found[1])
    if run.exact:
        run.left -= len(value)
    else:
        run.count(value, path, len(value))
    if depth > DEEPEST or run.left < 0:
        return _refused(value, depth)
    run.seen[id(value)] = value, None
    items = []
    for index, item in enumerate(value[:]):  # what is read may run code of the user's, which may write to what holds it
        items.append([index, _KNOWN.get(type(item), _other)(run, item, f"{path}[{index}]", depth + 1)])
    return run.keep(value, {"list": items})


def _dict(run: _Run, value: dict[Any, Any], path: str, depth: int) -> Spec:
    if (found := run.seen.get(id(value))) is not None:
        return _met(run, value, found[1])
    if not value:
        return run.keep(value, {"dict": []})
    if run.exact:
        run.left -= len(value)
    else:
        run.count(value, path, len(value), sum(len(key) for key in value if type(key) is str))
    if depth > DEEPEST or run.left < 0:
        return _refused(value, depth)
    run.seen[id(value)] = value, None
    items = []
    for index, (key, item) in enumerate(list(value.items())):
        label = (
            key if type(key) is str else _hashed(run, key, f"{path}.keys()[{index}]", f"key {index} of a dictionary")
        )
        items.append([label, _KNOWN.get(type(item), _other)(run, item, path + step_to(key), depth + 1)])
    return run.keep(value, {"dict": items})


def _refused(value: Any, depth: int) -> Spec:
    return skipped(value, "it is nested too deeply" if depth > DEEPEST else f"it has more than {MOST} parts")


def _met(run: _Run, value: Any, spec: Spec) -> Spec:
    return skipped(value, "it contains itself") if spec is None else run.again(spec)


def _tensor(run: _Run, value: torch.Tensor, path: str, depth: int) -> Spec:  # noqa: ARG001  as its neighbours
    if not run.exact:
        return _any_tensor(run, value, path)
    if (found := run.seen.get(id(value))) is not None:
        return run.again(found[1])
    usual = type(value) is torch.Tensor and is_usual(value)
    spec = run.put(value, path) if usual else _any_tensor(run, value, path)
    run.seen[id(value)] = value, spec
    return spec


def _any_tensor(run: _Run, value: torch.Tensor, path: str) -> Spec:
    apart, stored = None, value
    extra: Spec = {}
    with torch._C.DisableTorchFunction():  # noqa: SLF001  a subclass has no say in how it is read
        try:
            if not_storable(value) is None or value.dtype in SHELLS:
                stored, extra = held(value, exact=run.exact)
            else:
                apart = parts(value, exact=run.exact)
        except Exception:  # noqa: BLE001, S110  a tensor that can't be asked; `put` has the last word
            pass
        if apart is not None:
            return _parts(run, value, apart, path)
        spec = run.put(stored, path)
    return {**spec, **extra} if extra and "tensor" in spec else spec


def _parts(run: _Run, value: torch.Tensor, apart: tuple[str, Spec], path: str) -> Spec:
    tag, form = apart
    inner = _Run(run.put, exact=False)  # the tensor is rebuilt from copies of its parts
    found: Spec = {}
    for name, part in form.items():
        if isinstance(part, torch.Tensor):
            found[name] = _any_tensor(inner, part, f"{path}.{name}")
        elif isinstance(part, tuple):
            found[name] = [_any_tensor(inner, row, f"{path}[{index}]") for index, row in enumerate(part)]
        else:
            found[name] = part
    specs = [*found.values(), *found.get("rows", ())]
    missing = next((spec for spec in specs if isinstance(spec, dict) and "skipped" in spec), None)
    if missing is not None:
        return skipped(value, missing["reason"])
    return {tag: found, "requires_grad": True} if run.exact and value.requires_grad else {tag: found}


def _other(run: _Run, value: Any, path: str, depth: int) -> Spec:
    """The spec of a value of no common class; whatever asks the value stands in the `try`."""
    cls = type(value)
    if issubclass(cls, torch.Tensor):
        return _tensor(run, value, path, depth)
    if (found := run.seen.get(id(value))) is not None:
        return _met(run, value, found[1])
    run.count_copy(value)
    form: tuple[torch.Tensor, Spec] | str | None = None
    details: Spec = {}
    children_: list[Child] = []
    tag = ""
    try:
        if issubclass(cls, np.ndarray | np.generic) and not issubclass(cls, np.ma.MaskedArray):
            form = array_form(value, exact=run.exact)
        elif (leaf := _leaf(run, value)) is not None:
            return leaf
        else:
            tag, steps = children(value) or ("", iter(()))
            children_ = list(itertools.islice(steps, run.left + 1))
            details = _details(value) if tag else {}
    except Exception as error:  # noqa: BLE001  a class of the user's that won't be read is no reason to end the run
        return skipped(value, f"reading it raised {type(error).__name__}")
    if form is not None:
        return _array(run, value, form, path)
    if not tag:
        return skipped(value, UNKNOWN)
    run.count(value, path, len(children_), sum(len(step) for step, _, _ in children_))
    if depth > DEEPEST or run.left < 0:
        return _refused(value, depth)
    run.seen[id(value)] = value, None
    return run.keep(value, _container(run, tag, children_, path, depth + 1) | details)


def _container(run: _Run, tag: str, found: list[Child], path: str, depth: int) -> Spec:
    items: list[Spec] = []
    attributes: list[Spec] = []
    for index, (step, key, child) in enumerate(found):
        if tag == "set" and step.startswith("["):
            items.append([index, _hashed(run, child, path + step, f"element {index} of a set")])
            continue
        label = _hashed(run, key, f"{path}.keys()[{index}]", f"key {index} of a dictionary")
        besides = step.startswith(".") and tag not in ("fields", "state")
        (attributes if besides else items).append(
            [label, _KNOWN.get(type(child), _other)(run, child, path + step, depth)]
        )
    return {tag: items, "attributes": attributes} if attributes else {tag: items}


def _hashed(run: _Run, value: Any, path: str, place: str) -> Spec:
    """What a dictionary or a set holds by its hash: shallow, and never shared, or hashing it could take for ever."""
    if type(value) in (int, str):
        return _KNOWN.get(type(value), _other)(run, value, path, 0)
    inner = _Run(run.put, exact=False)
    inner.left, inner.met = run.left, run.met
    # A scalar of numpy is found by the same look-ups as Python's.
    plain = value.item() if issubclass(type(value), np.generic) else value
    spec = _KNOWN.get(type(plain), _other)(inner, plain, path, DEEPEST - 2)
    run.left = inner.left
    # With its place, as two of them must not become one.
    return skipped(value, f"it is {place}") if isinstance(spec, dict) and "skipped" in spec else spec


def _array(run: _Run, value: Any, form: tuple[torch.Tensor, Spec] | str, path: str) -> Spec:
    if isinstance(form, str):
        return skipped(value, form)
    spec = {"numpy": run.put(form[0], path), **form[1]}
    return spec if issubclass(type(value), np.generic) else run.keep(value, spec)


def _leaf(run: _Run, value: Any) -> Spec:
    """The spec of what holds nothing and is no array; None for anything else."""
    cls = type(value)
    if issubclass(cls, enum.Enum):
        return _enum(cls, value)
    for base, plain, encoder in _SUBCLASSED:
        if issubclass(cls, base):  # a subclass adds nothing that a model computes with, and may lie
            return encoder(run, plain(value), "", 0)
    if value is Ellipsis or value is NotImplemented:
        return {"constant": str(value)}
    if issubclass(cls, type) and is_state_holder(value):  # an empty cache knows the class of its layers to come
        return {"type": type_name(value)}
    if cls in (slice, range):
        ends = [value.start, value.stop, value.step]
        if all(end is None or type(end) in (int, bool) for end in ends):
            return {cls.__name__: [end if end is None else _int(run, int(end), "", 0) for end in ends]}
    return _torch(cls, value)


def _torch(cls: type, value: Any) -> Spec:
    if issubclass(cls, torch.Size):
        return {"size": [int(dim) for dim in value]}
    if issubclass(cls, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    return {"device": str(value)} if issubclass(cls, torch.device) else None


def _enum(cls: type[enum.Enum], value: Any) -> Spec:
    if value._name_ in cls.__members__:
        return {"enum": value._name_, "class": type_name(cls)}
    if issubclass(cls, enum.Flag) and isinstance(value._value_, int):  # several at once, or none
        return {"enum": int(value._value_), "class": type_name(cls)}
    return skipped(value, UNKNOWN)


def _details(value: Any) -> Spec:
    """What a container's spec says besides its items."""
    cls = type(value)
    if cls is Foreign:
        return {"class": value.type_name}
    found: Spec = {} if cls in (tuple, list, dict, set) else {"class": type_name(cls)}
    if issubclass(cls, deque) and value.maxlen is not None:
        found["maxlen"] = value.maxlen
    if issubclass(cls, defaultdict) and any(value.default_factory is factory for factory in FACTORIES.values()):
        found["factory"] = type_name(value.default_factory)
    return found


_Encoder = Callable[[_Run, Any, str, int], Spec]
_KNOWN: dict[type, _Encoder] = {
    torch.Tensor: _tensor, torch.nn.Parameter: _tensor, tuple: _tuple, list: _list, dict: _dict, type(None): _same,
    bool: _same, int: _int, float: _float, str: _same, complex: _complex,
}  # fmt: skip
_SUBCLASSED: tuple[tuple[type, Callable[[Any], Any], _Encoder], ...] = (
    (int, int.__int__, _int),
    (float, float.__float__, _float),
    (complex, complex.__complex__, _complex),
    (str, str.__str__, _same),
    (bytes, bytes.hex, lambda _run, text, _path, _depth: {"bytes": text}),
    (bytearray, bytearray.hex, lambda _run, text, _path, _depth: {"bytes": text, "class": "builtins:bytearray"}),
)
