"""Compare one program, exported once with dynamic shapes, at several sizes of its inputs."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

from torch import nn

from filch.steal import Capture, phase

from .._compare_export import compare_export
from ..common._errors import CompareError
from ..metrics._tolerance import ToleranceOption
from ..models._factory import Factory, find_factory
from ..models._resize import dimension_names, resized
from ..models._subject import Subject
from ..results._cells import Cell, run_cell
from ..results._report import Report
from ._backends import find_backend


def sweep(
    factory: str,
    sizes: Mapping[str, Sequence[int]],
    *,
    backends: Sequence[str] = ("onnxruntime-cpu",),
    options: Mapping[str, Any] | None = None,
    tolerance: ToleranceOption = None,
    lower_precision: bool = False,
    limit: float | None = None,
    export_sizes: Mapping[str, int] | None = None,
) -> Iterator[Cell]:
    """Export a model once, and compare it at each combination of sizes, one after the other.

    Args:
        factory: see `find_factory`; its dynamic shapes name their dimensions. If it takes these names as arguments, it
            is called for the inputs of each size (but its first model runs); otherwise inputs are generated (see
            `resized`).
        sizes: the sizes of each dimension, by its name.
        backends: names of backends; the status is `missing` if a backend's library or device is not available.
        options: options of each of them.
        tolerance: see `compare`.
        lower_precision: see `compare`.
        limit: see `compare`.
        export_sizes: the sizes that the factory is called with for the model to export, if it takes them; None is the
            largest of each.

    Yields:
        a cell for each comparison.

    Raises:
        FilchError: there is no such factory, dimension or backend, or the model can't be exported.
    """
    maker = find_factory(factory)
    backends_by_name = {name: find_backend(name, options or {}) for name in backends}
    arguments = _size_arguments(maker, sizes)
    # torch specializes size 1; the largest size is the least likely to be 1.
    largest = export_sizes or {name: max(sizes[name]) for name in sizes}
    subject = maker.make(**{name: largest[name] for name in arguments})
    dimensions = dimension_names(subject.dynamic_shapes)
    if unknown := [name for name in sizes if name not in dimensions]:
        known = f"there are {', '.join(dimensions)}" if dimensions else "the factory returns no named dimensions"
        raise CompareError(f"{factory!r} has no dynamic dimension {unknown[0]!r}: {known}")
    compare = partial(
        compare_export, program=subject.export(), tolerance=tolerance, lower_precision=lower_precision, limit=limit
    )
    combinations = [*product(*sizes.values())]
    with phase("cell", len(combinations) * len(backends_by_name)) as progress:
        for combination in combinations:
            chosen = dict(zip(sizes, combination, strict=True))
            labels = {name: str(size) for name, size in chosen.items()}
            make = partial(maker.make, **chosen) if arguments else partial(resized, subject, chosen)
            capture = cache(partial(_capture, make, subject.model))
            for name, backend in backends_by_name.items():
                progress.next(" ".join((*(f"{title}={size}" for title, size in labels.items()), name)))
                label = labels | ({"backend": name} if len(backends_by_name) > 1 else {})
                if isinstance(backend, Cell):
                    yield replace(backend, labels=label)
                else:
                    yield run_cell(label, partial(_compare_captured, capture, partial(compare, backend=backend)))


def _capture(make: Callable[[], Subject], model: nn.Module) -> Capture:
    return replace(make(), model=model).steal()


def _compare_captured(capture: Callable[[], Capture], compare: Callable[[Capture], Report]) -> Report:
    return compare(capture())  # within `run_cell`: making the inputs or running the model may fail, too


def _size_arguments(factory: Factory, sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the sizes that the factory takes as arguments: all of them, or none."""
    parameters = inspect.signature(factory.function).parameters
    taken = [name for name in sizes if name in parameters]
    if taken and len(taken) < len(sizes):
        other = next(name for name in sizes if name not in parameters)
        raise CompareError(f"the factory {factory.name!r} takes {taken[0]!r}, so it has to take {other!r}, too")
    return taken
