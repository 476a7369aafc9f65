"""The model of a factory at other sizes, in another dtype or on another device."""

import inspect
from collections.abc import Mapping
from dataclasses import replace

from ..common._errors import CompareError
from ._convert import converted, find_device, find_dtype
from ._factory import find_factory
from ._resize import dimension_names, resized
from ._subject import Subject


def make_variant(
    factory: str, *, sizes: Mapping[str, int], dtype: str | None = None, device: str | None = None
) -> tuple[Subject, Subject]:
    """Return the subject to export, and the one to record: the same model with inputs of the given sizes.

    Args:
        factory: see `find_factory`.
        sizes: the size of each dynamic dimension, by its name. A factory that takes these names as arguments is called
            with them, otherwise inputs are generated (see `resized`).
        dtype: the torch dtype to which the model and its floating-point inputs are cast; None casts nothing.
        device: the torch device on which the model runs; None moves nothing.
    """
    maker = find_factory(factory)
    target = None if dtype is None else find_dtype(dtype), None if device is None else find_device(device)
    subject = converted(maker.make(), *target)
    if not sizes:
        return subject, subject
    known = dimension_names(subject.dynamic_shapes)
    if unknown := next((name for name in sizes if name not in known), None):
        raise CompareError(f"{factory!r} has no dynamic dimension {unknown!r}: there are {', '.join(known) or 'none'}")
    taken = inspect.signature(maker.function).parameters
    is_made = all(name in taken for name in sizes)
    sized = converted(maker.make(**sizes), *target) if is_made else resized(subject, sizes)
    return subject, replace(subject, args=sized.args, kwargs=sized.kwargs)
