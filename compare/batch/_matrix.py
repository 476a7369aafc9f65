"""Compare models in several dtypes, on several devices and backends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from filch.steal import FilchError, phase

from .._compare_export import compare_export
from ..metrics._tolerance import ToleranceOption
from ..models._convert import converted, device_problem, find_device, find_dtype
from ..models._factory import Factory, find_factory
from ..results._cells import Cell, failure_text, run_cell
from ..results._report import Report
from ._backends import find_backend


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
