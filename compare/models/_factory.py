"""Load the models that are named on the command line."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from filch.steal import phase

from ..common._errors import CompareError
from ._subject import Subject

_MAX_FUNCTIONS = 5  # in an error message


@dataclass(frozen=True)
class Factory:
    """A function that returns a model and its arguments.

    Attributes:
        name: as on the command line.
        function: returns `(model, args[, kwargs[, dynamic_shapes]])`.
    """

    name: str
    function: Callable[..., Any]

    def make(self, **sizes: int) -> Subject:
        """Call the function and return the model with its arguments.

        Raises:
            CompareError: it raises, or returns something else.
        """
        return self.subject_of(self.call(**sizes))

    def call(self, **sizes: int) -> Any:
        """Return what the function returns.

        Raises:
            CompareError: it raises.
        """
        try:
            with phase("making the model"):
                return self.function(**sizes)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit, and what pytest raises to skip or fail
            raise CompareError(f"the factory {self.name!r} raised {type(error).__name__}: {error}") from error

    def subject_of(self, result: Any) -> Subject:
        """Return the model with its arguments that the function has returned.

        Raises:
            CompareError: it is something else.
        """
        if not isinstance(result, tuple | list) or not 2 <= len(result) <= 4:
            raise CompareError(
                f"the factory {self.name!r} has to return (model, args[, kwargs[, dynamic_shapes]]), "
                f"not {type(result).__name__}"
            )
        model, args, kwargs, dynamic_shapes = (*result, None, None)[:4]
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise CompareError(f"the factory {self.name!r} has to return a torch.nn.Module first, not {kind}")
        if not isinstance(kwargs, Mapping | None):
            raise CompareError(
                f"the third item that the factory {self.name!r} returns has to be a mapping of keyword arguments, "
                f"not {type(kwargs).__name__}"
            )
        return Subject.of(model, args, kwargs, dynamic_shapes)


def find_factory(name: str) -> Factory:
    """Return the factory called `package.module:factory` or `path.py:factory`.

    Raises:
        CompareError: there is no such module, file or function, or the import fails.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place:
        raise CompareError(f"a model is named as package.module:factory or path.py:factory, not {name!r}")
    try:
        module = _load_file(place) if place.endswith(".py") else _load_module(place)
    except (CompareError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise CompareError(f"can't import {place!r}: {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        own = [known for known, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        functions = [known for known in own if not known.startswith("_")][:_MAX_FUNCTIONS]
        hint = f"; it has {', '.join(map(repr, functions))}" if functions else ""
        if close := get_close_matches(attribute, own, n=1):
            hint = f"; did you mean {close[0]!r}?"
        raise CompareError(f"{place!r} has no function {attribute!r}{hint}")
    return Factory(name, function)


def make_subject(name: str) -> Subject:
    """Return the model of a factory (see `find_factory`)."""
    return find_factory(name).make()


def _load_module(name: str) -> ModuleType:
    """Import a module by its name, also from the current folder."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(name)


def _load_file(place: str) -> ModuleType:
    """Import a Python file by its path; its folder becomes importable, as for a script."""
    path = Path(os.path.realpath(place))  # `resolve` raises RuntimeError where links form a loop
    if not path.is_file():
        raise CompareError(f"there is no file {place!r}")
    sys.path.insert(0, str(path.parent))
    # The prefix keeps a user's export.py apart from other modules of that name.
    spec = importlib.util.spec_from_file_location(f"filch_factory_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CompareError(f"{place!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look it up
    spec.loader.exec_module(module)
    return module
