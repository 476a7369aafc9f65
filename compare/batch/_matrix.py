"""Compares models in several dtypes, on several devices and backends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map

from filch.export import BackendError
from filch.export.backends import Backend, backend_names, get_backend
from filch.steal import FilchError

from .._compare_export import compare_export
from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance
from ..models._factory import Factory, find_factory
from ..models._subject import Subject
from ..results._cells import Cell, cell_of
from ..results._report import Report


def matrix(
    factories: Sequence[str],
    *,
    backends: Sequence[str],
    dtypes: Sequence[str] = (),
    devices: Sequence[str] = (),
    tolerance: float | Tolerance | None = None,
    lower_precision: bool = False,
    options: Mapping[str, Any] | None = None,
    limit: float | None = None,
) -> Iterator[Cell]:
    """Compare each model on each backend, one after the other.

    Args:
        factories: see `find_factory`.
        backends: names of backends; one whose library or device is missing gives cells that say so.
        dtypes: what the model and its floating-point inputs are turned into, as torch calls it; none leaves them.
        devices: where the model runs in eager PyTorch, as torch calls it; none leaves it where it is. The backend's
            name says where the program runs.
        tolerance: see `compare`.
        lower_precision: see `compare`.
        options: what each backend is made with.
        limit: see `compare`.

    Raises:
        FilchError: there is no factory, backend, dtype or device of this name, or a factory fails.
    """
    made = [find_factory(name) for name in factories]
    engines = {name: _engine(name, options or {}) for name in backends}
    for name in dtypes:
        _dtype(name)
    for name in devices:
        _device(name)
    how = partial(compare_export, tolerance=tolerance, lower_precision=lower_precision, limit=limit)
    for factory, dtype, device in product(made, dtypes or [""], devices or [""]):
        labels = {"model": factory.name} | ({"dtype": dtype} if dtype else {}) | ({"device": device} if device else {})
        ready = _ready(factory, dtype, device, how)
        for name, engine in engines.items():
            yield _cell(labels | {"backend": name}, ready, engine)


@dataclass(frozen=True)
class _Absent:
    """Why there is nothing to compare."""

    status: Literal["failed", "missing"]
    told: str


def _cell(labels: dict[str, str], ready: Callable[..., Report] | _Absent, engine: Backend | _Absent) -> Cell:
    if isinstance(ready, _Absent):
        return Cell(labels, ready.status, None, ready.told)
    if isinstance(engine, _Absent):
        return Cell(labels, engine.status, None, engine.told)
    return cell_of(labels, partial(ready, backend=engine))


def _ready(factory: Factory, dtype: str, device: str, how: Callable[..., Report]) -> Callable[..., Report] | _Absent:
    """The comparison of a model, which takes a backend."""
    if device and (missing := _missing(torch.device(device))):
        return _Absent("missing", missing)
    subject = factory.make()
    try:
        moved = _moved(subject, dtype, device)
        return partial(how, moved.steal(), moved.export())
    except FilchError as error:
        return _Absent("failed", str(error))


def _engine(name: str, options: Mapping[str, Any]) -> Backend | _Absent:
    try:
        return get_backend(name, **options)
    except BackendError as error:
        if name not in backend_names():
            raise
        return _Absent("missing", str(error))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CompareError(f"a dtype is one like float16, bfloat16, float32 or float64, not {name!r}")
    return found


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise CompareError(f"a device is one like cpu or cuda:0, not {name!r}") from None


def _missing(device: torch.device) -> str:
    """Why torch can't use a device; `""` if it can."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:  # what it was not built for, what is not there
        return f"torch can't use {str(device)!r}: {next(iter(str(error).splitlines()), '')}"
    return ""


def _moved(subject: Subject, dtype: str, device: str) -> Subject:
    kind, place = _dtype(dtype) if dtype else None, _device(device) if device else None

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=place, dtype=kind if value.is_floating_point() else None)

    to: Callable[..., Any] = subject.model.to
    model = to(device=place, dtype=kind) if kind or place else subject.model
    return replace(subject, model=model, args=tree_map(move, subject.args), kwargs=tree_map(move, dict(subject.kwargs)))
