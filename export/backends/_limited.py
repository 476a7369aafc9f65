"""A backend whose steps are limited in time."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, cast

from ..common._time_limit import COMPILING, limited, limited_steps
from ._backend import Backend

_RUNS = {"run": "to run the program", "run_in": "to run the program", "profile": "to run the program"}
_RUNS |= {"reference": "to say what its values should be"}
_COMPILES = {"compile": "to compile the program", "compile_without": "to compile the program"}
_STEPS = {"observe": "to run a part of the program", "isolate": "to run a part of the program"}


class LimitedBackend:
    """A backend each of whose steps takes no longer than the `TimeLimit` allows that is in force then.

    Args:
        backend: what runs; it has the same abilities as before.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.stages = backend.name, backend.stages
        for name in (*_RUNS, *_COMPILES, *_STEPS, "script", "compile_graph"):
            if hasattr(backend, name):  # as attributes, so that `isinstance` finds the abilities
                setattr(self, name, self._limited(name, getattr(backend, name)))

    def __getattr__(self, name: str) -> Any:
        if name == "_backend":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._backend, name)

    def __repr__(self) -> str:
        return repr(self._backend)

    def _limited(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        what = f"backend {self.name!r}"
        if name in _STEPS:
            return self._each(what, _STEPS[name], method)
        doing = {**_RUNS, **_COMPILES}.get(name)
        if doing is None:
            return method

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with limited(what, doing, times=COMPILING if name in _COMPILES else 1.0):
                return method(*args, **kwargs)

        return call

    @staticmethod
    def _each(what: str, doing: str, method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with limited(what, doing):  # it need not be lazy
                steps = method(*args, **kwargs)
            return limited_steps(steps, what, doing)

        return call


def limit_backend(backend: Backend) -> Backend:
    """The backend with its steps limited by the `TimeLimit` in force."""
    return backend if isinstance(backend, LimitedBackend) else cast("Backend", LimitedBackend(backend))
