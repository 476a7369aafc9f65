"""Backends by name; each is imported when it is asked for."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from .._errors import BackendError, reason
from ._backend import Backend, Stage
from ._text import hint, unknown_option

_OWN = {
    "eager": "._eager:eager",
    "inductor": "._inductor:inductor",
    "onnxruntime-cpu": "._ort_devices:cpu",
    "onnxruntime-cuda": "._ort_devices:cuda",
    "onnxruntime-tensorrt": "._ort_devices:tensorrt",
    "openvino": "._openvino:OpenVinoBackend",
    "reference": "._reference:ReferenceBackend",
}
_EXTRAS = {"openvino": "filch[openvino]"}  # what to install where a backend's library is not there


def backend_names() -> list[str]:
    """The names that `get_backend` knows."""
    return sorted({*_OWN, *(entry.name for entry in entry_points(group="filch.backends"))})


def get_backend(name: str, **options: Any) -> Backend:
    """Make a backend.

    Args:
        name: one of `backend_names()`.
        options: what the backend takes (`dtype="float16"` for `eager`).

    Raises:
        BackendError: there is none of this name, its library or device is missing, or it is no backend.
    """
    factory = _factory(name)
    if wrong := unknown_option(factory, options):
        raise BackendError(f"backend {name!r} {wrong}")
    try:
        made = factory(**options)
    except TypeError as error:
        raise BackendError(f"backend {name!r} does not take these options: {error}") from error
    return _checked(name, made)


def _factory(name: str) -> Callable[..., Any]:
    foreign = [*entry_points(group="filch.backends", name=name)]
    if foreign and len(foreign) + (name in _OWN) > 1:
        packages = [_package(entry) for entry in foreign]
        owners = " and ".join(sorted({*packages, *(["filch itself"] if name in _OWN else [])}))
        raise BackendError(f"backend {name!r} is not one but several, of {owners}: rename or uninstall all but one")
    if foreign:
        return _loaded(foreign[0])
    if name in _OWN:
        return _own(name)
    raise BackendError(f"there is no backend {name!r}; {hint(name, backend_names())}")


def _own(name: str) -> Callable[..., Any]:
    module, _, attribute = _OWN[name].partition(":")
    try:
        return getattr(import_module(module, __package__), attribute)  # type: ignore[no-any-return]
    except ImportError as error:
        if name not in _EXTRAS:
            raise
        raise BackendError(
            f"backend {name!r} needs {error.name or name}, which can't be imported ({reason(error)}): "
            f"pip install '{_EXTRAS[name]}'"
        ) from error


def _loaded(entry: EntryPoint) -> Callable[..., Any]:
    try:
        return entry.load()  # type: ignore[no-any-return]
    except Exception as error:
        told = f"({entry.value}) can't be loaded: {reason(error)}"
        raise BackendError(f"backend {entry.name!r} of {_package(entry)} {told}") from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value.partition(":")[0]


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
