"""Backends by name; each is imported on first use."""

from typing import Any, get_args

from .._errors import BackendError
from ..common._extensions import Extensions
from ..common._onnxruntime import require_onnxruntime
from ._backend import Backend, Stage
from ._option_text import unknown_option

_BUILT_IN = {
    "eager": "._eager:eager",
    "inductor": ".inductor._backend:inductor",
    "onnxruntime-cpu": ".onnxruntime._devices:cpu",
    "onnxruntime-cuda": ".onnxruntime._devices:cuda",
    "onnxruntime-tensorrt": ".onnxruntime._devices:tensorrt",
    "openvino": ".openvino._backend:OpenVinoBackend",
    "reference": "._reference:ReferenceBackend",
}
_BACKENDS = Extensions("backend", __package__, _BUILT_IN, BackendError, extras={"openvino": "filch[openvino]"})


def backend_names() -> list[str]:
    """Return the names that `get_backend` accepts."""
    return _BACKENDS.names()


def get_backend(name: str, **options: Any) -> Backend:
    """Make a backend.

    Args:
        name: one of `backend_names()`.
        options: options of the backend (`dtype="float16"` for `eager`).

    Raises:
        BackendError: there is no backend of this name, its library or device is missing, or the object does not have
            the attributes of a backend.
    """
    if _BUILT_IN.get(name, "").startswith(".onnxruntime."):
        require_onnxruntime(f"backend {name!r}", BackendError)
    factory = _BACKENDS.find(name)
    if wrong := unknown_option(factory, options):
        raise BackendError(f"backend {name!r} {wrong}")
    try:
        backend: Any = factory(**options)
    except TypeError as error:
        raise BackendError(f"backend {name!r} does not take these options: {error}") from error
    kind = f"backend {name!r}, a {type(backend).__name__},"
    missing = [f"`{part}`" for part in ("name", "stages") if not hasattr(backend, part)]
    missing += [f"`{part}`" for part in ("compile", "run") if not callable(getattr(backend, part, None))]
    if missing:
        expected = "a backend has `name`, `stages`, `compile` and `run` (see filch.export.backends.Backend)"
        raise BackendError(f"{kind} has no {' and no '.join(missing)}: {expected}")
    stages, known = backend.stages, get_args(Stage)
    if not isinstance(stages, tuple) or not stages or not {*stages} <= {*known}:
        names = " and ".join(map(repr, known))
        raise BackendError(f"{kind} has `stages` {stages!r}: it is a tuple of {names}, or of one of them")
    return backend  # type: ignore[no-any-return]
