"""Backends by name; each is imported when it is asked for."""

import difflib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from .._errors import BackendError
from ._backend import Backend

_OWN = {
    "eager": "._eager:EagerBackend",
    "inductor": "._inductor:inductor",
    "onnxruntime-cpu": "._onnxruntime:cpu",
    "onnxruntime-cuda": "._onnxruntime:cuda",
    "reference": "._reference:ReferenceBackend",
}


def backend_names() -> list[str]:
    """The names that `get_backend` knows."""
    return sorted({*_OWN, *(entry.name for entry in entry_points(group="filch.backends"))})


def get_backend(name: str, **options: Any) -> Backend:
    """Make a backend.

    Args:
        name: one of `backend_names()`.
        options: what the backend takes (`dtype=torch.float16` for `eager`).

    Raises:
        BackendError: there is none of this name, or its library or device is missing.
    """
    factory = _factory(name)
    try:
        made: Backend = factory(**options)
    except TypeError as error:
        raise BackendError(f"backend {name!r} does not take these options: {error}") from error
    return made


def _factory(name: str) -> Callable[..., Backend]:
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        return getattr(import_module(module, __package__), attribute)  # type: ignore[no-any-return]
    for entry in entry_points(group="filch.backends", name=name):
        return entry.load()  # type: ignore[no-any-return]
    close = difflib.get_close_matches(name, backend_names(), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(backend_names())}"
    raise BackendError(f"there is no backend {name!r}; {hint}")
