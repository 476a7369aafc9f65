"""The model of a factory at other sizes, in another dtype or on another device."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from filch.export.common._suggestions import dtype_hint
from filch.steal.private._torch import pytree

from ..common._errors import CompareError, reason_of
from ._factory import Factory, find_factory
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
    check_sizes(factory, subject, sizes)
    return subject, converted(sized(maker, subject, sizes), *target) if sizes else subject


def check_sizes(factory: str, subject: Subject, sizes: Iterable[str]) -> None:
    """Check that the subject of a factory has dynamic dimensions of these names.

    Raises:
        CompareError: there is none of one of the names.
    """
    known = dimension_names(subject.dynamic_shapes)
    if unknown := next((name for name in sizes if name not in known), None):
        there = f"there are {', '.join(known)}" if known else "the factory returns no named dimensions"
        raise CompareError(f"{factory!r} has no dynamic dimension {unknown!r}: {there}")


def size_arguments(factory: Factory, sizes: Iterable[str]) -> list[str]:
    """Return the sizes that the factory takes as arguments."""
    parameters = inspect.signature(factory.function).parameters
    return [name for name in sizes if name in parameters]


def sized(factory: Factory, subject: Subject, sizes: Mapping[str, int]) -> Subject:
    """Return the same model with inputs of other sizes: of the factory, if it takes all as arguments, or `resized`."""
    is_made = len(size_arguments(factory, sizes)) == len(sizes)
    other = factory.make(**sizes) if is_made else resized(subject, sizes)
    return replace(subject, args=other.args, kwargs=other.kwargs)


def find_dtype(name: str) -> torch.dtype:
    """Return a floating-point dtype by its name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise CompareError(f"a dtype is one like float16, bfloat16, float32 or float64, not {name!r}{dtype_hint(name)}")
    return dtype


def find_device(name: str) -> torch.device:
    """Return a device by its name."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise CompareError(f"a device is one like cpu or cuda:0, not {name!r}") from None


def device_problem(device: torch.device) -> str:
    """Return why torch can't use a device; `""` if it can."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, ImportError, RuntimeError) as error:  # no support in this build, no such device
        return f"torch can't use {str(device)!r}: {reason_of(error).partition('. ')[0]}"
    return f"tensors on {str(device)!r} have no numbers" if device.type == "meta" else ""


def converted(subject: Subject, dtype: torch.dtype | None, device: torch.device | None) -> Subject:
    """Return the model and its inputs on a device, with floating-point tensors cast to a dtype.

    Raises:
        CompareError: torch can't use the device, or can't move or cast the model.
    """
    if device is not None and (problem := device_problem(device)):
        raise CompareError(f"the model can't run there: {problem}; choose another device, or leave it out for the CPU")

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

    to: Callable[..., Any] = subject.model.to  # its overloads accept no None
    try:
        model = to(device=device, dtype=dtype) if dtype or device else subject.model
        args, kwargs = pytree.tree_map_only(torch.Tensor, convert, (subject.args, dict(subject.kwargs)))
    except (RuntimeError, TypeError) as error:  # no memory, no such dtype there; not implemented on the device meta
        goal = " as ".join(str(item) for item in (device or "the same device", dtype) if item)
        raise CompareError(f"the model can't be moved to {goal}: {reason_of(error)}") from error
    return replace(subject, model=model, args=args, kwargs=kwargs)


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
    generator = torch.Generator().manual_seed(0)
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
    """Return an argument with random tensors of other sizes in its containers; see `resized`.

    Args:
        value: the argument.
        shapes: its dynamic shapes, in the same containers; what has none is not changed.
        sizes: the size of each dimension, by name.
        generator: of the random numbers.
    """
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
    if not example.numel():
        return example.new_zeros(shape)
    if list(example.shape) == shape:
        return example
    if example.is_floating_point() or example.is_complex():
        precise = example.detach().cpu().to(torch.complex128 if example.is_complex() else torch.float64)
        drawn = torch.randn(shape, generator=generator, dtype=precise.dtype)
        numbers = drawn * precise.std(correction=0) + precise.mean()
    elif example.dtype == torch.bool:
        numbers = torch.rand(shape, generator=generator) < example.double().mean().item()
    else:
        numbers = torch.randint(int(example.min()), int(example.max()) + 1, shape, generator=generator)
    return numbers.to(device=example.device, dtype=example.dtype)
