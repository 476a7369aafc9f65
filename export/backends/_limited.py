"""Time limits for the methods of a backend."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, cast

from ..common._time_limit import COMPILING, limited, limited_steps
from ._backend import Backend

# What each method does, for error messages, and how many times the limit it may take.
_METHODS = {
    "compile": ("to compile the program", COMPILING),
    "compile_without": ("to compile the program", COMPILING),
    "run": ("to run the program", 1.0),
    "run_in": ("to run the program", 1.0),
    "profile": ("to run the program", 1.0),
    "reference": ("to compute its references", 1.0),
}
_ITERATORS = ("observe", "isolate")
_UNLIMITED = ("script", "compile_graph", "compile_graph_without")


class LimitedBackend:
    """A backend whose methods raise an error if they exceed the `TimeLimit` in force.

    Args:
        backend: the backend to limit; the optional protocols that it implements stay.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.stages = backend.name, backend.stages
        for name in (*_METHODS, *_ITERATORS, *_UNLIMITED):
            if hasattr(backend, name):  # set as attributes, because `isinstance` looks for them
                setattr(self, name, self._limited(name, getattr(backend, name)))

    def __getattr__(self, name: str) -> Any:
        if name == "_backend":  # looked up during unpickling, when it is not set yet
            raise AttributeError(name)
        return getattr(self._backend, name)

    def __repr__(self) -> str:
        return repr(self._backend)

    def _limited(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that raises an error if a call, or the next item of an iterator, takes too long.

        One of `_UNLIMITED` is returned unchanged.
        """
        what = f"backend {self.name!r}"

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            action, times = _METHODS[name]
            with limited(what, action, times=times):
                return method(*args, **kwargs)

        @wraps(method)
        def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            action = "to run a part of the program"
            with limited(what, action):  # `method` may compute something before it returns the iterator
                steps = method(*args, **kwargs)
            return limited_steps(steps, what, action)

        return method if name in _UNLIMITED else iterate if name in _ITERATORS else call


def limit_backend(backend: Backend) -> Backend:
    """Return the backend with its methods limited by the `TimeLimit` in force."""
    return backend if isinstance(backend, LimitedBackend) else cast("Backend", LimitedBackend(backend))
