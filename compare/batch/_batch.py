"""Compare models in several dtypes, on several devices and backends, or one at several sizes of its inputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import torch

from filch.export import BackendError
from filch.export.backends import Backend, backend_names, get_backend
from filch.steal import Capture, FilchError, phase

from .._compare_export import compare_export
from ..common._errors import CompareError
from ..metrics._tolerance import ToleranceOption
from ..models._factory import Factory, find_factory
from ..models._subject import Subject
from ..models._variants import (
    check_sizes,
    converted,
    device_problem,
    find_device,
    find_dtype,
    size_arguments,
    sized,
)
from ..results._cells import Cell, failure_text, run_cell
from ..results._report import Report


def matrix(
    factories: Sequence[str],
    *,
    backends: Sequence[str],
    dtypes: Sequence[str] = (),
    devices: Sequence[str] = (),
    tolerance: ToleranceOption = None,
    lower_precision: bool = False,
    options: Mapping[str, Any] | None = None,
    limit: float | None = None,
) -> Iterator[Cell]:
    """Compare each model on each backend, one after the other.

    Args:
        factories: see `find_factory`.
        backends: names of backends; the status is `missing` if a backend's library or device is not available.
        dtypes: torch dtypes by name, to which the model and its floating-point inputs are cast; none casts nothing.
        devices: torch devices by name, on which the model runs in eager PyTorch; none moves nothing. The backend
            determines the device of the program.
        tolerance: see `compare`.
        lower_precision: see `compare`.
        options: options of each backend.
        limit: see `compare`.

    Yields:
        a cell for each comparison.

    Raises:
        FilchError: there is no factory, backend, dtype or device of this name, or a factory fails.
    """
    models = [find_factory(name) for name in factories]
    backends_by_name = {name: find_backend(name, options or {}) for name in backends}
    dtypes_by_name: dict[str, torch.dtype | None] = {name: find_dtype(name) for name in dtypes} or {"": None}
    devices_by_name: dict[str, torch.device | None] = {name: find_device(name) for name in devices} or {"": None}
    compare = partial(compare_export, tolerance=tolerance, lower_precision=lower_precision, limit=limit)
    variants = [*product(models, dtypes_by_name, devices_by_name)]
    with phase("cell", len(variants) * len(backends_by_name)) as progress:
        for factory, dtype, device in variants:
            comparison: Callable[..., Report] | Cell | None = None
            for name, backend in backends_by_name.items():
                titles = {"model": factory.name, "dtype": dtype, "device": device, "backend": name}
                labels = {title: label for title, label in titles.items() if label}
                progress.next(" ".join(labels.values()))
                if comparison is None:
                    comparison = _prepare(factory, dtypes_by_name[dtype], devices_by_name[device], compare)
                if isinstance(comparison, Cell):
                    yield replace(comparison, labels=labels)
                elif isinstance(backend, Cell):
                    yield replace(backend, labels=labels)
                else:
                    yield run_cell(labels, partial(comparison, backend=backend))


def _prepare(
    factory: Factory, dtype: torch.dtype | None, device: torch.device | None, compare: Callable[..., Report]
) -> Callable[..., Report] | Cell:
    """Record and export a model; return the function that compares it on a backend, or a cell if it can't run."""
    if device is not None and (problem := device_problem(device)):
        return Cell({}, "missing", detail=problem)
    subject = factory.make()
    try:
        subject = converted(subject, dtype, device)
        return partial(compare, subject.steal(), subject.export())
    except FilchError as error:
        return Cell({}, "failed", detail=failure_text(error))


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
    check_sizes(factory, subject, sizes)
    compare = partial(
        compare_export, program=subject.export(), tolerance=tolerance, lower_precision=lower_precision, limit=limit
    )
    combinations = [*product(*sizes.values())]
    with phase("cell", len(combinations) * len(backends_by_name)) as progress:
        for combination in combinations:
            chosen = dict(zip(sizes, combination, strict=True))
            labels = {name: str(size) for name, size in chosen.items()}
            capture = cache(partial(_capture, maker, subject, chosen))
            for name, backend in backends_by_name.items():
                progress.next(" ".join((*(f"{title}={size}" for title, size in labels.items()), name)))
                label = labels | ({"backend": name} if len(backends_by_name) > 1 else {})
                if isinstance(backend, Cell):
                    yield replace(backend, labels=label)
                else:
                    yield run_cell(label, partial(_compare_captured, capture, partial(compare, backend=backend)))


def _capture(factory: Factory, subject: Subject, sizes: Mapping[str, int]) -> Capture:
    return sized(factory, subject, sizes).steal()


def _compare_captured(capture: Callable[[], Capture], compare: Callable[[Capture], Report]) -> Report:
    return compare(capture())  # within `run_cell`: making the inputs or running the model may fail, too


def _size_arguments(factory: Factory, sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the sizes that the factory takes as arguments: all of them, or none."""
    taken = size_arguments(factory, sizes)
    if taken and len(taken) < len(sizes):
        other = next(name for name in sizes if name not in taken)
        raise CompareError(f"the factory {factory.name!r} takes {taken[0]!r}, so it has to take {other!r}, too")
    return taken


def find_backend(name: str, options: Mapping[str, Any]) -> Backend | Cell:
    """Return a backend; if it is not available, return the cell of its comparisons, `missing` and without labels.

    Raises:
        BackendError: there is no backend of this name.
    """
    try:
        return get_backend(name, **options)
    except BackendError as error:
        if name not in backend_names():  # misspelt
            raise
        return Cell({}, "missing", detail=str(error))
