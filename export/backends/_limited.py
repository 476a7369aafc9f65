"""Time limits for the methods of a backend."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, cast

from ..common._time_limit import COMPILING, limited, limited_steps
from ._backend import Backend

_RUNS = {"run": "to run the program", "run_in": "to run the program", "profile": "to run the program"}
_RUNS |= {"reference": "to compute its references"}
_COMPILES = {"compile": "to compile the program", "compile_without": "to compile the program"}
_STEPS = {"observe": "to run a part of the program", "isolate": "to run a part of the program"}


class LimitedBackend:
    """A backend whose methods raise an error if they exceed the `TimeLimit` in force.

    Args:
        backend: the backend to limit; the optional protocols that it implements stay.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.stages = backend.name, backend.stages
        for name in (*_RUNS, *_COMPILES, *_STEPS, "script", "compile_graph"):
            if hasattr(backend, name):  # set as attributes, because `isinstance` looks for them
                setattr(self, name, self._limited(name, getattr(backend, name)))

    def __getattr__(self, name: str) -> Any:
        if name == "_backend":  # asked for during unpickling, when it is not set yet
            raise AttributeError(name)
        return getattr(self._backend, name)

    def __repr__(self) -> str:
        return repr(self._backend)

    def _limited(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        what = f"backend {self.name!r}"
        if name in _STEPS:
            return self._limited_iterator(what, _STEPS[name], method)
        doing = {**_RUNS, **_COMPILES}.get(name)
        if doing is None:
            return method

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with limited(what, doing, times=COMPILING if name in _COMPILES else 1.0):
                return method(*args, **kwargs)

        return call

    @staticmethod
    def _limited_iterator(what: str, doing: str, method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with limited(what, doing):  # `method` may compute something before it returns the iterator
                steps = method(*args, **kwargs)
            return limited_steps(steps, what, doing)

        return call


def limit_backend(backend: Backend) -> Backend:
    """Return the backend with its methods limited by the `TimeLimit` in force."""
    return backend if isinstance(backend, LimitedBackend) else cast("Backend", LimitedBackend(backend))
