"""Generate inputs of other sizes that are distributed like given ones."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..common._errors import CompareError
from ._subject import Subject

_SEED = 0


def dimension_names(shapes: Any) -> list[str]:
    """Return the names of the dimensions in dynamic shapes for `torch.export.export`, in order."""
    names = map(_name, pytree.tree_leaves(shapes))
    return list(dict.fromkeys(name for name in names if name is not None))


def _name(dimension: Any) -> str | None:
    """Return the name of a `torch.export.Dim` or of a string; None for `Dim.AUTO`, a number or None."""
    name = dimension if isinstance(dimension, str) else getattr(dimension, "__name__", None)
    return name if isinstance(name, str) else None


def resized(subject: Subject, sizes: Mapping[str, int]) -> Subject:
    """Return the same model with random inputs of other sizes, distributed like the given ones.

    Integers are drawn between the example's minimum and maximum, so that a mask of ones stays one; floating-point
    numbers have its mean and standard deviation, booleans its share of True. Equal sizes give equal numbers.

    Args:
        subject: with dynamic shapes that name their dimensions.
        sizes: the size of each dimension, by name; other dimensions keep their sizes.

    Raises:
        CompareError: an argument is in a container other than list, tuple or dict.
    """
    generator = torch.Generator().manual_seed(_SEED)
    signature = inspect.signature(subject.model.forward)
    bound = signature.bind(*subject.args, **subject.kwargs)
    shapes = subject.dynamic_shapes
    if not isinstance(shapes, Mapping):
        shapes = dict(zip(bound.arguments, shapes, strict=False))
    for name, value in bound.arguments.items():
        own_shapes = shapes.get(name)
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD and own_shapes is None:
            own_shapes = shapes  # torch has the shapes of **kwargs at the top level, too
        bound.arguments[name] = _resize(value, own_shapes, sizes, generator)
    return replace(subject, args=bound.args, kwargs=bound.kwargs)


def _resize(value: Any, shapes: Any, sizes: Mapping[str, int], generator: torch.Generator) -> Any:
    if not shapes or not dimension_names(shapes):
        return value
    if isinstance(value, torch.Tensor):
        dims = dict(shapes) if isinstance(shapes, Mapping) else dict(enumerate(shapes))
        shape = [sizes.get(_name(dims.get(index)) or "", length) for index, length in enumerate(value.shape)]
        return _random_like(value, shape, generator)
    if isinstance(value, dict):
        return {key: _resize(item, shapes.get(key), sizes, generator) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resize(*pair, sizes, generator) for pair in zip(value, shapes, strict=True))
    kind = type(value).__name__
    raise CompareError(f"can't make a {kind} of other sizes: let the factory take {', '.join(sizes)} as arguments")


def _random_like(example: torch.Tensor, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    """Return random numbers with the mean and standard deviation, or the range, of an example."""
    if list(example.shape) == shape or not example.numel():
        return example.new_zeros(shape) if not example.numel() else example
    if example.is_floating_point() or example.is_complex():
        precise = example.detach().cpu().to(torch.complex128 if example.is_complex() else torch.float64)
        drawn = torch.randn(shape, generator=generator, dtype=precise.dtype)
        numbers = drawn * precise.std(correction=0) + precise.mean()
    elif example.dtype == torch.bool:
        numbers = torch.rand(shape, generator=generator) < example.double().mean().item()
    else:
        numbers = torch.randint(int(example.min()), int(example.max()) + 1, shape, generator=generator)
    return numbers.to(device=example.device, dtype=example.dtype)
