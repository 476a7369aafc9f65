"""Backends by name; each is imported when it is asked for."""

from typing import Any, get_args

from .._errors import BackendError
from ..common._extensions import Extensions
from ._backend import Backend, Stage
from ._option_text import unknown_option

_OWN = {
    "eager": "._eager:eager",
    "inductor": ".inductor._backend:inductor",
    "onnxruntime-cpu": ".onnxruntime._devices:cpu",
    "onnxruntime-cuda": ".onnxruntime._devices:cuda",
    "onnxruntime-tensorrt": ".onnxruntime._devices:tensorrt",
    "openvino": ".openvino._backend:OpenVinoBackend",
    "reference": "._reference:ReferenceBackend",
}
_BACKENDS = Extensions("backend", __package__, _OWN, BackendError, extras={"openvino": "filch[openvino]"})


def backend_names() -> list[str]:
    """The names that `get_backend` knows."""
    return _BACKENDS.names()


def get_backend(name: str, **options: Any) -> Backend:
    """Make a backend.

    Args:
        name: one of `backend_names()`.
        options: what the backend takes (`dtype="float16"` for `eager`).

    Raises:
        BackendError: there is none of this name, its library or device is missing, or it is no backend.
    """
    factory = _BACKENDS.find(name)
    if wrong := unknown_option(factory, options):
        raise BackendError(f"backend {name!r} {wrong}")
    try:
        made = factory(**options)
    except TypeError as error:
        raise BackendError(f"backend {name!r} does not take these options: {error}") from error
    return _checked(name, made)


def _checked(name: str, made: Any) -> Backend:
    """What was made, if it is a backend as far as one can see without running it."""
    kind = f"backend {name!r}, a {type(made).__name__},"
    wanted = "a backend has `name`, `stages`, `compile` and `run` (see filch.export.backends.Backend)"
    missing = [part for part in ("name", "stages", "compile", "run") if not hasattr(made, part)]
    missing += [part for part in ("compile", "run") if part not in missing and not callable(getattr(made, part))]
    if missing:
        raise BackendError(f"{kind} has no {' and no '.join(f'`{part}`' for part in missing)}: {wanted}")
    stages = made.stages
    if not isinstance(stages, tuple) or not stages or not {*stages} <= {*get_args(Stage)}:
        known = " and ".join(map(repr, get_args(Stage)))
        raise BackendError(f"{kind} has `stages` {stages!r}: it is a tuple of {known}, or of one of them")
    return made  # type: ignore[no-any-return]
