"""Compares one program, exported once with dynamic shapes, at many sizes of its inputs."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

from torch import nn

from filch.export.backends import get_backend
from filch.steal import Capture

from .._compare_export import compare_export
from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..models._factory import Factory, find_factory
from ..models._resize import dimension_names, resized
from ..models._subject import Subject
from ..results._cells import Cell, cell_of
from ..results._report import Report


def sweep(
    factory: str,
    sizes: Mapping[str, Sequence[int]],
    *,
    backends: Sequence[str] = ("onnxruntime-cpu",),
    options: Mapping[str, Any] | None = None,
    tolerance: float | Tolerance | None = None,
    lower_precision: bool = False,
    limit: float | None = None,
) -> Iterator[Cell]:
    """Export a model once, and compare it at each combination of sizes, one after the other.

    Args:
        factory: see `find_factory`; its dynamic shapes name their dimensions. If it takes the names as arguments, it
            is called for the inputs of each size (its first model is the one that runs); otherwise these are made like
            its inputs (see `resized`).
        sizes: by the name of the dimension.
        backends: names of backends.
        options: what each of them is made with.
        tolerance: see `compare`.
        lower_precision: see `compare`.
        limit: see `compare`.

    Raises:
        FilchError: there is no such factory, dimension or backend, or the model can't be exported.
    """
    found, engines = find_factory(factory), {name: get_backend(name, **(options or {})) for name in backends}
    asked = _asked(found, sizes)
    # Of size 1 torch would make a constant; the largest one is the least likely to be that.
    subject = found.make(**{name: max(sizes[name]) for name in asked})
    named = dimension_names(subject.dynamic_shapes)
    if unknown := [name for name in sizes if name not in named]:
        there = f"there are {', '.join(named)}" if named else "the factory returns none that are named"
        raise CompareError(f"{factory!r} has no dynamic dimension {unknown[0]!r}: {there}")
    program = subject.export()
    against = partial(
        compare_export, program=program, tolerance=tolerance, lower_precision=lower_precision, limit=limit
    )
    for combination in product(*sizes.values()):
        chosen = dict(zip(sizes, combination, strict=True))
        labels = {name: str(size) for name, size in chosen.items()}
        make = partial(found.make, **chosen) if asked else partial(resized, subject, chosen)
        stolen = cache(partial(_stolen, make, subject.model))
        for name, engine in engines.items():
            told = labels | ({"backend": name} if len(engines) > 1 else {})
            yield cell_of(told, partial(_at_size, stolen, partial(against, backend=engine)))


def _stolen(make: Callable[[], Subject], model: nn.Module) -> Capture:
    return replace(make(), model=model).steal()


def _at_size(stolen: Callable[[], Capture], against: Callable[[Capture], Report]) -> Report:
    return against(stolen())


def _asked(factory: Factory, sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """The sizes that the factory takes: all of them, or none."""
    taken = inspect.signature(factory.function).parameters
    asked = [name for name in sizes if name in taken]
    if asked and len(asked) < len(sizes):
        other = next(name for name in sizes if name not in taken)
        raise CompareError(f"the factory {factory.name!r} takes {asked[0]!r}, and so has to take {other!r}, too")
    return asked
