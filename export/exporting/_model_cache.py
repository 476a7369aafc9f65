"""Find the cache of a language model: the argument that takes it, and where its results hold it."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import torch
from torch import nn

from filch.steal.private import _transformers

_USUAL = ("cache", "past_key_values", "cache_params")  # what transformers calls it, since 5.24 and before
_TYPE = re.compile(r"\b\w*Cache\b")


def cache_argument(model: nn.Module, kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Return the name of the argument that takes the cache of a language model; None if there is none.

    The annotation of an argument says that it is a `Cache` of transformers, else the model itself does
    (`_skip_keys_device_placement`), else the name is one that transformers uses. If nothing says so, the model is
    called: it returns a `Cache` by the name of an argument, or the one that it is given.

    Args:
        model: the model.
        kwargs: the keyword arguments of a call without a cache; None if the model must not be called.
    """
    parameters = _parameters(model)
    typed = [name for name, item in parameters.items() if _is_cache_type(item.annotation)]
    skipped = getattr(model, "_skip_keys_device_placement", None) or ()
    stated = [*([skipped] if isinstance(skipped, str) else skipped), *_USUAL]
    # One whose default is a boolean is a flag.
    named = [name for name in stated if name in parameters and not isinstance(parameters[name].default, bool)]
    found = [name for name in named if name in typed] or typed or named
    if found or kwargs is None:
        return found[0] if found else None
    options = {"use_cache": True} if "use_cache" in parameters else {}
    return _argument_by_calls(model, parameters, {**kwargs, **options})


def _argument_by_calls(
    model: nn.Module, parameters: Mapping[str, inspect.Parameter], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the name of an argument that a returned cache has, too, or for which a model returns the cache given."""
    held = [name for name, item in _call(model, kwargs) if is_cache(item)]
    untyped = [name for name, item in parameters.items() if item.annotation is item.empty and item.default is None]
    for name in [name for name in untyped if held and name not in kwargs]:  # `held`: it returns a cache at all
        cache = _transformers.DynamicCache()
        if name in held or any(item is cache for _, item in _call(model, {**kwargs, name: cache})):
            return name
    return None


def _call(model: nn.Module, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the items of what a model returns, by name or position; none if it fails."""
    try:
        with torch.no_grad():
            return list(_fields(model(**kwargs)))
    except Exception:  # noqa: BLE001  models raise errors of all types; whoever makes the call in earnest sees them
        return []


def returned_cache(output: Any, argument: str | None) -> Any:
    """Return the cache among the results of a language model; None if there is none.

    Args:
        output: what the model returned.
        argument: the name of the argument that takes the cache; its result may have the same name.
    """
    fields = dict(_fields(output))
    by_name = (fields.get(name) for name in (argument, *_USUAL) if name is not None)
    return next((item for item in (*by_name, *filter(is_cache, fields.values())) if item is not None), None)


def logits_of(output: Any) -> Any:
    """Return the logits among the results of a language model: `logits`, the first of a tuple, or the result itself."""
    fields = dict(_fields(output))
    return fields.get("logits", fields.get("0", output))


def is_cache(value: object) -> bool:
    """Return whether a value is a `Cache` of transformers, without importing that library."""
    return isinstance(value, _cache_class() or ())


def _cache_class() -> type | None:
    """Return the class `Cache` of transformers; None if that library is not imported."""
    cache: type | None = _transformers.NAMES.loaded("Cache")
    return cache


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward by name, with annotations that are text evaluated if possible."""
    try:
        return inspect.signature(model.forward, eval_str=True).parameters
    except (AttributeError, NameError, SyntaxError, TypeError):  # an annotation is text that can't be evaluated
        return inspect.signature(model.forward).parameters


def _is_cache_type(annotation: Any) -> bool:
    """Whether an annotation is or contains a class of caches; one that can't be resolved is judged by its text."""
    if isinstance(annotation, str):
        return _TYPE.search(annotation) is not None
    cache = _cache_class()
    if isinstance(annotation, type) and cache is not None:
        return issubclass(annotation, cache)
    return any(map(_is_cache_type, get_args(annotation)))


def _fields(output: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of what a model returned, by name or position: of a mapping, a tuple or list, or an object."""
    if isinstance(output, Mapping):
        yield from output.items()
    elif isinstance(output, tuple | list):
        names = getattr(output, "_fields", map(str, range(len(output))))
        yield from zip(names, output, strict=True)
    elif not isinstance(output, torch.Tensor):
        yield from getattr(output, "__dict__", {}).items()
