"""Note the layout of plain tensors that `DTensor.from_local` takes or `DTensor.to_local` returns.

Modules that tensor parallelism wraps receive and return plain tensors: only these conversions know how they belong to a
global tensor. While a capture runs, both methods are replaced by functions that call them and note what they convert.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from ..values._sharding import Sharding, sharding_of

_METHODS = ("from_local", "to_local")
_active: "set[PlacementTags]" = set()
_originals: dict[str, Any] = {}  # the methods of `DTensor` as they were, while they are replaced
_lock = threading.Lock()
_T = TypeVar("_T")


class _ByTensor(Generic[_T]):
    """A dictionary by the identity of tensors that doesn't keep them alive; much faster than `WeakIdKeyDictionary`."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[_T, Any]] = {}  # with the weak reference that removes the entry

    def get(self, tensor: torch.Tensor) -> _T | None:
        """Return the value of a tensor."""
        entry = self._entries.get(id(tensor))
        return None if entry is None else entry[0]

    def set(self, tensor: torch.Tensor, value: _T) -> None:
        """Set the value of a tensor."""
        entries, identity = self._entries, id(tensor)
        entries[identity] = value, weakref.ref(tensor, lambda _: entries.pop(identity, None))


class PlacementTags:
    """The layouts of the stored tensors of one capture.

    Attributes:
        shardings: the layouts of plain tensors by the reference of the stored tensor.
    """

    def __init__(self) -> None:
        self.shardings: dict[int, Sharding] = {}
        self._layouts: _ByTensor[Sharding] = _ByTensor()
        self._references: _ByTensor[int] = _ByTensor()  # of the stored tensors

    def start(self) -> None:
        """Replace the methods of `DTensor`, unless another capture has."""
        with _lock:
            _active.add(self)
            dtensor: Any = sys.modules["torch.distributed.tensor"].DTensor
            if not _originals:
                _originals.update({name: vars(dtensor)[name] for name in _METHODS})
                dtensor.from_local = staticmethod(_noting_from_local(dtensor.from_local))
                dtensor.to_local = _noting_to_local(dtensor.to_local)

    def stop(self) -> None:
        """Restore the methods after the last capture."""
        with _lock:
            _active.discard(self)
            if not _active:
                dtensor: Any = sys.modules["torch.distributed.tensor"].DTensor
                for name, method in _originals.items():
                    setattr(dtensor, name, method)
                _originals.clear()

    def layout(self, tensor: torch.Tensor) -> Sharding | None:
        """Return the layout of a plain tensor, if it is known."""
        return self._layouts.get(tensor)

    def stored(self, tensor: torch.Tensor, reference: int) -> None:
        """Note that a tensor is stored as `reference`."""
        self._references.set(tensor, reference)
        if (sharding := self.layout(tensor)) is not None:
            self.shardings.setdefault(reference, sharding)

    def tag(self, tensor: torch.Tensor, sharding: Sharding) -> None:
        """Note the layout of a plain tensor; the first one that is noted remains."""
        if (known := self._layouts.get(tensor)) is None:
            self._layouts.set(tensor, sharding)
        sharding = known or sharding
        if (reference := self._references.get(tensor)) is not None:
            self.shardings.setdefault(reference, sharding)


def create_placement_tags() -> PlacementTags | None:
    """Return the layouts for a capture; None in a process that has no process group or no DTensor."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    has_dtensors = hasattr(sys.modules.get("torch.distributed.tensor"), "DTensor")
    return PlacementTags() if distributed and has_dtensors else None


def _noting_from_local(from_local: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(from_local)
    def noting(local_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = from_local(local_tensor, *args, **kwargs)
        _note(local_tensor, result, "from_local")
        return result

    return noting


def _noting_to_local(to_local: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(to_local)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = to_local(self, *args, **kwargs)
        _note(result, self, "to_local")
        return result

    return noting


def _note(plain: torch.Tensor, distributed: Any, source: str) -> None:
    """Note the layout of `distributed` for a plain tensor, in all captures."""
    if torch.compiler.is_compiling() or hasattr(plain, "_spec"):  # a DTensor has its own layout
        return
    spec = distributed._spec  # noqa: SLF001  modes see the attributes of a tensor, but not these
    sharding = sharding_of(spec.mesh, spec.placements, spec.shape, source)
    if sharding is not None:  # None: `sharding_of` does not know a placement
        for tags in tuple(_active):
            tags.tag(plain, sharding)
            if (pending := getattr(plain, "elem", None)) is not None:  # of an AsyncCollectiveTensor
                tags.tag(pending, sharding)
